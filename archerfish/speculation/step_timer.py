"""Decides which steps are timed, and feeds their latencies to the cost model and the exploration budget.

Reading the clock takes time, so few plain steps are timed; and a step after one of another kind is not representative:
it finds the machine's caches full of other things.
"""

from collections.abc import Callable
from dataclasses import dataclass

from archerfish.scheduling.plan import Plan
from archerfish.speculation.cost_model import PlannedStep, SpeculationCostModel
from archerfish.speculation.exploration_budget import ExplorationBudget

Clock = Callable[[], float]

_MAX_SPECULATIVE_RUN = 64
"""Steps with drafts after which some are run without, to measure them."""
_DISTURBANCE = 2.5
"""Cost of looking for hints as a multiple of its time: the step that follows is slower."""
_PLAIN_INTERVAL, _KNOWN_PLAIN_INTERVAL = 8, 128
"""One of so many plain steps is timed, and of those whose latency is well known."""


@dataclass(slots=True)
class _TimedStep:
    """A step whose latency is known when the next one begins."""

    started: float
    is_speculative: bool
    is_representative: bool
    """Its latency says something of other steps."""
    planned: PlannedStep
    num_tokens: int
    """Tokens of the step, draft tokens included."""
    num_written: int = 0
    is_charged: bool = False
    """It is debited to the budget."""
    drafting_seconds: float = 0.0
    excluded_seconds: float = 0.0
    """Seconds that say nothing of other steps."""


class StepTimer:
    """Times steps from the beginning of one to that of the next."""

    def __init__(self, cost_model: SpeculationCostModel, budget: ExplorationBudget, clock: Clock) -> None:
        self._cost_model = cost_model
        self._budget = budget
        self._clock = clock
        self._last: _TimedStep | None = None
        """The step in progress, or the one that has just ended."""
        self._num_speculative = 0
        """Steps with drafts since one without was timed."""
        self._num_plain = self._num_untimed = 0
        """Plain steps: consecutive ones, and those since one was timed."""
        self._reads_prompt = False
        """Whether the last step computed part of a prompt."""

    @property
    def is_running(self) -> bool:
        return self._last is not None

    @property
    def is_speculative(self) -> bool:
        """Whether the last step that began may have drafts."""
        return self._last is not None and self._last.is_speculative

    @property
    def wants_plain(self) -> bool:
        """Whether it is time to measure what steps take without drafts."""
        return self._num_speculative >= _MAX_SPECULATIVE_RUN

    def times_plain(self, num_tokens: int) -> bool:
        """Whether a plain step would be timed: one of many, and only after another one."""
        is_known = self._cost_model.plain.is_well_known(num_tokens)
        interval = _KNOWN_PLAIN_INTERVAL if is_known else _PLAIN_INTERVAL
        return self._num_plain > 0 and (self._num_untimed >= interval or self.wants_plain)

    def skip(self) -> None:
        """Count a plain step that is not timed."""
        self._num_plain += 1
        self._num_untimed += 1

    def begin_step(self, plan: Plan) -> float:
        """Begin a step, and return the estimated seconds that drafts of the last one saved; negative if they cost.

        A step lasts until the next one begins, unless the engine was idle in between.
        """
        now, last, saved = self._clock(), self._last, 0.0
        if last is not None and not plan.starts:
            saved = self._learn(last, now - last.started)
        self._last = None
        follows_prompt, self._reads_prompt = self._reads_prompt, any(chunk.length > 1 for chunk in plan.chunks)
        if any(chunk.max_draft_tokens for chunk in plan.chunks):
            self._num_speculative += 1
            self._num_plain = 0
            planned = PlannedStep(plan.num_tokens, sum(chunk.samples for chunk in plan.chunks))
            self._last = _TimedStep(now, True, not follows_prompt, planned, plan.num_tokens)
        elif self._reads_prompt:
            # Not representative; and where prompts never end, nothing waits for a plain step.
            self._num_plain = self._num_speculative = 0
        else:
            if self.times_plain(plan.num_tokens):
                self._num_speculative = self._num_untimed = 0
                self._last = _TimedStep(now, False, True, PlannedStep(plan.num_tokens, 0), plan.num_tokens)
            self.skip()
        return saved

    def exclude(self, seconds: float) -> None:
        """Exclude what was just done from the latency of the step in progress."""
        if self._last is not None:
            self._last.excluded_seconds += seconds

    def record_lookup(self, seconds: float, num_sampled: int, *, in_vain: bool) -> None:
        """Record the time that looking for hints took before the next step."""
        if not self.is_speculative:
            self.exclude(seconds)  # Without speculation there would be no lookup.
        if in_vain and self._cost_model.plain:
            usual = self._cost_model.step_seconds(num_sampled) * self._cost_model.slowdown.factor
            self._budget.debit(_DISTURBANCE * seconds / usual)

    def record_drafts(self, num_tokens: int, num_written: int, drafting_seconds: float, *, is_charged: bool) -> None:
        """Record the step's tokens, draft tokens included, those it wrote, and the seconds of drafter passes."""
        last = self._last
        assert last is not None
        last.num_tokens, last.num_written, last.drafting_seconds = num_tokens, num_written, drafting_seconds
        last.is_charged = is_charged

    def _learn(self, last: _TimedStep, seconds: float) -> float:
        cost_model = self._cost_model
        if not last.is_speculative:
            if last.num_tokens:
                cost_model.plain.record(last.num_tokens, seconds - last.excluded_seconds)
            return 0.0
        if last.is_representative:
            latency = cost_model.drafter_steps if last.drafting_seconds else cost_model.speculative
            latency.record(last.num_tokens, seconds - last.drafting_seconds - last.excluded_seconds)
        num_sampled = last.planned.num_sampled
        if not num_sampled or not cost_model:
            return 0.0
        if last.is_charged:
            self._budget.debit(cost_model.extra_steps(last.planned, last.num_tokens, last.drafting_seconds))
        return last.num_written * cost_model.token_seconds(num_sampled) * cost_model.slowdown.factor - seconds
