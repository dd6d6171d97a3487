"""Requests that are being answered for an HTTP client: their ends are accounted for, and early ends cancel them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from starlette.requests import Request as HttpRequest

from archerfish.api.errors import failed_reply
from archerfish.engine.async_engine import AsyncEngine
from archerfish.engine.outputs import OutputStream, StreamOutput
from archerfish.engine.request_stream import RequestStream
from archerfish.server.errors import ApiError

Result = TypeVar("Result")


class Answer:
    """A request's stream, which must be closed whatever happens; closing it early cancels the request."""

    def __init__(self, engine: AsyncEngine, stream: RequestStream, on_close: Callable[[OutputStream], None]) -> None:
        self._engine = engine
        self._stream = stream
        self._on_close = on_close
        self._closed = False
        self.output = stream.output
        self.headers: dict[str, str] = {}
        """For the HTTP response."""

    async def next(self) -> list[StreamOutput]:
        """Return what was added since the last call; wait while that is nothing. Empty after the end."""
        return await self._stream.next()

    async def complete(self) -> None:
        """Wait for the end, or raise the ApiError that ended it."""
        while await self.next():
            pass
        if self.output.has_failed:
            raise self.failure(self.output.error)

    def failure(self, reason: str | None) -> ApiError:
        """Return the error that a client gets because the request failed."""
        reply = failed_reply(reason)
        if self._stream.engine_failed:
            return ApiError(503, reply.message, code="engine_failed", headers={"Retry-After": "5"})
        return ApiError.of(reply)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._engine.cancel(self.output.request.request_id)
            self._on_close(self.output)


async def complete(answers: Sequence[Answer]) -> list[OutputStream]:
    """All of several answers, or the ApiError that ended one."""
    # Each takes in its events as they come: read one after another, those of the last would all be taken in at once.
    completing = [asyncio.ensure_future(answer.complete()) for answer in answers]
    try:
        await asyncio.gather(*completing)
    finally:
        for task in completing:
            task.cancel()
    return [answer.output for answer in answers]


def close(answers: Iterable[Answer]) -> None:
    for answer in answers:
        answer.close()


async def merged(answers: Sequence[Answer]) -> AsyncIterator[tuple[int, list[StreamOutput]]]:
    """What comes of several answers, as it comes, with the place of each."""
    if len(answers) == 1:  # The usual case, without a task for it.
        while pieces := await answers[0].next():
            yield 0, pieces
        return
    waiting = {asyncio.ensure_future(answer.next()): place for place, answer in enumerate(answers)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                place = waiting.pop(task)
                if pieces := task.result():
                    waiting[asyncio.ensure_future(answers[place].next())] = place
                    yield place, pieces
    finally:
        for task in waiting:
            task.cancel()


async def unless_disconnected(http: HttpRequest, work: Awaitable[Result]) -> Result:
    """The result, or a cancelled piece of work and an ApiError nobody will read if the client goes away first."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(http))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(499, "the client went away")
        return await working
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
