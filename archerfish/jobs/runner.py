"""Runs the store's batches, those of each tenant one after another."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from archerfish.console import logger
from archerfish.errors import NotFound
from archerfish.jobs.batch_run import BatchEnd, BatchRun
from archerfish.jobs.capacity import Capacity, FailurePace
from archerfish.jobs.database import Claim
from archerfish.jobs.input_lines import InputDamaged
from archerfish.jobs.lines import AnswerLine, RunnerContext, RunnerSettings
from archerfish.jobs.records import Batch, BatchError, BatchStatus
from archerfish.jobs.retrying_storage import TROUBLE, RetryingStorage, Wait
from archerfish.jobs.store import JobStore
from archerfish.jobs.validate import InputLimits, validate

_MOST_TENANTS = 64
"""Tenants whose batches are answered at the same time."""
_OUTCOMES = {BatchEnd.ANSWERED: BatchStatus.COMPLETED, BatchEnd.EXPIRED: BatchStatus.EXPIRED}


class _Active(NamedTuple):
    """A batch that is being answered."""

    run: BatchRun
    task: asyncio.Task[None]


class _Stopping(Exception):
    """The runner is to stop: the next one repeats what it was doing for a batch."""


class BatchRunner:
    """Validates batches as they come, answers each tenant's oldest, and writes the files of those that have ended.

    Tenants do not wait for each other: a batch may take hours because its key has a low rate. Steps for one batch at a
    time, such as reading a whole input, are taken for each tenant in turn. It can be killed at any moment: the next
    runner on the same directory continues with the lines that have no result. Of several processes that share a
    directory, one runs batches and the others wait for its end.
    """

    def __init__(
        self,
        store: JobStore,
        answer: AnswerLine,
        *,
        limits: InputLimits | None = None,
        settings: RunnerSettings | None = None,
        wait: Wait = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`answer` runs in the event loop. `wait` and `clock` are parameters for tests."""
        self._store = store
        self._limits = limits or InputLimits()
        self._settings = settings = settings or RunnerSettings()
        self._storage = RetryingStorage(wait, settings.storage_retry_seconds)
        capacity = Capacity(settings.max_in_flight, settings.max_bytes_in_flight)
        pace = FailurePace(settings.max_failures, settings.failure_window, settings.retry_seconds, clock)
        self._shared = RunnerContext(answer, settings, self._storage, wait, capacity, pace)
        self._news = asyncio.Event()
        self._changed = asyncio.Event()
        self._stopping = False
        self._active: dict[str, _Active] = {}
        """Batches that are being answered, by tenant."""
        self._last_attended: dict[str, int] = {}
        """The last step of each tenant with a batch that waits for one."""
        self._num_attended = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def paused(self) -> str | None:
        """Reason why all batches pause, such as a full disk; None if they do not."""
        return self._storage.trouble

    def start(self) -> asyncio.Task[None]:
        """Run in the background, and return the task. It ends with `stop`, or with an unexpected error."""
        self._task = asyncio.create_task(self.run(), name="batches")
        self._task.add_done_callback(_report)
        return self._task

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Start no more lines, give those in flight some time, cancel the others, and save all results."""
        self._stopping = True
        self._storage.give_up()
        for active in self._active.values():
            active.run.stop(grace_seconds)
        self._news.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """Report from any thread that a batch was created or cancelled. Without it, the next regular check notices."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._look)

    async def finished(self, batch_id: str, *, tenant: str = "") -> Batch:
        """Wait for the end of a batch. The runner must be running."""
        while True:
            changed = self._changed
            batch = await asyncio.to_thread(self._store.batches.get, batch_id, tenant=tenant)
            if not batch.status.is_open:
                return batch
            await changed.wait()

    async def run(self) -> None:
        """Run until `stop`."""
        self._loop = asyncio.get_running_loop()
        claim = await self._take_claim()
        if claim is None:
            return
        try:
            await self._attend_all()
        except TROUBLE:
            if not self._stopping:
                raise
        finally:
            await self._stop_answering()
            claim.release()

    async def _take_claim(self) -> Claim | None:
        claim = self._store.work.claim()
        was_logged = False
        while not self._stopping:
            if await self._storage.do(claim.take):
                return claim
            if not was_logged:
                logger.info("another process runs the batches of %s; waiting for it to end", self._store.directory)
                was_logged = True
            await self._pause()
        claim.release()
        return None

    # -- each batch one step after another ------------------------------------------------------------------------

    async def _attend_all(self) -> None:
        await self._storage.do(self._store.files.sweep_outputs)
        for batch_id in await self._storage.do(self._store.work.ended_with_results):
            await self._storage.do(self._store.work.forget_results, batch_id)
        while not self._stopping:
            waiting = [batch for batch in await self._open_batches() if not self._is_active(batch)]
            self._start_answering(waiting)
            # One at a time: meanwhile, batches that are being answered may end. Starting the next ones has time.
            neglected = self._choose([batch for batch in waiting if not self._is_answerable(batch)])
            if neglected is not None:
                await self._caring_for(neglected, self._attend(neglected))
                self._notify_change()
            else:
                await self._pause()

    def _choose(self, batches: Sequence[Batch]) -> Batch | None:
        """Return the oldest batch of the tenant that has waited for the most steps; None if there is no batch."""
        tenants = {batch.tenant for batch in batches}
        self._last_attended = {name: last for name, last in self._last_attended.items() if name in tenants}
        chosen = min(batches, key=lambda batch: self._last_attended.get(batch.tenant, 0), default=None)
        if chosen is not None:
            self._num_attended += 1
            self._last_attended[chosen.tenant] = self._num_attended
        return chosen

    async def _open_batches(self) -> list[Batch]:
        for tenant, active in list(self._active.items()):
            if active.task.done():
                del self._active[tenant]
                await active.task
                self._notify_change()
        return await self._storage.do(self._store.work.open_batches)

    def _is_active(self, batch: Batch) -> bool:
        active = self._active.get(batch.tenant)
        return active is not None and active.run.batch.batch_id == batch.batch_id

    def _is_answerable(self, batch: Batch) -> bool:
        return batch.status is BatchStatus.IN_PROGRESS and self._store.work.now() < batch.expires_at

    def _start_answering(self, waiting: list[Batch]) -> None:
        for batch in filter(self._is_answerable, waiting):
            if self._stopping or len(self._active) >= _MOST_TENANTS:
                return
            if batch.tenant in self._active:
                continue
            run = BatchRun(self._store, batch, self._shared)
            task = asyncio.create_task(self._caring_for(batch, self._answer_lines(run)))
            task.add_done_callback(lambda _: self._news.set())
            self._active[batch.tenant] = _Active(run, task)

    async def _answer_lines(self, run: BatchRun) -> None:
        outcome = _OUTCOMES.get(await run.run())
        if outcome is not None:
            await self._storage.do(self._store.work.end, run.batch.batch_id, outcome)

    async def _attend(self, batch: Batch) -> None:
        """Take the next step of a batch that is not to be answered now."""
        if batch.status is BatchStatus.VALIDATING:
            await self._storage.do(self._validate, batch)
        elif batch.status is BatchStatus.IN_PROGRESS:
            await self._storage.do(self._store.work.end, batch.batch_id, BatchStatus.EXPIRED)
        else:
            await self._storage.do(self._store.work.close, batch)

    async def _caring_for(self, batch: Batch, step: Coroutine[Any, Any, None]) -> None:
        """Run the block as a step for a batch. An error of that batch alone ends it, and the others continue."""
        try:
            await step
            return
        except _Stopping:
            return
        except TROUBLE:
            raise  # Raised only while stopping; otherwise it is retried.
        except InputDamaged as damage:
            error = damage.error
        except NotFound as missing:
            error = BatchError("input_file_missing", f"the input cannot be read: {missing}", None, "input_file_id")
        except Exception:
            logger.exception("batch %s failed", batch.batch_id)
            error = BatchError("internal_error", "internal error; the service's log has the details")
        if batch.outcome is BatchStatus.FAILED:  # For the second time: writing its files failed, too.
            await self._storage.do(self._store.work.abandon, batch.batch_id, [error])
        else:
            await self._storage.do(self._store.work.end, batch.batch_id, BatchStatus.FAILED, [error])

    def _validate(self, batch: Batch) -> None:
        with self._store.files.open(batch.input_file_id, tenant=batch.tenant) as stream:
            verdict = validate(stream, batch.endpoint, self._limits, self._check_running)
        if verdict.errors:
            self._store.work.refuse(batch.batch_id, verdict.errors)
        else:
            self._store.work.begin(batch.batch_id, verdict.num_lines)

    def _check_running(self) -> None:
        if self._stopping:
            raise _Stopping

    # -- waiting --------------------------------------------------------------------------------------------------

    async def _pause(self) -> None:
        """Wait for an event, or until the next regular check."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), self._settings.poll_seconds)
        self._news.clear()
        for active in self._active.values():
            active.run.wake()

    def _look(self) -> None:
        self._news.set()

    def _notify_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _stop_answering(self) -> None:
        tasks = [active.task for active in self._active.values()]
        if not self._stopping:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("batches have stopped because of an internal error", exc_info=task.exception())
