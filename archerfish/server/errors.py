"""Errors as OpenAI's clients expect them: a status code and {"error": {message, type, param, code}}."""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from archerfish.console import logger
from archerfish.errors import (
    EngineStopped,
    FileTooLarge,
    InvalidParameter,
    NotFound,
    StorageFull,
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
_ABSENT = object()
_LONGEST_MESSAGE = 2000  # A refused value may be a whole document.


_STATUSES: dict[type[UserError], int] = {NotFound: 404, WrongState: 409, FileTooLarge: 413, StorageFull: 507}


class ApiError(HTTPException):
    """Answered instead of what was asked for. One of the framework's, so that it passes unchanged wherever raised."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        message = self.detail
        if len(message) > _LONGEST_MESSAGE:
            message = message[:_LONGEST_MESSAGE] + "..."
        kind = _TYPES.get(self.status_code, "server_error" if self.status_code >= 500 else "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of an error raised on the way."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidParameter):
        return ApiError(400, str(error), param=error.name)
    if isinstance(error, UserError):
        return ApiError(_STATUSES.get(type(error), 400), str(error))
    if isinstance(error, EngineStopped):
        return ApiError(503, str(error), headers={"Retry-After": "5"})
    if isinstance(error, (RequestValidationError, ValidationError)):
        return _from_validation(error)
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), headers=error.headers)
    logger.exception("a request failed", exc_info=error)
    return ApiError(500, "the service made a mistake; its log has the details", code="internal_error")


def error_response(error: ApiError) -> Response:
    return Response(msgspec.json.encode(error.body), error.status_code, error.headers, media_type="application/json")


def install_error_handlers(app: FastAPI) -> None:
    async def answer(_: Request, error: Exception) -> Response:
        return error_response(as_api_error(error))

    for kind in (ApiError, UserError, EngineStopped, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def _from_validation(error: RequestValidationError | ValidationError) -> ApiError:
    """The first thing that is wrong, by the name of its field."""
    first = error.errors()[0]
    param = _field(first["loc"], getattr(error, "body", None), is_missing=first["type"] == "missing")
    if first["type"] == "extra_forbidden":
        message = f"{param} is not a field that is known here; leave it out"
        return ApiError(400, message, param=param, code="unknown_field")
    return ApiError(400, f"{param}: {first['msg']}" if param else first["msg"], param=param)


def _field(location: tuple[int | str, ...], body: Any, *, is_missing: bool) -> str | None:
    """The path of a field as the client wrote it: locations also name the kinds that a value could have been."""
    parts = []
    for part in location[1:] if location[:1] == ("body",) else location:
        found = _within(body, part)
        if found is not _ABSENT:
            body = found
            parts.append(str(part))
    if is_missing:
        parts.append(str(location[-1]))
    return ".".join(parts) or None


def _within(value: Any, part: int | str) -> Any:
    if isinstance(value, dict):
        return value.get(part, _ABSENT)
    return value[part] if isinstance(value, list) and isinstance(part, int) and part < len(value) else _ABSENT
