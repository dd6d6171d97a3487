"""One request on its way through the engine: its events become text here, and its end is told to whoever counts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from starlette.requests import Request as HttpRequest

from archerfish.api.errors import failed_reply
from archerfish.api.writing import Writing
from archerfish.engine.async_engine import AsyncEngine
from archerfish.engine.outputs import RequestOutput, StreamOutput
from archerfish.metrics.requests import Usage
from archerfish.request import FinishReason, Request
from archerfish.server.errors import ApiError
from archerfish.tokenizer import Tokenizer

Result = TypeVar("Result")

_FROM_WORST = (FinishReason.ERROR, FinishReason.ABORT, FinishReason.LENGTH, FinishReason.STOP)


class Answer:
    """What is being written for one request. Must be closed, whatever happens; closing early cancels it."""

    def __init__(
        self,
        engine: AsyncEngine,
        request: Request,
        prompt: str | None,
        tokenizer: Tokenizer | None,
        clock: Callable[[], float],
        on_close: Callable[["Answer"], None],
    ) -> None:
        self.request = request
        self._engine = engine
        self._clock = clock
        self._on_close = on_close
        self.written = Writing(request, prompt, tokenizer, self._stop_sequence)
        self._stream = engine.submit(request)
        self._closed = False
        self.headers: dict[str, str] = {}
        """For the HTTP response."""

    @property
    def output(self) -> RequestOutput:
        """As far as it has come."""
        return self.written.output

    @property
    def usage(self) -> Usage:
        return self.written.usage

    @property
    def finish_reason(self) -> FinishReason:
        """Of all its answers together: the worst."""
        reasons = {answer.finish_reason or FinishReason.ABORT.value for answer in self.output.outputs}
        return next(reason for reason in _FROM_WORST if reason.value in reasons)

    async def next(self) -> list[StreamOutput]:
        """What was added since the last call; waits if that is nothing. Empty after the end."""
        while not self.written.finished:
            events = await self._stream.next()
            if not events:
                break
            if pieces := self.written.add(events, self._clock()):
                return pieces
        return []

    async def complete(self) -> None:
        """Wait for all of it, or raise the ApiError that ended it."""
        while await self.next():
            pass
        if self.written.has_failed:
            raise self.failure(self.written.error)

    def failure(self, reason: str | None) -> ApiError:
        """Why it could not be finished."""
        told = failed_reply(reason)
        if self._stream.engine_failed:
            return ApiError(503, told.message, code="engine_failed", headers={"Retry-After": "5"})
        return ApiError.of(told)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._engine.cancel(self.request.request_id)
            self._on_close(self)

    def _stop_sequence(self, request_id: str, index: int) -> None:
        self._engine.cancel(request_id, index, FinishReason.STOP)


async def complete(answers: Sequence[Answer]) -> list[Writing]:
    """All of several answers, or the ApiError that ended one."""
    # Each takes in its events as they come: read one after another, those of the last would all be taken in at once.
    completing = [asyncio.ensure_future(answer.complete()) for answer in answers]
    try:
        await asyncio.gather(*completing)
    finally:
        for task in completing:
            task.cancel()
    return [answer.written for answer in answers]


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
