"""The engine's step: plan, launch, commit. Knows no torch, no text, no transport."""

import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from archerfish.arch.cost import StepCost
from archerfish.errors import EngineStopped
from archerfish.execution.executor import Executor, LaunchedStep
from archerfish.metrics.state import EngineState, LastStep, StepCounts, record_step
from archerfish.request import FinishReason, Request, TokenEvent
from archerfish.scheduling.plan import Plan
from archerfish.scheduling.scheduler import Scheduler

Clock = Callable[[], float]


class _Flight(NamedTuple):
    """A step that was launched and is not committed."""

    plan: Plan
    launched: LaunchedStep
    started: float


class Engine:
    """Serves requests until it is closed, or until a step fails."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        *,
        cost: StepCost | None = None,
        check_invariants: bool = False,
    ) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self.cost = cost
        """Cost of the model's steps, for metrics."""
        self.counts = StepCounts()
        self.last_step: LastStep | None = None
        self._executor = executor
        self._in_flight: deque[_Flight] = deque()
        """Oldest first."""
        self._last_commit = -math.inf
        self._check_invariants = check_invariants
        self.stopped: str | None = None
        """Why no more work is taken."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything. Steps in flight are to be committed, even if all they were for is ended."""
        return bool(self._in_flight) or self.scheduler.has_work

    def add(self, request: Request) -> None:
        """Queue a request. A RequestError concerns this one alone."""
        if self.stopped is not None:
            raise EngineStopped(f"the engine takes no more work: {self.stopped}")
        self.scheduler.add(request)

    def cancel(
        self, request_id: str, index: int | None = None, reason: FinishReason = FinishReason.ABORT
    ) -> list[TokenEvent]:
        """End a request, or one of its sequences, at any moment."""
        return self.scheduler.cancel(request_id, index, reason)

    def step(self) -> list[TokenEvent]:
        """One forward pass over everything that can run; no events if nothing can.

        An executor that takes several steps is given the next ones before the oldest is waited for: so a device
        computes while the host plans, and while events are passed on. The events are those of the oldest.

        A step that fails ends every open request with the reason, and the engine with it.
        """
        if self.stopped is not None:
            raise EngineStopped(f"the engine runs no more steps: {self.stopped}")
        return self._step(self._executor.max_in_flight)

    def settle(self) -> list[TokenEvent]:
        """Commit what is in flight and launch nothing: where no step follows soon, nothing is left under way."""
        events: list[TokenEvent] = []
        while self._in_flight:
            events += self._step(0)
        return events

    def close(self) -> list[TokenEvent]:
        """End open requests and release the device. Return the end events; none if it was stopped before."""
        if self.stopped is not None:
            return []
        self.stopped = "it was closed"
        events = self.scheduler.cancel_all(self.stopped)
        self._drop_in_flight()
        self._executor.close()
        return events

    def state(self) -> EngineState:
        """Return what the engine reports of itself between two steps. Changes nothing."""
        scheduler, counts = self.scheduler, self.counts
        limits, pool, prefixes = scheduler.limits, scheduler.tables.pool, scheduler.prefix_counts
        num_free, num_cached = pool.num_free, pool.num_cached
        return EngineState(
            time=self.clock(),
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_waiting_tokens=scheduler.num_waiting_tokens,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            num_blocks=pool.num_blocks,
            num_free_blocks=num_free,
            num_cached_blocks=num_cached,
            num_blocks_in_use=pool.num_blocks - num_free - num_cached,
            num_steps=counts.num_steps,
            num_computed_tokens=counts.num_computed_tokens,
            num_generated_tokens=counts.num_generated_tokens,
            num_preemptions=scheduler.num_preemptions,
            num_prefix_tokens_queried=prefixes.num_queried,
            num_prefix_tokens_hit=prefixes.num_hit,
            busy_time=counts.busy_time,
            num_drafts=counts.num_drafts,
            num_draft_tokens=counts.num_draft_tokens,
            num_accepted_tokens=counts.num_accepted_tokens,
            accepted_per_position=tuple(counts.accepted_per_position),
            drafting_time=counts.drafting_time,
            saved_seconds=counts.saved_seconds,
            lost_seconds=counts.lost_seconds,
            last_step=None if self.last_step is None else record_step(self.last_step, self.cost),
        )

    def _step(self, most_in_flight: int) -> list[TokenEvent]:
        events: list[TokenEvent] = []
        try:
            while len(self._in_flight) < most_in_flight and self.scheduler.can_plan_ahead():
                started = self.clock()
                plan = self.scheduler.plan(started)
                if not plan.chunks:
                    break
                self._in_flight.append(_Flight(plan, self._executor.launch(plan), started))
            if self._in_flight:
                events = self._commit_oldest()
            if self._check_invariants:
                self.scheduler.check()
        except Exception as error:
            return events + self._fail(error)
        except BaseException:
            # An interrupt left the step incomplete: running sequences start again from the queue.
            self.scheduler.abandon()
            self._drop_in_flight()
            raise
        return events

    def _commit_oldest(self) -> list[TokenEvent]:
        plan, launched, started = self._in_flight[0]
        result = launched.result()
        self._in_flight.popleft()
        events = self.scheduler.commit(plan, result)
        now = self.clock()
        # LaunchedStep before the last commit, it had to wait for that one's step: no second is counted twice.
        seconds = now - max(started, self._last_commit)
        self._last_commit = now
        num_draft_tokens = sum(result.num_draft_tokens.values()) if result.num_draft_tokens else 0
        num_tokens = plan.num_tokens + num_draft_tokens
        if num_draft_tokens or result.drafting_seconds:
            self.counts.record_drafts(
                result.num_draft_tokens, result.tokens, result.drafting_seconds, result.saved_seconds
            )
        # Counted from events: tokens sampled for sequences that had ended do not count.
        self.counts.record(num_tokens, sum([len(event.token_ids) for event in events]), seconds)
        self.last_step = LastStep(plan.chunks, num_tokens, seconds, num_draft_tokens)
        return events

    def _fail(self, error: Exception) -> list[TokenEvent]:
        self.stopped = f"a step failed with {type(error).__name__}: {error}"
        events = self.scheduler.cancel_all(self.stopped)
        self._drop_in_flight()
        with suppress(Exception):  # A broken device may not even close; the reason that counts is the first.
            self._executor.close()
        return events

    def _drop_in_flight(self) -> None:
        """Wait for steps whose results are dropped: until then the device may write to their blocks."""
        dropped, self._in_flight = self._in_flight, deque()
        for step in dropped:
            with suppress(Exception):  # Only the reason for dropping it counts.
                step.launched.result()
