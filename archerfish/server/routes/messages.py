"""/v1/messages and /v1/messages/count_tokens, in the shape of Anthropic's API."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from archerfish.api.bodies.messages import CountTokensBody, MessagesBody
from archerfish.api.message_writer import MessageWriter
from archerfish.api.messages import Message
from archerfish.server.answers import Answer, complete, unless_disconnected
from archerfish.server.errors import as_api_error
from archerfish.server.replies import call_reply, json_reply
from archerfish.server.requests import takes
from archerfish.server.service import service_of
from archerfish.server.sse import EventResponse, event

_BETWEEN_PINGS = 10.0
"""Seconds without a token after which a stream shows that it is alive."""

_PING = event({"type": "ping"}, "ping")

router = APIRouter()


@router.post("/v1/messages", openapi_extra=takes(MessagesBody))
async def create_message(http: Request) -> Response:
    """Answer a conversation."""
    service = service_of(http)
    message: Message = await service.read(http, "/v1/messages")
    answer = await service.open(http, message.inputs)
    try:
        if message.is_streamed:
            return EventResponse(_stream(message.writer(answer.output), answer), answer.headers)
        return await call_reply(message, await unless_disconnected(http, complete([answer])), answer.headers)
    finally:
        if not message.is_streamed:
            answer.close()


@router.post("/v1/messages/count_tokens", openapi_extra=takes(CountTokensBody))
async def count_tokens(http: Request) -> Response:
    """How long a conversation is, as the model will see it."""
    return json_reply(await service_of(http).read_reply(http, "/v1/messages/count_tokens"))


async def _stream(writer: MessageWriter, answer: Answer) -> AsyncIterator[bytes]:
    try:
        async for told in _events(writer, answer):
            yield _PING if told is None else event(told, told["type"])
            if told is not None and told["type"] == "message_start":
                yield _PING
    except Exception as error:
        yield event(as_api_error(error).anthropic_body, "error")
    finally:
        answer.close()


async def _events(writer: MessageWriter, answer: Answer) -> AsyncIterator[dict[str, Any] | None]:
    """All that happens to a message; None where nothing has happened for a while."""
    while True:
        try:
            async with asyncio.timeout(_BETWEEN_PINGS):
                pieces = await answer.next()
        except TimeoutError:
            yield None
            continue
        if not pieces:
            return
        for piece in pieces:
            if piece.finish_reason == "error":
                raise answer.failure(piece.error)
            for told in writer.add(piece):
                yield told
