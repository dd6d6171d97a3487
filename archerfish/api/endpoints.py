"""All endpoints that take a JSON body, and how a body is read.

The service's routes, its batches and offline batches all read bodies here, so that a body means the same everywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from pydantic import ValidationError
from pydantic_core import from_json

from archerfish.api.bodies.chat import ChatBody
from archerfish.api.bodies.common import Body
from archerfish.api.bodies.messages import CountTokensBody, MessagesBody
from archerfish.api.bodies.prompts import CompletionBody, DetokenizeBody, EmbeddingBody, TokenizeBody
from archerfish.api.bodies.responses import ResponsesBody
from archerfish.api.chat import ChatCall
from archerfish.api.completions import CompletionsCall
from archerfish.api.embeddings import EmbeddingsCall
from archerfish.api.endpoint_call import EndpointCall
from archerfish.api.errors import ErrorReply, error_reply
from archerfish.api.limits import JsonLimits, check_costs
from archerfish.api.messages import MessagesCall, count_tokens
from archerfish.api.model import ServedModel
from archerfish.api.responses import ResponsesCall
from archerfish.api.tokens import detokenize, tokenize
from archerfish.errors import InvalidParameter, UserError

_NOT_IN_A_BATCH = {
    "stream": "a line of a batch is answered as a whole; leave it out",
    "background": "a batch is answered in the background anyway; leave it out",
}
_WITHOUT_STORE = {
    "store": "responses are not stored here, so it can only be false; leave it out",
    "previous_response_id": "responses are not stored here; send the conversation itself",
}

Turns = Sequence[bytes]
"""Earlier turns of a stored conversation: each a JSON list of messages."""


class HistoryNeeded(NamedTuple):
    """The body continues a stored response, and can only be read together with the turns before it."""

    response_id: str


Outcome = EndpointCall | HistoryNeeded | bytes
"""What reading a body returns: a call for the engine, a request for its history, or the whole reply as JSON."""


class Endpoint(NamedTuple):
    """The body class of an endpoint and the function that reads it."""

    body: type[Body]
    read: Callable[[ServedModel, Any, Turns | None], Outcome]
    renders_template: bool = False
    """Whether the checkpoint's chat template runs, which may take any time and memory."""


def _responses_call(model: ServedModel, body: ResponsesBody, history: Turns | None) -> ResponsesCall | HistoryNeeded:
    if body.previous_response_id is not None and history is None:
        return HistoryNeeded(body.previous_response_id)
    before = [message for turn in history or () for message in msgspec.json.decode(turn)]
    return ResponsesCall(model, body, before=before, is_stored=body.is_stored)


def _unstored_call(model: ServedModel, body: ResponsesBody) -> ResponsesCall:
    for name, allowed in _WITHOUT_STORE.items():
        if getattr(body, name):
            raise InvalidParameter(name, getattr(body, name), allowed)
    return ResponsesCall(model, body, is_stored=False)


BODIES = {
    "/v1/chat/completions": Endpoint(ChatBody, lambda model, body, _: ChatCall(model, body), renders_template=True),
    "/v1/completions": Endpoint(CompletionBody, lambda model, body, _: CompletionsCall(model, body)),
    "/v1/embeddings": Endpoint(EmbeddingBody, lambda model, body, _: EmbeddingsCall(model, body)),
    "/v1/responses": Endpoint(ResponsesBody, _responses_call, renders_template=True),
    "/v1/messages": Endpoint(MessagesBody, lambda model, body, _: MessagesCall(model, body), renders_template=True),
    "/v1/messages/count_tokens": Endpoint(
        CountTokensBody, lambda model, body, _: count_tokens(model, body), renders_template=True
    ),
    "/tokenize": Endpoint(TokenizeBody, lambda model, body, _: tokenize(model, body), renders_template=True),
    "/detokenize": Endpoint(DetokenizeBody, lambda model, body, _: detokenize(model, body)),
}

_OFFLINE: dict[str, Callable[[ServedModel, Any], EndpointCall]] = {
    "/v1/chat/completions": ChatCall,
    "/v1/completions": CompletionsCall,
    "/v1/embeddings": EmbeddingsCall,
    "/v1/responses": _unstored_call,
}
ENDPOINTS = tuple(_OFFLINE)
"""Endpoints that the lines of a batch can name."""


def read_body(
    model: ServedModel,
    endpoint: str,
    body: bytes,
    limits: JsonLimits,
    history: Turns | None = None,
    *,
    in_batch: bool = False,
) -> Outcome | ErrorReply:
    """Return what a body comes to, or what is wrong with it. All checks but those of grammars are made here."""
    parsed: object = None
    try:
        limits.check(body)
        # Unlike the standard library's, this parser refuses deep nesting instead of running out of stack.
        parsed = from_json(body, allow_inf_nan=False)
        if in_batch and (refusal := refuse_in_batch(parsed)) is not None:
            return refusal
        outcome = BODIES[endpoint].read(model, BODIES[endpoint].body.model_validate(parsed), history)
        if not isinstance(outcome, (HistoryNeeded, bytes)):
            check_costs(outcome, model, body_size=len(body), max_reply_items=limits.max_items)
    except (UserError, ValidationError) as error:
        return error_reply(error, parsed, _fields_of(endpoint))
    except ValueError as error:
        return _no_json(error)
    return outcome


def refuse_in_batch(body: object) -> ErrorReply | None:
    """Return the refusal of a body that has a field which no line of a batch may have; None if it has none."""
    for name, allowed in _NOT_IN_A_BATCH.items():
        if isinstance(body, Mapping) and body.get(name):
            return error_reply(InvalidParameter(name, body[name], allowed))
    return None


def read_line(model: ServedModel, endpoint: str, body: bytes) -> EndpointCall | ErrorReply:
    """Return the call that the body of an offline batch's line comes to, or what is wrong with it."""
    try:
        parsed: object = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        return _no_json(error)
    return understand_line(model, endpoint, parsed)


def understand_line(model: ServedModel, endpoint: str, body: object) -> EndpointCall | ErrorReply:
    """Return the same as `read_line` for a parsed body."""
    refusal = refuse_in_batch(body)
    if refusal is not None:
        return refusal
    try:
        return _OFFLINE[endpoint](model, BODIES[endpoint].body.model_validate(body))
    except (UserError, ValidationError) as error:
        return error_reply(error, body, _fields_of(endpoint))


def _no_json(error: ValueError) -> ErrorReply:
    return ErrorReply(400, f"the body is not valid JSON: {error}")


def _fields_of(endpoint: str) -> list[str]:
    """Return the names of the fields of its body, as clients write them."""
    return [field.alias or name for name, field in BODIES[endpoint].body.model_fields.items()]
