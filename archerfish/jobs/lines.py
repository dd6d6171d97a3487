"""Answers the lines of a batch, several at once, until each has a result or was in flight when the engine failed."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from archerfish.api.errors import MISTAKE, error_reply
from archerfish.console import logger
from archerfish.errors import EngineError, UserError
from archerfish.jobs.capacity import Capacity, FailurePace
from archerfish.jobs.input_lines import InputDamaged, InputReader, LineSpan, unreadable
from archerfish.jobs.recorder import Entry
from archerfish.jobs.records import Batch, LineRecord, LineReply, LineResult, answered, error_result, unanswered
from archerfish.jobs.retrying_storage import RetryingStorage, Wait
from archerfish.jobs.work_store import FailedAttempts, LineProgress

AnswerLine = Callable[[str, bytes, str, str], Awaitable[LineResult | LineReply]]
"""Takes endpoint, body, custom_id and tenant, and returns the service's reply. The body has the bytes of the input.

Raises EngineError if the engine failed while it had the line, and NotNow if the line did not reach it.
"""

_LINES_AT_ONCE = 16  # Lines read from the input at once.


class NotNow(Exception):
    """The service cannot take the line at the moment, through no fault of the line: it is retried."""

    def __init__(self, reason: str, seconds: float | None = None) -> None:
        """`reason` is one of a few texts, without details. `seconds` is when to retry, if that is known."""
        super().__init__(reason)
        self.seconds = seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """Settings of the batch runner."""

    max_in_flight: int = 64
    """Maximum lines of all batches that are answered at once."""
    max_bytes_in_flight: int = 16 * 1024 * 1024
    """Maximum bytes of these lines. A line is started while there are fewer, so the last one may exceed the limit."""
    max_attempts: int = 3
    """Engine failures with a line alone in flight, after which the failure is the line's result."""
    group_size: int = 64
    """Results are saved at the latest when there are this many."""
    group_seconds: float = 0.05
    """Seconds that a result waits for others to be saved with."""
    poll_seconds: float = 1.0
    """Seconds between checks for changes without an event: batches of other processes, windows that have ended."""
    retry_seconds: float = 1.0
    """Seconds to wait after an engine failure, or if the service takes no line and does not say until when."""
    max_retry_seconds: float = 60.0
    """Longest wait in seconds for a service that takes no line."""
    max_failures: int = 2
    """Engine failures within `failure_window` after which no line is started until the window has passed."""
    failure_window: float = 61.0
    """Length in seconds of the window in which engine failures count."""
    storage_retry_seconds: float = 5.0
    """Seconds between retries while the disk is full."""


@dataclass(frozen=True, slots=True)
class RunnerContext:
    """Objects that all batches of a runner share."""

    answer: AnswerLine
    settings: RunnerSettings
    storage: RetryingStorage
    wait: Wait
    capacity: Capacity
    pace: FailurePace


class LineAnswers:
    """The lines of one batch that are being answered, and the numbers of those that were."""

    def __init__(
        self,
        batch: Batch,
        reader: InputReader,
        shared: RunnerContext,
        progress: LineProgress,
        record: Callable[[Entry], Awaitable[None]],
    ) -> None:
        self.news = asyncio.Event()
        self.answered = progress.answered
        """Numbers of the lines that have a result."""
        self.attempts = progress.attempts
        """Lines that were in flight when the engine failed, by number: how often each was so alone."""
        self._batch = batch
        self._reader = reader
        self._shared = shared
        self._record = record
        self._share = shared.capacity.join(self.news.set)
        self._source: Iterator[LineSpan] = iter(())
        self._next: deque[LineSpan] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._most_in_flight = shared.settings.max_in_flight
        """Most lines in flight: one after the service refused a line, and one more with each answer."""
        self._pauses: dict[type[Exception], asyncio.Future[Any]] = {}
        """Pauses by their cause. No line is started during a pause."""
        self._trial: Sequence[LineSpan] = ()
        """The group that has the engine to itself."""
        self._trial_failed = False
        self._reasons: set[str] = set()
        self._damage: InputDamaged | None = None
        self._stopping = False

    async def answer_all(self, lines: Iterator[LineSpan], check: Callable[[], Awaitable[None]]) -> None:
        """Answer lines until each has a result or was in flight when the engine failed.

        `check` is called before lines are started, and may raise; lines in flight then continue. Raises InputDamaged if
        a line is no longer there.
        """
        self._source = lines
        while True:
            await check()
            if self._damage is not None:
                raise self._damage
            await self._start_lines()
            if not self._in_flight and not self._next:
                await check()  # Lines that ended without a result because of a stop are not done.
                return
            await self.news.wait()
            self.news.clear()

    async def try_group(self, group: Sequence[LineSpan], check: Callable[[], Awaitable[None]]) -> list[LineSpan]:
        """Answer a group with nothing else in flight; return the lines that the engine failed with."""
        self._trial, self._trial_failed = group, False
        try:
            with self._shared.capacity.trial(self._share):
                await self.answer_all(iter(group), check)
        finally:
            self._trial, self._trial_failed = (), False
        return [line for line in group if line.number not in self.answered]

    def stop(self) -> None:
        """Stop: a line that ends without a result from now on is left as it was."""
        self._stopping = True

    async def finish(self, grace_seconds: float) -> None:
        """Give lines in flight some time, then cancel them."""
        self.stop()
        if self._in_flight and grace_seconds:
            await asyncio.wait(self._in_flight, timeout=grace_seconds)
        tasks = [*self._in_flight, *self._pauses.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._shared.capacity.leave(self._share)

    # -- which line is next ---------------------------------------------------------------------------------------

    async def _start_lines(self) -> None:
        if self._trial_failed:
            self._source, self._next = iter(()), deque()
        if not self._next:
            await self._read_on()
        while self._next and self._may_start():
            self._start(self._next.popleft())
            if not self._next:
                await self._read_on()

    def _may_start(self) -> bool:
        is_wide = len(self._in_flight) < self._most_in_flight
        return is_wide and not self._stopping and not self._is_pausing and self._share.may_start()

    async def _read_on(self) -> None:
        self._next.extend(await read_on(self._source, _LINES_AT_ONCE))

    def _start(self, line: LineSpan) -> None:
        task = asyncio.create_task(self._answer_line(line))
        self._in_flight.add(task)
        self._share.started(line.num_bytes)
        task.add_done_callback(partial(self._ended, line))

    def _ended(self, line: LineSpan, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._share.ended(line.num_bytes)

    # -- one line -------------------------------------------------------------------------------------------------

    async def _answer_line(self, line: LineSpan) -> None:
        try:
            body = line.short_body
            if body is None:  # Not earlier: long bodies of waiting lines would take much memory.
                body = await asyncio.to_thread(self._reader.body, line)
            record = await self._try(line, body)
        except InputDamaged as damage:
            self._damage = self._damage or damage
        except NotNow as refusal:
            self._refused(line, refusal)
        except EngineError as error:
            await self._failed_with(line, str(error))
        else:
            self._most_in_flight = min(self._most_in_flight + 1, self._shared.settings.max_in_flight)
            await self._save(record)

    async def _try(self, line: LineSpan, body: bytes) -> LineRecord:
        batch = self._batch
        try:
            result = await self._shared.answer(batch.endpoint, body, line.custom_id, batch.tenant)
            return answered(line.number, line.custom_id, result)
        except (NotNow, EngineError):
            raise
        except asyncio.CancelledError:
            if self._stopping:
                raise
            raise NotNow("the request was cancelled") from None
        except UserError as error:
            return answered(line.number, line.custom_id, error_result(error_reply(error)))
        except Exception:
            logger.exception("line %d of batch %s failed", line.number, batch.batch_id)
            return answered(line.number, line.custom_id, error_result(MISTAKE))

    async def _save(self, record: LineRecord) -> None:
        self.answered.add(record.line)
        await self._record(record)

    def _refused(self, line: LineSpan, refusal: NotNow) -> None:
        """Retry the line later. Until the service takes more, lines are tried one at a time."""
        if self._stopping:
            return
        settings = self._shared.settings
        if str(refusal) not in self._reasons:
            self._reasons.add(str(refusal))
            logger.info("lines of batch %s wait: %s", self._batch.batch_id, refusal)
        self._next.appendleft(line)
        self._most_in_flight = 1
        seconds = settings.retry_seconds if refusal.seconds is None else refusal.seconds
        self._pause(NotNow, min(seconds, settings.max_retry_seconds))

    async def _failed_with(self, line: LineSpan, reason: str) -> None:
        """Record an engine failure that the line may have caused; it is retried after all others."""
        if self._stopping:
            return  # A shutdown of the engine is not the line's fault.
        self._pause(EngineError, self._shared.pace.failed())
        self._trial_failed = bool(self._trial)
        is_alone = len(self._trial) == 1
        attempts = self.attempts[line.number] = self.attempts.get(line.number, 0) + is_alone
        if attempts >= self._shared.settings.max_attempts:
            message = f"the engine failed {attempts} times with this request alone in flight; last failure: {reason}"
            await self._save(unanswered(line.number, line.custom_id, "engine_error", message))
            return
        name, batch_id = "alone" if is_alone else "with others", self._batch.batch_id
        logger.warning(
            "engine failure with line %d of batch %s in flight %s; the line is retried: %s",
            line.number,
            batch_id,
            name,
            reason,
        )
        await self._record(FailedAttempts(line.number, attempts))

    # -- pauses ---------------------------------------------------------------------------------------------------

    @property
    def _is_pausing(self) -> bool:
        return any(not pause.done() for pause in self._pauses.values())

    def _pause(self, cause: type[Exception], seconds: float) -> None:
        """Start no line for so many seconds. During a pause, others with the same cause are ignored."""
        if cause in self._pauses and not self._pauses[cause].done():
            return
        self._pauses[cause] = asyncio.ensure_future(self._shared.wait(seconds))
        self._pauses[cause].add_done_callback(lambda _: self._share.rest(self._is_pausing))
        self._share.rest(True)


async def read_on(lines: Iterator[LineSpan], most: int) -> list[LineSpan]:
    """Return the next lines of an input, read in a thread."""
    try:
        return await asyncio.to_thread(lambda: list(islice(lines, most)))
    except OSError as error:  # Not retried: a generator that has raised does not continue.
        raise unreadable(error) from error
