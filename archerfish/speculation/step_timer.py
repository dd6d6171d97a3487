"""Which steps are timed, and what is learned of them. Knows plans and times; not who guesses, nor what.

Looking at the clock takes time, so few steps without guesses are timed; and what follows a step of another kind is no
measure: it finds the machine's caches full of other things.
"""

from collections.abc import Callable
from dataclasses import dataclass

from archerfish.scheduling.plan import Plan
from archerfish.speculation.cost_model import Lengths, Step
from archerfish.speculation.exploration_budget import Account

Clock = Callable[[], float]

_ASKED_ON_END = 64
"""Steps with room for guesses, after which some are made without."""
_DISTURBANCE = 2.5
"""What it costs to look whether anybody should be asked, against the time it takes: the step that follows is slower."""
_PLAIN_TIMED, _KNOWN_PLAIN_TIMED = 8, 128
"""One of so many steps without guesses is timed, and of those that are known well."""


@dataclass(slots=True)
class _Began:
    """A step whose time is known when the next one begins."""

    at: float
    is_asked: bool
    is_usual: bool
    """Its time says something of others."""
    planned: Step
    num_tokens: int
    """With guesses."""
    num_written: int = 0
    is_charged: bool = False
    """To the account."""
    drafting: float = 0.0
    """Seconds that a network spent on guesses for it."""
    left_out: float = 0.0
    """Seconds that say nothing of other steps."""


class Stopwatch:
    def __init__(self, lengths: Lengths, account: Account, clock: Clock) -> None:
        self._lengths = lengths
        self._account = account
        self._clock = clock
        self._last: _Began | None = None
        """The step that is under way, or was just made."""
        self._num_asked = 0
        """Steps with room for guesses, since one without was timed."""
        self._num_plain = self._num_untimed = 0
        """Steps without: on end, and since one was timed."""
        self._reads_prompt = False
        """The last step did."""

    @property
    def is_running(self) -> bool:
        return self._last is not None

    @property
    def is_asked(self) -> bool:
        """Whether the step that began has room for guesses."""
        return self._last is not None and self._last.is_asked

    @property
    def wants_plain(self) -> bool:
        """It is time to see what steps take without guesses."""
        return self._num_asked >= _ASKED_ON_END

    def times(self, num_tokens: int) -> bool:
        """Whether a step without guesses is timed: one of many, and only after another one."""
        rare = _KNOWN_PLAIN_TIMED if self._lengths.plain.is_known_well(num_tokens) else _PLAIN_TIMED
        return self._num_plain > 0 and (self._num_untimed >= rare or self.wants_plain)

    def pass_by(self) -> None:
        """A step without guesses is not timed."""
        self._num_plain += 1
        self._num_untimed += 1

    def begin(self, plan: Plan) -> float:
        """What guesses of the last step saved, in seconds, or less than nothing.

        It took from its start to this one's, unless there was nothing to do in the meantime.
        """
        now, last, saved = self._clock(), self._last, 0.0
        if last is not None and not plan.starts:
            saved = self._learn(last, now - last.at)
        self._last = None
        follows_prompt, self._reads_prompt = self._reads_prompt, any(chunk.length > 1 for chunk in plan.chunks)
        if any(chunk.max_draft_tokens for chunk in plan.chunks):
            self._num_asked += 1
            self._num_plain = 0
            planned = Step(plan.num_tokens, sum(chunk.samples for chunk in plan.chunks))
            self._last = _Began(now, True, not follows_prompt, planned, plan.num_tokens)
        elif self._reads_prompt:
            # No measure; and nobody waits for one where prompts never end.
            self._num_plain = self._num_asked = 0
        else:
            if self.times(plan.num_tokens):
                self._num_asked = self._num_untimed = 0
                self._last = _Began(now, False, True, Step(plan.num_tokens, 0), plan.num_tokens)
            self.pass_by()
        return saved

    def leave_out(self, seconds: float) -> None:
        """What was just done is no part of the step that is under way."""
        if self._last is not None:
            self._last.left_out += seconds

    def looked(self, seconds: float, num_drawn: int, *, in_vain: bool) -> None:
        """Before the next step it was seen whether anybody should be asked."""
        if not self.is_asked:
            self.leave_out(seconds)  # Where nobody guesses, nobody looks.
        if in_vain and self._lengths.plain:
            usual = self._lengths.step_seconds(num_drawn) * self._lengths.pace.factor
            self._account.spent(_DISTURBANCE * seconds / usual)

    def came_to(self, num_tokens: int, num_written: int, drafting: float, *, is_charged: bool) -> None:
        """What the step that is under way has with its guesses, and seconds that a network spent on them."""
        last = self._last
        assert last is not None
        last.num_tokens, last.num_written, last.drafting = num_tokens, num_written, drafting
        last.is_charged = is_charged

    def _learn(self, last: _Began, seconds: float) -> float:
        lengths = self._lengths
        if not last.is_asked:
            if last.num_tokens:
                lengths.plain.record(last.num_tokens, seconds - last.left_out)
            return 0.0
        if last.is_usual:
            times = lengths.drafted if last.drafting else lengths.times
            times.record(last.num_tokens, seconds - last.drafting - last.left_out)
        num_drawn = last.planned.num_drawn
        if not num_drawn or not lengths:
            return 0.0
        if last.is_charged:
            self._account.spent(lengths.steps_spent(last.planned, last.num_tokens, last.drafting))
        return last.num_written * lengths.token_seconds(num_drawn) * lengths.pace.factor - seconds
