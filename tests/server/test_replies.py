"""Large replies are made outside of the event loop."""

import asyncio
import threading
from typing import Any

import pytest

from archerfish.server.replies import _MAX_SIZE_IN_LOOP, RunningCall


class _Call:
    inputs: Any = None
    made_by = 0

    def reply(self, outputs: Any) -> dict[str, Any]:
        self.made_by = threading.get_ident()
        return {"count": len(outputs)}


class _Stream:
    def __init__(self, size: int) -> None:
        self.size = size
        self.has_failed = False

    async def next(self) -> list[Any]:
        return []


@pytest.mark.parametrize(("sizes", "in_loop"), [([1, 2], True), ([_MAX_SIZE_IN_LOOP, 1], False)])
def test_only_large_replies_leave_the_event_loop(sizes: list[int], in_loop: bool) -> None:
    call: Any = _Call()
    running = RunningCall(call, lambda _stream: None)
    streams: Any = [_Stream(size) for size in sizes]
    running.streams += streams
    reply = asyncio.run(running.reply())
    assert reply == ({"count": 2}, b'{"count":2}')
    assert (call.made_by == threading.get_ident()) == in_loop
