"""/v1/completions."""

from collections.abc import AsyncIterator, Sequence
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from archerfish.api.bodies.completions import CompletionBody
from archerfish.api.completions import Completion
from archerfish.server.answers import Answer, close, complete, merged, unless_disconnected
from archerfish.server.beside import read_in_time
from archerfish.server.replies import json_reply
from archerfish.server.requests import LimitedRoute
from archerfish.server.service import service_of
from archerfish.server.sse import DONE, EventResponse, event

router = APIRouter(route_class=LimitedRoute)


@router.post("/v1/completions")
async def completions(body: CompletionBody, http: Request) -> Response:
    """Continue prompts."""
    service = service_of(http)
    completion = await read_in_time(http, partial(Completion, service.model, body))
    answers = await service.open_all(http, completion.ask)
    try:
        if body.stream:
            return EventResponse(_stream(completion, answers), answers[0].headers)
        return json_reply(completion.reply(await unless_disconnected(http, complete(answers))), answers[0].headers)
    finally:
        if not body.stream:
            close(answers)


async def _stream(completion: Completion, answers: Sequence[Answer]) -> AsyncIterator[bytes]:
    try:
        async for place, pieces in merged(answers):
            for piece in pieces:
                if piece.finish_reason == "error":
                    yield event(answers[place].failure(piece.error).body)
                    return
                yield event(completion.add(place, piece))
        for chunk in completion.end([answer.written for answer in answers]):
            yield event(chunk)
        yield DONE
    finally:
        close(answers)
