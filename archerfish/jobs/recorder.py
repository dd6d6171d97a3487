"""Makes results of lines durable, many in one transaction."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from archerfish.jobs.records import LineRecord
from archerfish.jobs.retrying_storage import RetryingStorage
from archerfish.jobs.work_store import FailedAttempts

Entry = LineRecord | FailedAttempts


class Recorder:
    """Collects entries, and saves them as a group when there are enough or the first has waited long enough."""

    def __init__(
        self,
        save: Callable[[Sequence[Entry]], None],
        storage: RetryingStorage,
        *,
        group_size: int,
        group_seconds: float,
    ) -> None:
        self._save = save
        self._storage = storage
        self._group_size = group_size
        self._group_seconds = group_seconds
        self._waiting: list[Entry] = []
        self._closing = False
        self._news = asyncio.Event()
        self._full = asyncio.Event()
        self._saved = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @property
    def task(self) -> asyncio.Task[None]:
        """Saves groups; ends before `close` only if saving raised."""
        return self._task

    @property
    def num_waiting(self) -> int:
        """Number of entries that are not durable yet."""
        return len(self._waiting)

    async def add(self, entry: Entry) -> None:
        """Add an entry. It is added even if the caller is cancelled while it waits for capacity."""
        self._waiting.append(entry)
        self._news.set()
        if len(self._waiting) >= self._group_size:
            self._full.set()
        # A caller of add occupies its line's slot: while nothing can be saved, no new lines start.
        while len(self._waiting) > 2 * self._group_size and not self._task.done():
            self._saved.clear()
            await self._saved.wait()

    async def close(self) -> None:
        """Save what is left. Raises what saving raised, whenever that was."""
        self._closing = True
        self._news.set()
        self._full.set()
        await self._task

    async def _run(self) -> None:
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                if self._waiting:
                    await self._save_group()
                elif self._closing:
                    return
        finally:
            self._saved.set()

    async def _save_group(self) -> None:
        if not self._full.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._full.wait(), self._group_seconds)
        group = list(self._waiting)
        await self._storage.do(self._save, group)
        del self._waiting[: len(group)]
        self._saved.set()
        if self._waiting or self._closing:
            self._news.set()
        if len(self._waiting) < self._group_size and not self._closing:
            self._full.clear()
