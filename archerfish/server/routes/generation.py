"""Endpoints that answer a body: with the engine, at once or as server-sent events, or with the tokenizer alone."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from archerfish.api.bodies.chat import ChatBody
from archerfish.api.bodies.messages import CountTokensBody, MessagesBody
from archerfish.api.bodies.prompts import CompletionBody, DetokenizeBody, EmbeddingBody, TokenizeBody
from archerfish.api.endpoint_call import EndpointCall
from archerfish.server.replies import EventResponse, json_reply, unless_disconnected
from archerfish.server.requests import context_of, takes
from archerfish.server.service import service_of

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=takes(ChatBody))
async def chat_completions(http: Request) -> Response:
    """Answer a conversation."""
    return await answer(http, await service_of(http).read(http, "/v1/chat/completions"))


@router.post("/v1/completions", openapi_extra=takes(CompletionBody))
async def completions(http: Request) -> Response:
    """Continue prompts."""
    return await answer(http, await service_of(http).read(http, "/v1/completions"))


@router.post("/v1/messages", openapi_extra=takes(MessagesBody))
async def create_message(http: Request) -> Response:
    """Answer a conversation."""
    return await answer(http, await service_of(http).read(http, "/v1/messages"))


@router.post("/v1/messages/count_tokens", openapi_extra=takes(CountTokensBody))
async def count_tokens(http: Request) -> Response:
    """Return the number of tokens of a conversation, as the model would see it."""
    return json_reply(await service_of(http).read_reply(http, "/v1/messages/count_tokens"))


@router.post("/v1/embeddings", openapi_extra=takes(EmbeddingBody))
async def embeddings(http: Request) -> Response:
    """Return the mean of the model's last states over each input."""
    return await answer(http, await service_of(http).read(http, "/v1/embeddings"))


@router.post("/tokenize", openapi_extra=takes(TokenizeBody))
async def tokenize(http: Request) -> Response:
    """Token ids of a text, or of a chat as the model's template lays it out."""
    return json_reply(await service_of(http).read_reply(http, "/tokenize"))


@router.post("/detokenize", openapi_extra=takes(DetokenizeBody))
async def detokenize(http: Request) -> Response:
    """The text of token ids."""
    return json_reply(await service_of(http).read_reply(http, "/detokenize"))


async def answer(http: Request, call: EndpointCall) -> Response:
    """Return the response to a call. If the client leaves before its end, the call is cancelled."""
    service, context = service_of(http), context_of(http)
    if call.is_streamed:
        running = await service.open(context, call)
        return EventResponse(running.events(), context.reply_headers, running.close)
    return json_reply(await unless_disconnected(http, service.reply(context, call)), context.reply_headers)
