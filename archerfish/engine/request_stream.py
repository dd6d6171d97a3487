"""A request that runs in the engine process: its events wait here until they are read, and are then output."""

import asyncio
from collections import deque
from collections.abc import Callable

from archerfish.engine.outputs import OutputStream, StreamOutput
from archerfish.request import FinishReason, TokenEvent


class RequestStream:
    """The output of one request as it grows. Several events are read at once if the reader is slow."""

    def __init__(self, output: OutputStream, clock: Callable[[], float]) -> None:
        self.request = output.request
        self.output = output
        self.engine_failed = False
        """Whether the request ended because the engine did: another attempt may succeed."""
        self._clock = clock
        self._events: deque[TokenEvent] = deque()
        self._news = asyncio.Event()
        self._unended = set(range(self.request.params.n))

    @property
    def has_arrived(self) -> bool:
        """Whether no further events will come, though not all of them may have been read."""
        return not self._unended

    async def next(self) -> list[StreamOutput]:
        """Return what was added since the last call; wait while that is nothing. Empty after the end."""
        while not self.output.finished:
            while not self._events and not self.has_arrived:
                self._news.clear()
                await self._news.wait()
            if not self._events:
                break
            events = list(self._events)
            self._events.clear()
            if pieces := self.output.add_all(events, self._clock()):
                return pieces
        return []

    def push(self, event: TokenEvent) -> None:
        """Append an event."""
        self._events.append(event)
        if event.finish_reason is not None:
            self._unended.discard(event.sequence_index)
        self._news.set()

    def give_up(self, index: int | None = None) -> None:
        """Expect no more events of one answer, or of all of them."""
        if index is None:
            self._unended.clear()
        else:
            self._unended.discard(index)
        self._news.set()

    def fail(self, error: str) -> None:
        """End all unfinished answers because the engine has ended."""
        self.engine_failed = True
        self.refuse(error)

    def refuse(self, error: str) -> None:
        """End all unfinished answers with an error."""
        for index in sorted(self._unended):
            self.push(TokenEvent(self.request.request_id, index, [], finish_reason=FinishReason.ERROR, error=error))
