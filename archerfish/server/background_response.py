"""Drives a response from its first token to its end, and gives its events to whoever follows. Knows no HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from archerfish.api.response_writer import Event, ResponseWriter
from archerfish.server.answers import Answer
from archerfish.server.errors import ApiError, as_api_error
from archerfish.server.sse import event


class BackgroundResponse:
    """A response being written, whether or not anybody listens."""

    def __init__(
        self, answer: Answer, writer: ResponseWriter, on_end: Callable[["BackgroundResponse"], None], *, is_told: bool
    ) -> None:
        """`is_told`: its events can be followed."""
        self.response = writer.response
        self.failure: ApiError | None = None
        self.events: list[bytes] = []
        self._answer = answer
        self._writer = writer
        self._on_end = on_end
        self.is_told = is_told
        self._ended = asyncio.Event()
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._write(), name=f"response {self.response_id}")

    @property
    def response_id(self) -> str:
        return str(self.response["id"])

    def cancel(self) -> None:
        """Write no more of it. Nothing happens to one that has ended."""
        self._answer.close()

    async def wait(self) -> None:
        await self._ended.wait()

    async def follow(self, start: int = 0) -> AsyncIterator[bytes]:
        """Its events from the beginning, or from this one on, up to its end."""
        assert self.is_told
        while True:
            for data in self.events[start:]:
                start += 1
                yield data
            if start >= len(self.events):
                if self._ended.is_set():
                    return
                await self._news.wait()

    async def _write(self) -> None:
        writer = self._writer
        try:
            self._tell(writer.begin())
            while pieces := await self._answer.next():
                for piece in pieces:
                    self._tell(writer.add(piece))
            self._end(self._answer.output.error)
        except Exception as error:
            self._end(as_api_error(error).detail)
        finally:
            self._answer.close()
            self._ended.set()
            self._wake()
            self._on_end(self)

    def _end(self, error: str | None) -> None:
        written = self._answer.output
        if error is not None or written.has_failed:
            self.failure = self._answer.failure(error)
        self._tell(self._writer.end(written, None if self.failure is None else self.failure.detail))

    def _tell(self, events: Iterable[Event]) -> None:
        for one in events:
            if self.is_told:
                self.events.append(event(one, one["type"]))
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
