"""Runs one batch from its first line to its last."""

from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from enum import Enum, auto
from functools import partial
from typing import BinaryIO

from archerfish.console import logger
from archerfish.jobs.bisection import isolate
from archerfish.jobs.input_lines import InputReader, LineSpan
from archerfish.jobs.lines import LineAnswers, RunnerContext, read_on
from archerfish.jobs.recorder import Recorder
from archerfish.jobs.records import Batch, BatchStatus
from archerfish.jobs.retrying_storage import TROUBLE
from archerfish.jobs.store import JobStore


class BatchEnd(Enum):
    """Reason why no more lines are started."""

    ANSWERED = auto()
    CANCELLED = auto()
    EXPIRED = auto()
    STOPPED = auto()


class _Ended(Exception):
    """Raised when no more lines are to be started."""

    def __init__(self, end: BatchEnd) -> None:
        super().__init__(end)
        self.end = end


class BatchRun:
    """One batch being answered. Whatever it has not recorded when it is killed, a later run answers again.

    Lines that were in flight when the engine failed are suspects: one of them may be what it failed with. They are
    written down as such and come last, in groups that have the engine to themselves. Lines that were in flight when
    this process was killed are none: nothing is known against them.
    """

    def __init__(self, store: JobStore, batch: Batch, shared: RunnerContext) -> None:
        self.batch = batch
        self._work = store.work
        self._files = store.files
        self._shared = shared
        self._lines: LineAnswers | None = None
        self._recorder: Recorder
        self._look = True
        self._stopping = False
        self._grace_seconds = 0.0

    # -- what the runner calls ------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have the batch checked for a cancellation or its expiry."""
        self._look = True
        self._wake()

    def stop(self, grace_seconds: float) -> None:
        """Start no more lines, and give those in flight this many seconds to finish."""
        self._stopping = True
        self._grace_seconds = grace_seconds
        if self._lines is not None:
            self._lines.stop()
        self._wake()

    async def run(self) -> BatchEnd:
        """Answer every line that has no result yet, until the batch ends early or all are done."""
        open_input = partial(self._files.open, self.batch.input_file_id, tenant=self.batch.tenant)
        with await self._shared.storage.do(open_input) as stream:
            return await self._run(stream)

    async def _run(self, stream: BinaryIO) -> BatchEnd:
        batch, shared, settings = self.batch, self._shared, self._shared.settings
        progress = await shared.storage.do(self._work.progress, batch.batch_id)
        self._recorder = Recorder(
            partial(self._work.record, batch.batch_id),
            shared.storage,
            group_size=settings.group_size,
            group_seconds=settings.group_seconds,
        )
        self._recorder.task.add_done_callback(lambda _: self._wake())
        reader = InputReader(stream)
        self._lines = LineAnswers(batch, reader, shared, progress, self._recorder.add)
        try:
            return await self._answer(reader, self._lines)
        finally:
            await self._settle(self._lines)

    async def _answer(self, reader: InputReader, lines: LineAnswers) -> BatchEnd:
        done, suspects = lines.answered, lines.attempts
        try:
            spans = self._find(reader)
            fresh = (line for line in spans if line.number not in done and line.number not in suspects)
            await lines.answer_all(fresh, self._check)
            while left := suspects.keys() - done:
                num_found = await self._try_suspects(reader, lines, left)
                await self._check()  # A search that was told to stop has not found all of them.
                if not num_found:
                    break  # The input has changed: it no longer has them.
        except _Ended as ended:
            return ended.end
        return BatchEnd.ANSWERED

    def _find(self, reader: InputReader) -> Iterator[LineSpan]:
        """Yield all requests of the input, until the search is to stop."""
        for line in reader.spans():
            if self._stopping:
                return
            yield line

    async def _settle(self, lines: LineAnswers) -> None:
        """Stop everything that is in progress for this batch, and save the answers so far."""
        await lines.finish(self._grace_seconds)
        try:
            await self._recorder.close()
        except TROUBLE as error:
            logger.warning(
                "%d results of batch %s could not be saved and will be computed again: %s",
                self._recorder.num_waiting,
                self.batch.batch_id,
                error,
            )

    # -- what ends it ---------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        """Raise _Ended if no more lines are to be started."""
        if self._recorder.task.done():
            await self._recorder.close()  # Raises the reason.
        if self._stopping:
            raise _Ended(BatchEnd.STOPPED)
        if self._work.now() >= self.batch.expires_at:
            raise _Ended(BatchEnd.EXPIRED)
        if self._look:
            self._look = False
            status = await self._shared.storage.do(self._work.status, self.batch.batch_id)
            if status is BatchStatus.CANCELLING:
                raise _Ended(BatchEnd.CANCELLED)

    def _wake(self) -> None:
        if self._lines is not None:
            self._lines.news.set()

    # -- suspects -------------------------------------------------------------------------------------------------

    async def _try_suspects(self, reader: InputReader, lines: LineAnswers, numbers: Collection[int]) -> int:
        """Try each suspect once more, first those that never failed alone. Return how many of them the input has."""
        in_company = {number for number in numbers if lines.attempts[number] == 0}

        async def trial(group: Sequence[LineSpan]) -> list[LineSpan]:
            return await lines.try_group(group, self._check)

        num_found = 0
        size = self._shared.settings.max_in_flight if in_company else 1
        async for group in self._groups(reader, in_company or numbers, size):
            num_found += len(group)
            await isolate(group, trial)
        return num_found

    async def _groups(self, reader: InputReader, numbers: Collection[int], size: int) -> AsyncIterator[list[LineSpan]]:
        """Yield the lines with these numbers, in groups of `size`."""
        spans = (line for line in self._find(reader) if line.number in numbers)
        while group := await read_on(spans, size):
            yield group
