"""One batch from its first line to its last: what is read, which lines come when, what ends it early."""

from collections.abc import AsyncIterator, Collection, Sequence
from enum import Enum, auto
from functools import partial
from typing import BinaryIO

from archerfish.console import logger
from archerfish.jobs.lines import LineAnswers, Shared, read_on
from archerfish.jobs.patience import TROUBLE
from archerfish.jobs.recorder import Recorder
from archerfish.jobs.records import Batch, BatchStatus
from archerfish.jobs.store import JobStore
from archerfish.jobs.suspects import isolate
from archerfish.jobs.validate import InputLine, read_lines


class End(Enum):
    """Why no more lines are started."""

    ANSWERED = auto()
    CANCELLED = auto()
    EXPIRED = auto()
    STOPPED = auto()


class _Ended(Exception):
    """No more lines are to be started."""

    def __init__(self, end: End) -> None:
        super().__init__(end)
        self.end = end


class BatchRun:
    """One batch being answered. Whatever it has not recorded when it is killed, a later run answers again.

    Lines that were in flight when the engine failed are suspects: one of them may be what it failed with. They are
    written down as such and come last, in groups that have the engine to themselves. Lines that were in flight when
    this process was killed are none: nothing is known against them.
    """

    def __init__(self, store: JobStore, batch: Batch, shared: Shared) -> None:
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
        """Look whether the batch was cancelled or has expired."""
        self._look = True
        self._tell_news()

    def stop(self, grace_seconds: float) -> None:
        """Start no more lines; those in flight have this long to finish."""
        self._stopping = True
        self._grace_seconds = grace_seconds
        if self._lines is not None:
            self._lines.stop()
        self._tell_news()

    async def run(self) -> End:
        """Answer every line that has no result yet, as far as nothing ends it before."""
        batch, shared, settings = self.batch, self._shared, self._shared.settings
        progress = await shared.storage.do(self._work.progress, batch.batch_id)
        self._recorder = Recorder(
            partial(self._work.record, batch.batch_id),
            shared.storage,
            group_size=settings.group_size,
            group_seconds=settings.group_seconds,
        )
        self._recorder.task.add_done_callback(lambda _: self._tell_news())
        self._lines = LineAnswers(batch, shared, progress, self._recorder.add)
        try:
            with await shared.storage.do(partial(self._files.open, batch.input_file_id, tenant=batch.tenant)) as stream:
                return await self._answer(stream, self._lines)
        finally:
            await self._settle(self._lines)

    async def _answer(self, stream: BinaryIO, lines: LineAnswers) -> End:
        done, suspects = lines.answered, lines.attempts
        try:
            fresh = (line for line in read_lines(stream) if line.number not in done and line.number not in suspects)
            await lines.answer_all(fresh, self._check)
            while left := suspects.keys() - done:
                if not await self._try_suspects(stream, lines, left):
                    break  # The input has changed: they are not in it any more.
        except _Ended as ended:
            return ended.end
        return End.ANSWERED

    async def _settle(self, lines: LineAnswers) -> None:
        """Nothing of this batch goes on after this, and what was answered is saved."""
        await lines.finish(self._grace_seconds)
        try:
            await self._recorder.close()
        except TROUBLE as error:
            logger.warning(
                "%d answers of batch %s could not be saved and will be made again: %s",
                self._recorder.num_waiting,
                self.batch.batch_id,
                error,
            )

    # -- what ends it ---------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        """Raise _Ended if no more lines are to be started."""
        if self._recorder.task.done():
            await self._recorder.close()  # Raises why it ended.
        if self._stopping:
            raise _Ended(End.STOPPED)
        if self._work.now() >= self.batch.expires_at:
            raise _Ended(End.EXPIRED)
        if self._look:
            self._look = False
            status = await self._shared.storage.do(self._work.status, self.batch.batch_id)
            if status is BatchStatus.CANCELLING:
                raise _Ended(End.CANCELLED)

    def _tell_news(self) -> None:
        if self._lines is not None:
            self._lines.news.set()

    # -- suspects -------------------------------------------------------------------------------------------------

    async def _try_suspects(self, stream: BinaryIO, lines: LineAnswers, numbers: Collection[int]) -> int:
        """Try each once more, those first that have never failed alone. How many were found in the input."""
        in_company = {number for number in numbers if lines.attempts[number] == 0}

        async def trial(group: Sequence[InputLine]) -> list[InputLine]:
            return await lines.try_group(group, self._check)

        num_found = 0
        size = self._shared.settings.max_in_flight if in_company else 1
        async for group in _groups(stream, in_company or numbers, size):
            num_found += len(group)
            await isolate(group, trial)
        return num_found


async def _groups(stream: BinaryIO, numbers: Collection[int], size: int) -> AsyncIterator[list[InputLine]]:
    """The lines with these numbers, so many at a time."""
    stream.seek(0)
    found = (line for line in read_lines(stream) if line.number in numbers)
    while group := await read_on(found, size):
        yield group
