"""Errors as OpenAI's clients expect them: a status and {"error": {message, type, param, code}}."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from archerfish.api.unknown_fields import remedy_for, substitute_for
from archerfish.engine.input_processor import why_not_text
from archerfish.errors import (
    FileTooLarge,
    InvalidParameter,
    NotFound,
    PromptTooLong,
    QuotaExceeded,
    RequestError,
    StorageFull,
    TooManyBatches,
    UserError,
    WrongState,
)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_ANTHROPIC_TYPES = {413: "request_too_large"}
"""By status, where that API has a type of its own."""
_STATUSES: dict[type[UserError], int] = {
    NotFound: 404,
    WrongState: 409,
    FileTooLarge: 413,
    TooManyBatches: 429,
    StorageFull: 507,
    QuotaExceeded: 507,
}
_CODES: dict[type[UserError], str] = {TooManyBatches: "too_many_batches", QuotaExceeded: "quota_exceeded"}
_ABSENT = object()
_OTHER_MODALITIES = frozenset(
    (
        *("image", "image_url", "image_embeds", "input_image", "audio", "audio_url", "input_audio"),
        *("video", "video_url", "file", "input_file", "document", "container_upload"),
    )
)
"""Types of parts that are no text, in any of the APIs."""
_OPTIONS = ("stream_options", "structured_outputs")
"""Fields that are objects of further options."""
_LONGEST_MESSAGE = 2000  # A refused value may be a whole document, and so may the name of a field.
_LONGEST_PARAM = 200


class UnknownModel(RequestError):
    """A body names another model than the one that answers."""

    def __init__(self, name: str, served: Sequence[str]) -> None:
        super().__init__(f"there is no model {name!r}; this service serves {', '.join(map(repr, served))}")


class ErrorReply(NamedTuple):
    """An error as the reply to a body."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None

    @property
    def body(self) -> dict[str, Any]:
        """JSON for clients of OpenAI's API."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {
            "error": {
                "message": _cut(self.message, _LONGEST_MESSAGE),
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def anthropic_body(self) -> dict[str, Any]:
        """JSON for clients of Anthropic's API."""
        error = self.body["error"]
        kind = "api_error" if error["type"] == "server_error" else error["type"]
        kind = _ANTHROPIC_TYPES.get(self.status, kind)
        return {"type": "error", "error": {"type": kind, "message": error["message"]}}


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "..."


def _short_reply(status: int, message: str, param: str | None = None, code: str | None = None) -> ErrorReply:
    """Return a reply with shortened texts: refused values may be whole documents, and replies travel and are logged."""
    return ErrorReply(
        status, _cut(message, _LONGEST_MESSAGE), None if param is None else _cut(param, _LONGEST_PARAM), code
    )


MISTAKE = ErrorReply(500, "internal error; the service's log has the details", code="internal_error")


def failed_reply(reason: str | None) -> ErrorReply:
    """An answer was begun and could not be finished."""
    return ErrorReply(500, reason or "the answer could not be finished", code="generation_failed")


def error_reply(error: UserError | ValidationError, body: object = None, known: Collection[str] = ()) -> ErrorReply:
    """Return the reply for an error that the client can fix. `body` is the value that was validated, if any.

    `known` are the fields that it could have had.
    """
    match error:
        case ValidationError():
            return validation_reply(error.errors(include_url=False), body, known)
        case InvalidParameter():
            # Further lines show where in a text the mistake is, which takes a terminal.
            return _short_reply(400, str(error).partition("\n")[0], error.name)
        case PromptTooLong():
            return _short_reply(400, str(error), code="context_length_exceeded")
        case UnknownModel():
            return _short_reply(404, str(error), "model", "model_not_found")
    return _short_reply(_STATUSES.get(type(error), 400), str(error), code=_CODES.get(type(error)))


def validation_reply(errors: Sequence[Mapping[str, Any]], body: object, known: Collection[str] = ()) -> ErrorReply:
    """The first thing that is wrong, by the name of its field."""
    first = errors[0]
    param = _field(first["loc"], body, is_missing=first["type"] == "missing")
    if first["type"] == "extra_forbidden":
        return _field_reply(first["loc"], param, known)
    message = _not_text(first) or first["msg"].removeprefix("Value error, ")
    return _short_reply(400, f"{param}: {message}" if param else message, param)


def _field_reply(location: tuple[int | str, ...], param: str | None, known: Collection[str]) -> ErrorReply:
    """The refusal of a field that a body, or an object within it, does not have."""
    name = _cut(str(location[-1]), _LONGEST_PARAM)
    is_option = len(location) == 2 and location[0] in _OPTIONS
    if (len(location) == 1 or is_option) and (instead := substitute_for(name)) is not None:
        return _short_reply(400, f"{param} is not supported here: {instead}", param, "unsupported_field")
    remedy = remedy_for(name, known) if len(location) == 1 else "leave it out"
    return _short_reply(400, f"{param} is not a known field; {remedy}", param, "unknown_field")


def _not_text(error: Mapping[str, Any]) -> str | None:
    """Return the message for a part that is not text; None if the error is another one."""
    named = error.get("ctx", {}).get("tag") if error["type"] == "union_tag_invalid" else None
    if error["type"] == "literal_error" and error["loc"][-1:] == ("type",):
        named = error["input"]
    if not isinstance(named, str) or named not in _OTHER_MODALITIES:
        return None
    return why_not_text(named)


def _field(location: tuple[int | str, ...], body: Any, *, is_missing: bool) -> str | None:
    """The path of a field as the client wrote it: locations also name the kinds that a value could have been."""
    parts = []
    for part in location[1:] if location[:1] == ("body",) else location:
        value = _within(body, part)
        if value is not _ABSENT:
            body = value
            parts.append(str(part))
    if is_missing:
        parts.append(str(location[-1]))
    return ".".join(parts) or None


def _within(value: Any, part: int | str) -> Any:
    if isinstance(value, Mapping):
        return value.get(part, _ABSENT)
    return value[part] if isinstance(value, list) and isinstance(part, int) and part < len(value) else _ABSENT
