"""What the engine does, as the service hears of it: totals that outlive its restarts, recent steps, utilization."""

from collections import deque
from itertools import zip_longest
from math import ceil
from typing import NamedTuple

from archerfish.machine.peak import Peak
from archerfish.metrics.aggregates import Histogram, RecentSums
from archerfish.metrics.state import EngineState, StepRecord
from archerfish.metrics.utilization import Utilization, Work, utilization

WINDOW = 60
"""Seconds that utilization looks back."""
RATE_WINDOW = 10
"""Seconds that rates of tokens look back."""
NUM_RECENT_STEPS = 60
PHASES = ("prefill", "decode")

_TOTALS = (
    "num_steps",
    "num_computed_tokens",
    "num_generated_tokens",
    "num_preemptions",
    "num_prefix_tokens_queried",
    "num_prefix_tokens_hit",
    "busy_time",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "drafting_time",
    "saved_seconds",
    "lost_seconds",
)
_TOKENS_PER_STEP = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
_SOONEST, _LATEST = 1, 600  # Bounds of Retry-After, in seconds.


class _Sums(NamedTuple):
    """What is added up over recent seconds."""

    sequences: float
    seats: float
    """Sequences that the steps could have had."""
    prefill_tokens: float
    computed_tokens: float
    generated_tokens: float
    busy_time: float
    step_time: float
    prefill_flops: float
    decode_flops: float
    prefill_bytes: float
    decode_bytes: float


class TokenRates(NamedTuple):
    """Per second."""

    prompt: float
    generated: float


class EngineMetrics:
    """Hears every state. A new engine counts from zero again: totals of the ones before are kept apart."""

    def __init__(self, now: float) -> None:
        self.state: EngineState | None = None
        """The last one heard; None while there is no engine."""
        self.num_restarts = 0
        self.tokens_per_step = Histogram(_TOKENS_PER_STEP)
        self.steps: deque[StepRecord] = deque(maxlen=NUM_RECENT_STEPS)
        self.flops = dict.fromkeys(PHASES, 0.0)
        """Since the start."""
        self.bytes_read = dict.fromkeys(PHASES, 0.0)
        self._before: dict[str, float] = dict.fromkeys(_TOTALS, 0)
        """Totals of engines that are gone."""
        self._accepted_before: list[int] = []
        self._recent = RecentSums(len(_Sums._fields), WINDOW, now)

    def hear(self, state: EngineState, now: float) -> None:
        known = self.state
        if known is not None and any(getattr(state, name) < getattr(known, name) for name in _TOTALS):
            self.restarted()
            known = None
        self.state = state
        is_new = state.num_steps > (known.num_steps if known is not None else 0)
        if is_new and state.last_step is not None:
            self._hear_step(state.last_step, state, known, now)

    def restarted(self) -> None:
        """The engine is gone, and another one will count from zero."""
        self.num_restarts += 1
        for name in _TOTALS:
            self._before[name] = self.total(name)
        self._accepted_before = self.accepted_per_position
        self.state = None

    def total(self, name: str) -> float:
        """One of an engine's totals, over all engines there have been."""
        current: float = getattr(self.state, name) if self.state is not None else 0
        return self._before[name] + current

    @property
    def accepted_per_position(self) -> list[int]:
        """How often the first draft token was accepted, the second, and so on, over all engines there have been."""
        now = self.state.accepted_per_position if self.state is not None else ()
        return [sum(counts) for counts in zip_longest(self._accepted_before, now, fillvalue=0)]

    def token_rates(self, now: float) -> TokenRates:
        span = self._recent.over(RATE_WINDOW, now)
        if span.seconds <= 0:
            return TokenRates(0.0, 0.0)
        sums = _Sums(*span.sums)
        return TokenRates(sums.prefill_tokens / span.seconds, sums.generated_tokens / span.seconds)

    def occupancy(self, now: float) -> float:
        """Share of the places for sequences that recent steps filled."""
        sums = self._sums(now)
        return sums.sequences / sums.seats if sums.seats else 0.0

    def utilization(self, peak: Peak | None, now: float) -> Utilization | None:
        """Over the recent steps; None without any, or without a peak to compare with."""
        sums = self._sums(now)
        if peak is None or sums.step_time <= 0:
            return None
        work = Work(
            prefill_flops=sums.prefill_flops,
            decode_flops=sums.decode_flops,
            prefill_bytes=sums.prefill_bytes,
            decode_bytes=sums.decode_bytes,
        )
        return utilization(work, sums.step_time, peak)

    def retry_after(self, num_tokens_waiting: int, now: float) -> int:
        """Whole seconds in which so many tokens can be computed, at the rate of recent steps."""
        sums = self._sums(now)
        num_tokens, seconds = sums.computed_tokens, sums.busy_time
        if not num_tokens:
            num_tokens, seconds = self.total("num_computed_tokens"), self.total("busy_time")
        if not num_tokens:
            return _SOONEST
        return min(max(ceil(num_tokens_waiting * seconds / num_tokens), _SOONEST), _LATEST)

    def _sums(self, now: float) -> _Sums:
        return _Sums(*self._recent.over(WINDOW, now).sums)

    def _hear_step(self, step: StepRecord, state: EngineState, known: EngineState | None, now: float) -> None:
        self.steps.append(step)
        self.tokens_per_step.observe(step.num_tokens)
        self.flops["prefill"] += step.prefill_flops
        self.flops["decode"] += step.decode_flops
        self.bytes_read["prefill"] += step.prefill_bytes
        self.bytes_read["decode"] += step.decode_bytes
        sums = _Sums(
            sequences=step.num_sequences,
            seats=state.max_num_seqs,
            prefill_tokens=step.prefill_tokens,
            computed_tokens=state.num_computed_tokens - (known.num_computed_tokens if known is not None else 0),
            generated_tokens=state.num_generated_tokens - (known.num_generated_tokens if known is not None else 0),
            busy_time=state.busy_time - (known.busy_time if known is not None else 0.0),
            step_time=step.seconds,
            prefill_flops=step.prefill_flops,
            decode_flops=step.decode_flops,
            prefill_bytes=step.prefill_bytes,
            decode_bytes=step.decode_bytes,
        )
        self._recent.add(sums, now)
