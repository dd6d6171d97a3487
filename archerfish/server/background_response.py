"""Responses that are written whether or not a client follows them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from archerfish.api.responses import ResponsesCall
from archerfish.server.running_call import RunningCall
from archerfish.server.streaming import event


class BackgroundResponse:
    """A response that is being written by a task of its own, with its events for clients that follow it."""

    def __init__(
        self, running: RunningCall, call: ResponsesCall, on_end: Callable[["BackgroundResponse"], None]
    ) -> None:
        """`on_end` is called when nothing more will be written."""
        self.call = call
        self.has_events = call.is_streamed
        """Whether its events can be followed."""
        self.events: list[bytes] = []
        """Those that have happened, as server-sent events."""
        self._running = running
        self._on_end = on_end
        self._ended = asyncio.Event()
        self._news = asyncio.Event()
        self._chunks = running.chunks()
        self._task = asyncio.create_task(self._write(), name=f"response {self.response_id}")

    @property
    def response(self) -> dict[str, Any]:
        """The response as far as it is written."""
        return self.call.response

    @property
    def response_id(self) -> str:
        return str(self.response["id"])

    def cancel(self) -> None:
        """End the response where it is. One that has ended stays as it is."""
        self._running.close()

    async def wait(self) -> None:
        """Wait for the end."""
        await self._ended.wait()

    async def follow(self, start: int = 0) -> AsyncIterator[bytes]:
        """Yield its events from number `start` to the last."""
        assert self.has_events
        while True:
            for data in self.events[start:]:
                start += 1
                yield data
            if start >= len(self.events):
                if self._ended.is_set():
                    return
                await self._news.wait()

    async def _write(self) -> None:
        try:
            async for chunk in self._chunks:
                if self.has_events:
                    self.events.append(event(chunk, chunk["type"]))
                    self._wake()
        finally:
            self._ended.set()
            self._wake()
            self._on_end(self)

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
