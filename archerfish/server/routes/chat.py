"""/v1/chat/completions."""

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from starlette.responses import Response

from archerfish.api.bodies.chat import ChatBody
from archerfish.api.chat import Chat
from archerfish.server.answers import Answer, complete, unless_disconnected
from archerfish.server.replies import call_reply
from archerfish.server.requests import takes
from archerfish.server.service import service_of
from archerfish.server.sse import DONE, EventResponse, event

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=takes(ChatBody))
async def chat_completions(http: Request) -> Response:
    """Answer a conversation."""
    service = service_of(http)
    chat: Chat = await service.read(http, "/v1/chat/completions")
    answer = await service.open(http, chat.inputs)
    try:
        if chat.is_streamed:
            return EventResponse(_stream(chat, answer), answer.headers)
        return await call_reply(chat, await unless_disconnected(http, complete([answer])), answer.headers)
    finally:
        if not chat.is_streamed:
            answer.close()


async def _stream(chat: Chat, answer: Answer) -> AsyncIterator[bytes]:
    try:
        for chunk in chat.begin():
            yield event(chunk)
        while pieces := await answer.next():
            for piece in pieces:
                if piece.finish_reason == "error":
                    yield event(answer.failure(piece.error).body)
                    return
                for chunk in chat.add(piece):
                    yield event(chunk)
        for chunk in chat.end(answer.output):
            yield event(chunk)
        yield DONE
    finally:
        answer.close()
