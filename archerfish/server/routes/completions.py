"""/v1/completions."""

from collections.abc import AsyncIterator, Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from archerfish.api.bodies.completions import CompletionBody
from archerfish.api.completions import Completion
from archerfish.server.answers import Answer, close, complete, merged, unless_disconnected
from archerfish.server.replies import call_reply
from archerfish.server.requests import takes
from archerfish.server.service import service_of
from archerfish.server.sse import DONE, EventResponse, event

router = APIRouter()


@router.post("/v1/completions", openapi_extra=takes(CompletionBody))
async def completions(http: Request) -> Response:
    """Continue prompts."""
    service = service_of(http)
    completion: Completion = await service.read(http, "/v1/completions")
    answers = await service.open_all(http, completion.inputs)
    try:
        if completion.is_streamed:
            return EventResponse(_stream(completion, answers), answers[0].headers)
        return await call_reply(completion, await unless_disconnected(http, complete(answers)), answers[0].headers)
    finally:
        if not completion.is_streamed:
            close(answers)


async def _stream(completion: Completion, answers: Sequence[Answer]) -> AsyncIterator[bytes]:
    try:
        async for place, pieces in merged(answers):
            for piece in pieces:
                if piece.finish_reason == "error":
                    yield event(answers[place].failure(piece.error).body)
                    return
                yield event(completion.add(place, piece))
        for chunk in completion.end([answer.output for answer in answers]):
            yield event(chunk)
        yield DONE
    finally:
        close(answers)
