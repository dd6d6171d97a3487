"""The endpoints that a line of a batch can ask for: how its body is read. The service's routes read the same bodies."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from archerfish.api.ask import Call
from archerfish.api.bodies.chat import ChatBody
from archerfish.api.bodies.common import Body
from archerfish.api.bodies.completions import CompletionBody
from archerfish.api.bodies.embeddings import EmbeddingBody
from archerfish.api.bodies.responses import ResponsesBody
from archerfish.api.chat import Chat
from archerfish.api.completions import Completion
from archerfish.api.embeddings import Embedding
from archerfish.api.errors import ErrorReply, error_reply
from archerfish.api.model import ServedModel
from archerfish.api.responses import Turn
from archerfish.errors import InvalidParameter, UserError

_NOT_IN_A_BATCH = {
    "stream": "a line of a batch is answered as a whole; leave it out",
    "background": "a batch is answered in the background anyway; leave it out",
}
_KEEPS_NOTHING = {
    "store": "nothing is kept here, so it can only be false; leave it out",
    "previous_response_id": "nothing is kept here; send the conversation itself",
}


class _Endpoint(NamedTuple):
    body: type[Body]
    understand: Callable[[ServedModel, Any], Call]


def _unkept_turn(model: ServedModel, body: ResponsesBody) -> Turn:
    for name, allowed in _KEEPS_NOTHING.items():
        if getattr(body, name):
            raise InvalidParameter(name, getattr(body, name), allowed)
    return Turn(model, body, is_kept=False)


_ENDPOINTS = {
    "/v1/chat/completions": _Endpoint(ChatBody, Chat),
    "/v1/completions": _Endpoint(CompletionBody, Completion),
    "/v1/embeddings": _Endpoint(EmbeddingBody, Embedding),
    "/v1/responses": _Endpoint(ResponsesBody, _unkept_turn),
}
ENDPOINTS = tuple(_ENDPOINTS)


def check_line(endpoint: str, body: Mapping[str, Any]) -> str | None:
    """What is wrong with the body of a line, as far as that can be told without a model; None if nothing is."""
    try:
        _parse(endpoint, body)
    except (UserError, ValidationError) as error:
        return error_reply(error, body).message
    return None


def understand_line(model: ServedModel, endpoint: str, body: Mapping[str, Any]) -> Call | ErrorReply:
    """What the body of a line asks, answered where nothing is kept; or what is wrong with it."""
    try:
        return _ENDPOINTS[endpoint].understand(model, _parse(endpoint, body))
    except (UserError, ValidationError) as error:
        return error_reply(error, body)


def _parse(endpoint: str, body: Mapping[str, Any]) -> Body:
    parsed = _ENDPOINTS[endpoint].body.model_validate(body)
    for name, allowed in _NOT_IN_A_BATCH.items():
        if getattr(parsed, name, None):
            raise InvalidParameter(name, True, allowed)
    return parsed
