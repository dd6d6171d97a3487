"""Requests whose response format is new wait here until it was tried: tenants take turns. Knows no formats.

A trial takes up to a second of processor time, and trials run one after the other. They have a thread of their own, so
that files and batches never wait for them; and the formats of one tenant delay those of another by one trial at most.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from archerfish.server.errors import ApiError
from archerfish.server.limits import TenantQueue

Result = TypeVar("Result")
Turn = asyncio.Future[None]

_MOST_OF_TENANT = 32
"""Requests of one tenant that may wait. Ordinary forms take milliseconds."""
_MOST_OF_ALL = 256


class TrialQueue:
    """Runs one piece of work after the other in a thread, for each tenant in turn."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "trials")
        self._waiting: TenantQueue[Turn] = TenantQueue()
        self._is_busy = False

    async def run(self, tenant: str, work: Callable[[], Result], *, is_bounded: bool = True) -> Result:
        """Run the work and return its result. Raise an ApiError if too many wait already and the work `is_bounded`."""
        if is_bounded:
            self._check_capacity(tenant)
        turn: Turn = asyncio.get_running_loop().create_future()
        self._waiting.push(tenant, turn)
        self._start_next()
        try:
            await turn
        except asyncio.CancelledError:
            self._withdraw(tenant, turn)
            raise
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._is_busy = False
            self._start_next()

    def close(self) -> None:
        """Give up what waits. The trial that is running ends by its own limits."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _check_capacity(self, tenant: str) -> None:
        if self._waiting.num_items(tenant) >= _MOST_OF_TENANT:
            message = f"{_MOST_OF_TENANT} of your requests with new response formats are waiting; try again later"
            raise ApiError(429, message, code="too_many_formats", headers={"Retry-After": "2"})
        if len(self._waiting) >= _MOST_OF_ALL:
            message = "too many requests with new response formats are waiting; try again in a few seconds"
            raise ApiError(503, message, code="overloaded", headers={"Retry-After": "5"})

    def _start_next(self) -> None:
        while not self._is_busy and self._waiting:
            turn = self._waiting.pop()
            if not turn.cancelled():
                self._is_busy = True
                turn.set_result(None)

    def _withdraw(self, tenant: str, turn: Turn) -> None:
        if not self._waiting.remove(tenant, turn) and not turn.cancelled():
            # Its turn had come, but it was cancelled before it could begin.
            self._is_busy = False
            self._start_next()
