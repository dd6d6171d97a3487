"""Runs the store's batches one after another, in the service's event loop. Knows no engine: answers are given to it."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from archerfish.console import logger
from archerfish.errors import NotFound
from archerfish.jobs.database import Claim
from archerfish.jobs.lines import Answer, BatchRun, End, RunnerSettings
from archerfish.jobs.patience import TROUBLE, PatientStorage, Wait
from archerfish.jobs.records import Batch, BatchError, BatchStatus
from archerfish.jobs.store import JobStore
from archerfish.jobs.validate import CheckBody, InputDamaged, InputLimits, validate

_OUTCOMES = {End.ANSWERED: BatchStatus.COMPLETED, End.EXPIRED: BatchStatus.EXPIRED}


class BatchRunner:
    """Validates batches as they come, answers the oldest, writes the files of those that have ended.

    It can be killed at any moment: the next runner on the same directory goes on with the lines that have no result.
    Where several processes share a directory, one of them runs and the others wait for its end.
    """

    def __init__(
        self,
        store: JobStore,
        answer: Answer,
        *,
        check_body: CheckBody | None = None,
        limits: InputLimits | None = None,
        settings: RunnerSettings | None = None,
        wait: Wait = asyncio.sleep,
    ) -> None:
        """`answer` runs in the event loop, `check_body` in a thread. `wait` is given for tests."""
        self._store = store
        self._answer = answer
        self._check_body = check_body
        self._limits = limits or InputLimits()
        self._settings = settings or RunnerSettings()
        self._wait = wait
        self._storage = PatientStorage(wait, self._settings.storage_retry_seconds)
        self._news = asyncio.Event()
        self._changed = asyncio.Event()
        self._stopping = False
        self._active: BatchRun | None = None
        self._answering: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def paused(self) -> str | None:
        """Why no batch goes on: a full disk. None while all is well."""
        return self._storage.trouble

    def start(self) -> asyncio.Task[None]:
        """Run in the background. The task ends with `stop`, or with an error that should not happen."""
        self._task = asyncio.create_task(self.run(), name="batches")
        self._task.add_done_callback(_report)
        return self._task

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Start no more lines, give those in flight some time, cancel the others, save what was answered."""
        self._stopping = True
        self._storage.give_up()
        if self._active is not None:
            self._active.stop(grace_seconds)
        self._news.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """A batch was created or cancelled. From any thread; without it, it is noticed at the next look."""
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
        told = False
        while not self._stopping:
            if await self._storage.do(claim.take):
                return claim
            if not told:
                logger.info("another process runs the batches of %s; waiting for its end", self._store.directory)
                told = True
            await self._pause()
        claim.release()
        return None

    # -- one batch after another ----------------------------------------------------------------------------------

    async def _attend_all(self) -> None:
        await self._storage.do(self._store.files.sweep_outputs)
        for batch_id in await self._storage.do(self._store.work.ended_with_results):
            await self._storage.do(self._store.work.forget_results, batch_id)
        while not self._stopping:
            waiting = [batch for batch in await self._open_batches() if not self._is_active(batch)]
            self._start_answering(waiting)
            # Only one, because meanwhile the batch that is being answered may have ended. Answerable ones have time.
            neglected = next((batch for batch in waiting if not self._is_answerable(batch)), None)
            if neglected is not None:
                await self._caring_for(neglected, self._attend(neglected))
                self._tell_change()
            else:
                await self._pause()

    async def _open_batches(self) -> list[Batch]:
        if self._answering is not None and self._answering.done():
            answering, self._answering, self._active = self._answering, None, None
            await answering
            self._tell_change()
        return await self._storage.do(self._store.work.open_batches)

    def _is_active(self, batch: Batch) -> bool:
        return self._active is not None and self._active.batch.batch_id == batch.batch_id

    def _is_answerable(self, batch: Batch) -> bool:
        return batch.status is BatchStatus.IN_PROGRESS and self._store.work.now() < batch.expires_at

    def _start_answering(self, waiting: list[Batch]) -> None:
        batch = next(filter(self._is_answerable, waiting), None)
        if self._active is None and batch is not None and not self._stopping:
            self._active = BatchRun(self._store, batch, self._answer, self._settings, self._storage, self._wait)
            self._answering = asyncio.create_task(self._caring_for(batch, self._answer_lines(self._active)))
            self._answering.add_done_callback(lambda _: self._news.set())

    async def _answer_lines(self, run: BatchRun) -> None:
        outcome = _OUTCOMES.get(await run.run())
        if outcome is not None:
            await self._storage.do(self._store.work.end, run.batch.batch_id, outcome)

    async def _attend(self, batch: Batch) -> None:
        """Take a batch that is not to be answered one step on."""
        if batch.status is BatchStatus.VALIDATING:
            await self._storage.do(self._validate, batch)
        elif batch.status is BatchStatus.IN_PROGRESS:
            await self._storage.do(self._store.work.end, batch.batch_id, BatchStatus.EXPIRED)
        else:
            await self._storage.do(self._store.work.close, batch)

    async def _caring_for(self, batch: Batch, step: Coroutine[Any, Any, None]) -> None:
        """Do a step for a batch. What goes wrong with it alone ends it, and the others go on."""
        try:
            await step
            return
        except TROUBLE:
            raise  # Only while stopping: before that it was waited out.
        except InputDamaged as damage:
            error = damage.error
        except NotFound as missing:
            error = BatchError("input_file_missing", f"the input cannot be read: {missing}", None, "input_file_id")
        except Exception:
            logger.exception("batch %s failed", batch.batch_id)
            error = BatchError("internal_error", "the service made a mistake; its log has the details")
        if batch.outcome is BatchStatus.FAILED:  # The second time: writing what there is fails, too.
            await self._storage.do(self._store.work.abandon, batch.batch_id, [error])
        else:
            await self._storage.do(self._store.work.end, batch.batch_id, BatchStatus.FAILED, [error])

    def _validate(self, batch: Batch) -> None:
        with self._store.files.open(batch.input_file_id, tenant=batch.tenant) as stream:
            verdict = validate(stream, batch.endpoint, self._check_body, self._limits)
        if verdict.errors:
            self._store.work.refuse(batch.batch_id, verdict.errors)
        else:
            self._store.work.begin(batch.batch_id, verdict.num_lines)

    # -- waiting --------------------------------------------------------------------------------------------------

    async def _pause(self) -> None:
        """Until there is news, or it is time to look for some."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), self._settings.poll_seconds)
        self._news.clear()
        if self._active is not None:
            self._active.wake()

    def _look(self) -> None:
        self._news.set()

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _stop_answering(self) -> None:
        if self._answering is not None:
            if not self._stopping:
                self._answering.cancel()
            with suppress(*TROUBLE, asyncio.CancelledError):
                await self._answering


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("batches are not run any more", exc_info=task.exception())
