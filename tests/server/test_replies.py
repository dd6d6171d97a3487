"""Large replies are made outside of the event loop."""

import asyncio
import threading
from typing import Any

import pytest

from archerfish.server import replies


class _Written:
    def __init__(self, size: int) -> None:
        self.size = size


class _Call:
    inputs: Any = None
    made_by = 0

    def reply(self, written: Any) -> dict[str, Any]:
        self.made_by = threading.get_ident()
        return {"count": len(written)}


@pytest.mark.parametrize(("sizes", "in_loop"), [([1, 2], True), ([replies._MOST_AT_ONCE, 1], False)])
def test_only_large_replies_leave_the_event_loop(sizes: list[int], in_loop: bool) -> None:
    call = _Call()
    written: Any = [_Written(size) for size in sizes]
    response = asyncio.run(replies.call_reply(call, written, {"X-One": "two"}))
    assert response.body == b'{"count":2}' and response.headers["X-One"] == "two"
    assert (call.made_by == threading.get_ident()) == in_loop
