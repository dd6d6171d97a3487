"""Requests whose form is new wait here until it was tried: tenants take turns. Knows no HTTP and no forms.

A trial takes up to a second of processor time, and trials run one after the other. They have a thread of their own, so
that files and batches never wait for them; and what one tenant sends never keeps another waiting for more than one trial.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from archerfish.server.errors import ApiError

Result = TypeVar("Result")
Turn = asyncio.Future[None]

_MOST_OF_TENANT = 32
"""Requests of one tenant that may wait. Ordinary forms take milliseconds."""
_MOST_OF_ALL = 256


class TrialQueue:
    """Runs one piece of work after the other in a thread, for each tenant in turn."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "trials")
        self._waiting: OrderedDict[str, deque[Turn]] = OrderedDict()
        """By tenant; the tenant whose turn is next comes first."""
        self._is_busy = False

    async def run(self, tenant: str, work: Callable[[], Result], *, is_bounded: bool = True) -> Result:
        """What the work returns. Raises an ApiError if too many wait already and the work `is_bounded`."""
        if is_bounded:
            self._check_capacity(tenant)
        turn: Turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
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
        if len(self._waiting.get(tenant, ())) >= _MOST_OF_TENANT:
            message = f"{_MOST_OF_TENANT} requests of yours with new response formats wait already; try again later"
            raise ApiError(429, message, code="too_many_formats", headers={"Retry-After": "2"})
        if sum(map(len, self._waiting.values())) >= _MOST_OF_ALL:
            message = "too many requests with new response formats are waiting; try again in a few seconds"
            raise ApiError(503, message, code="overloaded", headers={"Retry-After": "5"})

    def _start_next(self) -> None:
        if self._is_busy or not self._waiting:
            return
        tenant, turns = self._waiting.popitem(last=False)
        turn = turns.popleft()
        if turns:
            self._waiting[tenant] = turns  # Behind all others.
        self._is_busy = True
        turn.set_result(None)

    def _withdraw(self, tenant: str, turn: Turn) -> None:
        if turn.done() and not turn.cancelled():
            self._is_busy = False
            self._start_next()
            return
        turns = self._waiting[tenant]
        turns.remove(turn)
        if not turns:
            del self._waiting[tenant]
