"""Answers the lines of one batch: so many at once, each until it has a result. Knows no statuses but what ends it."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import islice
from typing import Any

from archerfish.api.errors import MISTAKE, error_reply
from archerfish.console import logger
from archerfish.errors import EngineError, UserError
from archerfish.jobs.patience import TROUBLE, PatientStorage, Wait
from archerfish.jobs.recorder import Recorder
from archerfish.jobs.records import (
    Batch,
    BatchError,
    BatchStatus,
    LineRecord,
    LineResult,
    answered,
    told,
    unanswered,
)
from archerfish.jobs.store import JobStore
from archerfish.jobs.validate import InputDamaged, InputLine, read_lines
from archerfish.jobs.work import Attempts

Answer = Callable[[str, Mapping[str, Any], str, str], Awaitable[LineResult]]
"""(endpoint, body, custom_id, tenant): the service's answer. Raises EngineError where the engine failed."""

_NOT_NOW = (429, 503)  # The service could not answer this time, which says nothing about the line.
_LINES_AT_ONCE = 16  # Read from the input in one go.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """How batches are run."""

    max_in_flight: int = 64
    """Lines that are being answered at once."""
    max_attempts: int = 5
    """Times a line is tried while the engine fails under it; then that is its result."""
    group_size: int = 64
    """Results that are saved at once, at the latest."""
    group_seconds: float = 0.05
    """How long a result waits for others to be saved with."""
    poll_seconds: float = 1.0
    """How often to look for what nobody has told: batches of other processes, windows that have ended."""
    retry_seconds: float = 1.0
    """How long to wait after the engine failed; twice as long after each further time."""
    max_retry_seconds: float = 60.0
    """The longest such wait."""
    storage_retry_seconds: float = 5.0
    """How often to try again while the disk is full."""


class End(Enum):
    """Why no more lines are started."""

    ANSWERED = auto()
    CANCELLED = auto()
    EXPIRED = auto()
    STOPPED = auto()


class BatchRun:
    """One batch being answered. Whatever it has not recorded when it is killed, a later run answers again."""

    def __init__(
        self,
        store: JobStore,
        batch: Batch,
        answer: Answer,
        settings: RunnerSettings,
        storage: PatientStorage,
        wait: Wait,
    ) -> None:
        self.batch = batch
        self._work = store.work
        self._files = store.files
        self._answer = answer
        self._settings = settings
        self._storage = storage
        self._wait = wait
        self._recorder: Recorder
        self._lines: Iterator[InputLine]
        self._next: deque[InputLine] = deque()
        self._suspects: deque[InputLine] = deque()
        """Lines that were in flight when the engine failed. Each runs alone: the guilty one fails by itself."""
        self._attempts: dict[int, int] = {}
        self._in_flight: set[asyncio.Task[None]] = set()
        self._alone = False
        self._num_failures = 0
        self._rest: asyncio.Future[Any] | None = None
        """While this lasts, the engine is given time to come back."""
        self._news = asyncio.Event()
        self._look = True
        self._stopping = False
        self._grace_seconds = 0.0
        self._ending = False

    # -- what the runner calls ------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look whether the batch was cancelled or has expired."""
        self._look = True
        self._news.set()

    def stop(self, grace_seconds: float) -> None:
        """Start no more lines; those in flight have this long to finish."""
        self._stopping = True
        self._grace_seconds = grace_seconds
        self._news.set()

    async def run(self) -> End:
        """Answer every line that has no result yet, as far as nothing ends it before."""
        batch, settings = self.batch, self._settings
        progress = await self._storage.do(self._work.progress, batch.batch_id)
        self._attempts = progress.attempts
        self._recorder = Recorder(
            partial(self._work.record, batch.batch_id),
            self._storage,
            group_size=settings.group_size,
            group_seconds=settings.group_seconds,
        )
        self._recorder.task.add_done_callback(lambda _: self._news.set())
        try:
            with await self._storage.do(partial(self._files.open, batch.input_file_id, tenant=batch.tenant)) as stream:
                self._lines = (line for line in read_lines(stream) if line.number not in progress.answered)
                end = await self._until_the_end()
            if end is End.STOPPED and self._in_flight:
                await asyncio.wait(self._in_flight, timeout=self._grace_seconds)
        finally:
            await self._settle()
        return end

    async def _settle(self) -> None:
        """Nothing of this batch goes on after this, and what was answered is saved."""
        self._ending = True
        tasks = [*self._in_flight, *([self._rest] if self._rest is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._recorder.close()
        except TROUBLE as error:
            logger.warning(
                "%d answers of batch %s could not be saved and will be made again: %s",
                self._recorder.num_waiting,
                self.batch.batch_id,
                error,
            )

    # -- which line is next ---------------------------------------------------------------------------------------

    async def _until_the_end(self) -> End:
        while True:
            if self._recorder.task.done():
                await self._recorder.close()  # Raises why it ended.
            end = await self._reason_to_end()
            if end is not None:
                return end
            await self._start_lines()
            if not self._in_flight and not self._suspects and not self._next:
                return End.ANSWERED
            await self._news.wait()
            self._news.clear()

    async def _reason_to_end(self) -> End | None:
        if self._stopping:
            return End.STOPPED
        if self._work.now() >= self.batch.expires_at:
            return End.EXPIRED
        if self._look:
            self._look = False
            status = await self._storage.do(self._work.status, self.batch.batch_id)
            if status is BatchStatus.CANCELLING:
                return End.CANCELLED
        return None

    async def _start_lines(self) -> None:
        if not self._suspects and not self._next:
            await self._read_on()
        while self._may_start():
            if not self._suspects:
                self._start(self._next.popleft())
            elif not self._in_flight:
                self._alone = True
                self._start(self._suspects.popleft())
            else:
                return  # First those in flight must be gone: a suspect goes without company.
            if not self._suspects and not self._next:
                await self._read_on()

    def _may_start(self) -> bool:
        is_resting = self._rest is not None and not self._rest.done()
        has_room = len(self._in_flight) < self._settings.max_in_flight and not self._alone
        return has_room and not is_resting and bool(self._suspects or self._next)

    async def _read_on(self) -> None:
        try:
            lines = await asyncio.to_thread(lambda: list(islice(self._lines, _LINES_AT_ONCE)))
        except OSError as error:  # Not waited out: a reader that has raised does not go on where it was.
            raise InputDamaged(BatchError("input_file_unreadable", f"the input cannot be read: {error}")) from error
        for line in lines:
            (self._suspects if line.number in self._attempts else self._next).append(line)

    def _start(self, line: InputLine) -> None:
        task = asyncio.create_task(self._answer_line(line))
        self._in_flight.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._alone = False
        self._news.set()

    # -- one line -------------------------------------------------------------------------------------------------

    async def _answer_line(self, line: InputLine) -> None:
        record = await self._try(line)
        if record is not None:
            await self._recorder.add(record)

    async def _try(self, line: InputLine) -> LineRecord | None:
        """The line's record, or None if it is to be tried again."""
        try:
            result = await self._answer(self.batch.endpoint, line.body, line.custom_id, self.batch.tenant)
            record = answered(line.number, line.custom_id, result)
        except asyncio.CancelledError:
            if self._ending:
                raise
            return await self._try_again(line, "the request was cancelled", None)
        except EngineError as error:
            return await self._try_again(line, str(error), None)
        except UserError as error:
            return answered(line.number, line.custom_id, told(error_reply(error)))
        except Exception:
            logger.exception("line %d of batch %s failed", line.number, self.batch.batch_id)
            return answered(line.number, line.custom_id, told(MISTAKE))
        if result.status_code in _NOT_NOW:
            return await self._try_again(line, f"the service answered with status {result.status_code}", record)
        self._num_failures = 0
        return record

    async def _try_again(self, line: InputLine, reason: str, record: LineRecord | None) -> LineRecord | None:
        """Put the line back for later, unless that was its last attempt: then the failure is its result."""
        if self._stopping or self._ending:
            return None  # An engine that is being shut down says nothing about the line.
        attempts = self._attempts[line.number] = self._attempts.get(line.number, 0) + 1
        self._give_time()
        if attempts >= self._settings.max_attempts:
            message = f"the engine failed {attempts} times with this request; the last time: {reason}"
            return record or unanswered(line.number, line.custom_id, "engine_error", message)
        logger.warning("line %d of batch %s will be tried again: %s", line.number, self.batch.batch_id, reason)
        self._suspects.append(line)
        await self._recorder.add(Attempts(line.number, attempts))
        return None

    def _give_time(self) -> None:
        """Wait before the next line; longer each time the engine fails without an answer in between."""
        if self._rest is not None and not self._rest.done():
            return
        self._num_failures += 1
        seconds = self._settings.retry_seconds * 2.0 ** min(self._num_failures - 1, 30)
        self._rest = asyncio.ensure_future(self._wait(min(seconds, self._settings.max_retry_seconds)))
        self._rest.add_done_callback(lambda _: self._news.set())
