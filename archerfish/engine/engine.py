"""The engine's step: plan, run, commit. Knows no torch, no text, no transport."""

from collections.abc import Callable
from contextlib import suppress

from archerfish.arch.cost import StepCost
from archerfish.errors import EngineStopped
from archerfish.execution.executor import Executor
from archerfish.metrics.steps import LastStep, StepCounts
from archerfish.request import FinishReason, Request, TokenEvent
from archerfish.scheduling.scheduler import Scheduler

Clock = Callable[[], float]


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
        """What the model's steps cost, for whoever measures them."""
        self.counts = StepCounts()
        self.last_step: LastStep | None = None
        self._executor = executor
        self._check_invariants = check_invariants
        self.stopped: str | None = None
        """Why no more work is taken."""

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

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

        A step that fails ends every open request with the reason, and the engine with it.
        """
        if self.stopped is not None:
            raise EngineStopped(f"the engine runs no more steps: {self.stopped}")
        started = self.clock()
        events: list[TokenEvent] = []
        try:
            plan = self.scheduler.plan(started)
            result = self._executor.run(plan)
            events = self.scheduler.commit(plan, result)
            if self._check_invariants:
                self.scheduler.check()
        except Exception as error:
            return events + self._fail(error)
        except BaseException:
            # An interrupt tore the step apart: whoever was running starts again from the queue.
            self.scheduler.abandon()
            raise
        if plan.chunks:
            num_generated, num_tokens = sum(map(len, result.tokens)), plan.num_tokens
            seconds = self.clock() - started
            self.counts.record(num_tokens, num_generated, seconds)
            self.last_step = LastStep(plan.chunks, num_tokens, seconds)
        return events

    def close(self) -> list[TokenEvent]:
        """End what is open and let go of the device. The ends, for whoever listens; none if it was stopped before."""
        if self.stopped is not None:
            return []
        self.stopped = "it was closed"
        events = self.scheduler.cancel_all(self.stopped)
        self._executor.close()
        return events

    def _fail(self, error: Exception) -> list[TokenEvent]:
        self.stopped = f"a step failed with {type(error).__name__}: {error}"
        events = self.scheduler.cancel_all(self.stopped)
        with suppress(Exception):  # A broken device may not even close; the reason that counts is the first.
            self._executor.close()
        return events
