"""Every endpoint that takes a JSON body: how the body is read, and what it comes to. Knows no HTTP.

The service's routes, its batches and the offline batches all read bodies here, so that one body means one thing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from pydantic import ValidationError
from pydantic_core import from_json

from archerfish.api.bodies.chat import ChatBody
from archerfish.api.bodies.common import Body
from archerfish.api.bodies.completions import CompletionBody
from archerfish.api.bodies.embeddings import EmbeddingBody
from archerfish.api.bodies.messages import CountTokensBody, MessagesBody
from archerfish.api.bodies.responses import ResponsesBody
from archerfish.api.bodies.tokens import DetokenizeBody, TokenizeBody
from archerfish.api.chat import Chat
from archerfish.api.completions import Completion
from archerfish.api.costs import check_costs
from archerfish.api.embeddings import Embedding
from archerfish.api.errors import ErrorReply, error_reply
from archerfish.api.inputs import EndpointCall
from archerfish.api.json_limits import JsonLimits
from archerfish.api.messages import Message, count_tokens
from archerfish.api.model import ServedModel
from archerfish.api.responses import ResponsesCall
from archerfish.api.tokens import detokenize, tokenize
from archerfish.errors import InvalidParameter, UserError

_NOT_IN_A_BATCH = {
    "stream": "a line of a batch is answered as a whole; leave it out",
    "background": "a batch is answered in the background anyway; leave it out",
}
_KEEPS_NOTHING = {
    "store": "nothing is kept here, so it can only be false; leave it out",
    "previous_response_id": "nothing is kept here; send the conversation itself",
}

Turns = Sequence[bytes]
"""Earlier turns of a conversation that the service keeps: each a JSON list of messages."""


class HistoryNeeded(NamedTuple):
    """The body continues a response that the service keeps: it can be read with the turns before it."""

    response_id: str


Outcome = EndpointCall | HistoryNeeded | bytes
"""What a body comes to: a call for the engine, a question for its history, or the whole reply as JSON."""


class Endpoint(NamedTuple):
    body: type[Body]
    understand: Callable[[ServedModel, Any, Turns | None], Outcome]
    renders_template: bool = False
    """Whether the checkpoint's chat template runs, which may take any time and memory."""


def _turn(model: ServedModel, body: ResponsesBody, history: Turns | None) -> ResponsesCall | HistoryNeeded:
    if body.previous_response_id is not None and history is None:
        return HistoryNeeded(body.previous_response_id)
    before = [message for turn in history or () for message in msgspec.json.decode(turn)]
    return ResponsesCall(model, body, before=before, is_kept=body.is_kept)


def _unkept_turn(model: ServedModel, body: ResponsesBody) -> ResponsesCall:
    for name, allowed in _KEEPS_NOTHING.items():
        if getattr(body, name):
            raise InvalidParameter(name, getattr(body, name), allowed)
    return ResponsesCall(model, body, is_kept=False)


BODIES = {
    "/v1/chat/completions": Endpoint(ChatBody, lambda model, body, _: Chat(model, body), renders_template=True),
    "/v1/completions": Endpoint(CompletionBody, lambda model, body, _: Completion(model, body)),
    "/v1/embeddings": Endpoint(EmbeddingBody, lambda model, body, _: Embedding(model, body)),
    "/v1/responses": Endpoint(ResponsesBody, _turn, renders_template=True),
    "/v1/messages": Endpoint(MessagesBody, lambda model, body, _: Message(model, body), renders_template=True),
    "/v1/messages/count_tokens": Endpoint(
        CountTokensBody, lambda model, body, _: count_tokens(model, body), renders_template=True
    ),
    "/tokenize": Endpoint(TokenizeBody, lambda model, body, _: tokenize(model, body), renders_template=True),
    "/detokenize": Endpoint(DetokenizeBody, lambda model, body, _: detokenize(model, body)),
}

_OFFLINE: dict[str, Callable[[ServedModel, Any], EndpointCall]] = {
    "/v1/chat/completions": Chat,
    "/v1/completions": Completion,
    "/v1/embeddings": Embedding,
    "/v1/responses": _unkept_turn,
}
ENDPOINTS = tuple(_OFFLINE)
"""Those that the lines of a batch can ask for."""


def read_body(
    model: ServedModel,
    endpoint: str,
    body: bytes,
    limits: JsonLimits,
    history: Turns | None = None,
    *,
    in_batch: bool = False,
) -> Outcome | ErrorReply:
    """What a body asks of an endpoint, its prompts tokenized; or what is wrong with it."""
    parsed: object = None
    try:
        limits.check(body)
        # Unlike the standard library's, this parser refuses deep nesting instead of running out of stack.
        parsed = from_json(body, allow_inf_nan=False)
        if in_batch and (refusal := refuse_in_batch(parsed)) is not None:
            return refusal
        outcome = BODIES[endpoint].understand(model, BODIES[endpoint].body.model_validate(parsed), history)
        if not isinstance(outcome, (HistoryNeeded, bytes)):
            outcome.inputs = outcome.inputs.tokenized(model.processor)
            check_costs(outcome, model, body_size=len(body), max_reply_items=limits.max_items)
    except (UserError, ValidationError) as error:
        return error_reply(error, parsed, _fields_of(endpoint))
    except ValueError as error:
        return _no_json(error)
    return outcome


def refuse_in_batch(body: object) -> ErrorReply | None:
    """What the body of a line asks for that only a request by itself can have; None if it does not."""
    for name, allowed in _NOT_IN_A_BATCH.items():
        if isinstance(body, Mapping) and body.get(name):
            return error_reply(InvalidParameter(name, body[name], allowed))
    return None


def read_line(model: ServedModel, endpoint: str, body: bytes) -> EndpointCall | ErrorReply:
    """What the body of a line asks, answered where nothing is kept; or what is wrong with it."""
    try:
        parsed: object = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        return _no_json(error)
    return understand_line(model, endpoint, parsed)


def understand_line(model: ServedModel, endpoint: str, body: object) -> EndpointCall | ErrorReply:
    """The same of a body that was parsed."""
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
    """The names that the fields of its body have to clients."""
    return [field.alias or name for name, field in BODIES[endpoint].body.model_fields.items()]
