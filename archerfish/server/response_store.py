"""Responses that are being written and those that are stored: in memory, with limits for each tenant."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from archerfish.api.bodies.responses import chat_messages
from archerfish.api.responses import ResponsesCall
from archerfish.errors import InvalidParameter
from archerfish.server.errors import ApiError
from archerfish.server.replies import RunningCall, event

MAX_RESPONSES = 1000
"""Responses that are stored for one tenant."""
MAX_BYTES = 64 * 1024 * 1024
"""Bytes that are stored for one tenant. The least recently read responses are dropped first."""


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


class ConversationHistory:
    """The messages of a conversation so far. A conversation that continues it shares them."""

    def __init__(self, added: bytes, before: "ConversationHistory | None" = None) -> None:
        """`added` are the latest messages, as JSON."""
        self._added = added
        self._before = before
        self.size: int = len(added) + (0 if before is None else before.size)

    @property
    def turns(self) -> list[bytes]:
        """Messages from the first to the latest, as JSON lists."""
        turns: list[bytes] = []
        history: ConversationHistory | None = self
        while history is not None:
            turns.append(history._added)
            history = history._before
        return turns[::-1]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that has ended."""

    response: bytes
    """JSON."""
    status: str
    history: ConversationHistory
    events: tuple[bytes, ...] | None = None
    """Its events, if they can be followed again."""

    @classmethod
    def of(
        cls,
        call: ResponsesCall,
        response: dict[str, Any],
        before: ConversationHistory | None,
        events: tuple[bytes, ...] | None = None,
    ) -> "StoredResponse":
        """`before` is the conversation that the response continues."""
        answer = msgspec.json.encode(chat_messages(response["output"]))
        history = ConversationHistory(answer, ConversationHistory(call.added, before))
        return cls(msgspec.json.encode(response), response["status"], history, events)

    @property
    def size(self) -> int:
        """Bytes that count towards the limit."""
        return len(self.response) + self.history.size + sum(len(event) for event in self.events or ())


class ResponseStore:
    """Responses by tenant and id: no tenant finds those of another."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._running: dict[tuple[str, str], BackgroundResponse] = {}
        self._stored: dict[str, OrderedDict[str, StoredResponse]] = {}
        self._num_bytes: dict[str, int] = {}

    def running(self, tenant: str, response_id: str) -> BackgroundResponse | None:
        """Return a response that is being written."""
        return self._running.get((tenant, response_id))

    def begin(self, tenant: str, response: BackgroundResponse) -> None:
        """Register a response that is being written."""
        self._running[tenant, response.response_id] = response

    def end(self, tenant: str, response_id: str, stored: StoredResponse | None) -> None:
        """Forget a response that was being written, and store it if `stored` is given and it was not deleted."""
        if self._running.pop((tenant, response_id), None) is not None and stored is not None:
            self.add(tenant, response_id, stored)

    def add(self, tenant: str, response_id: str, stored: StoredResponse) -> None:
        """Store a response that has ended."""
        if stored.size > self._max_bytes:
            return
        responses = self._stored.setdefault(tenant, OrderedDict())
        responses[response_id] = stored
        self._num_bytes[tenant] = self._num_bytes.get(tenant, 0) + stored.size
        while len(responses) > self._max_responses or self._num_bytes[tenant] > self._max_bytes:
            self.delete(tenant, next(iter(responses)))

    def find(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Return a response that has ended."""
        responses = self._stored.get(tenant, OrderedDict())
        if response_id in responses:
            responses.move_to_end(response_id)
        return responses.get(response_id)

    def delete(self, tenant: str, response_id: str) -> bool:
        """Delete a response, and cancel it if it is being written. Return whether there was one."""
        running = self._running.pop((tenant, response_id), None)
        if running is not None:
            running.cancel()
            return True
        stored = self._stored.get(tenant, OrderedDict()).pop(response_id, None)
        if stored is not None:
            self._num_bytes[tenant] -= stored.size
        return stored is not None

    def history(self, tenant: str, response_id: str) -> ConversationHistory:
        """Return the conversation that ends with a response; raise if it cannot be continued."""
        if self.running(tenant, response_id) is not None:
            raise InvalidParameter("previous_response_id", response_id, "it is still being written; wait for its end")
        stored = self.find(tenant, response_id)
        if stored is None:
            message = f"there is no stored response {response_id!r}; send the conversation itself"
            raise ApiError(400, message, param="previous_response_id", code="previous_response_not_found")
        if stored.status not in ("completed", "incomplete"):
            raise InvalidParameter("previous_response_id", response_id, f"it was not finished: {stored.status}")
        return stored.history
