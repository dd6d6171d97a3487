"""A latency model of steps by their number of tokens, learned from the steps that were run.

Other processes use the machine, too: for some seconds everything may take half as long again. So latencies are those of
the last few dozen steps of a size, and no single one counts for much.
"""

import bisect
from collections.abc import Mapping
from typing import NamedTuple

_ASSUMED_SLOPE = 0.2
"""Share of a one-token step that another token is assumed to add, until measured: more than on most machines."""
_MIN_WEIGHT = 0.03
"""Weight of a new measurement against what is known of its size, once that is a mean of many."""
_MAX_RATIO = 2.0
"""A latency so much longer than what is known counts as no more than that: mostly another process had the machine."""
_NUM_BEST = 3
"""Measurements of a size of which the best counts: the latency of a cold start does not return."""
_NUM_COLD = 4
"""Measurements that are ignored where an expectation exists: the first steps take longer."""
_NEAR = 2
"""Sizes that differ by a larger factor say little of those between them."""
_REACH = 4
"""Multiple of the largest well-known size beyond which what is known says nothing."""
_TOLERANCE = 0.02
"""Relative change of what is known of a size that leaves the curve valid."""
_MAX_EXACT_SIZE = 16
"""Up to so many tokens each number has its own latency; beyond, sizes that differ by an eighth share one."""


class _Curve(NamedTuple):
    """Sizes, and seconds that never fall."""

    sizes: list[int]
    seconds: list[float]


class StepLatencyModel:
    """Seconds by number of tokens: measured where there were steps, interpolated between them and beyond."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._num_recorded: dict[int, int] = {}
        self._expected: dict[int, float] = {}
        """Seconds assumed of sizes of which no step was run."""
        self._curve: _Curve | None = None
        """Lazily built interpolation curve; None when stale."""
        self._curve_seconds: dict[int, float] = {}
        """Measurements that the curve was built from."""
        self._lookups: dict[float, float] = {}
        """Memoized lookups on the curve."""
        self._num_cold = 0
        self.total = 0.0
        """Sum of all seconds recorded, as measured."""

    def __bool__(self) -> bool:
        """Whether anything is known."""
        return bool(self._seconds or self._expected)

    def unmeasured(self) -> "StepLatencyModel":
        """Return a model with the same assumptions, and nothing measured."""
        other = StepLatencyModel()
        other._expected = dict(self._expected)
        return other

    def expect(self, num_tokens: int, seconds: float) -> None:
        """Assume a latency from a trial without the overhead of a step. Of several trials the fastest counts."""
        self._expected[num_tokens] = min(seconds, self._expected.get(num_tokens, seconds))
        self._curve = None

    def record(self, num_tokens: int, seconds: float) -> None:
        """Learn from a step of so many tokens."""
        self.total += seconds
        if self._expected and self._num_cold < _NUM_COLD:
            self._num_cold += 1
            return
        size = _size(num_tokens)
        # Scaled to what a step of exactly this size would take.
        seconds *= size / num_tokens if num_tokens > _MAX_EXACT_SIZE else 1.0
        count = self._num_recorded[size] = self._num_recorded.get(size, 0) + 1
        before = self._seconds.get(size, seconds)
        if count <= _NUM_BEST:
            self._seconds[size] = min(before, seconds)
        else:
            self._seconds[size] = before + max(_MIN_WEIGHT, 1 / count) * (min(seconds, _MAX_RATIO * before) - before)
        in_curve = self._curve_seconds.get(size, 0.0)
        if count <= _NUM_BEST or abs(self._seconds[size] - in_curve) > _TOLERANCE * in_curve:
            self._curve = None

    def forget_beyond(self, num_tokens: int) -> None:
        """Forget what is known of larger steps: it may have been an accident, and is to be measured again."""
        for size in [size for size in self._seconds if size > num_tokens]:
            del self._seconds[size], self._num_recorded[size]
        self._curve = None

    def seconds(self, num_tokens: float) -> float:
        """Return the latency of a step of so many tokens, whole or not. Something must be known."""
        curve = self._curve or self._build_curve()
        seconds = self._lookups.get(num_tokens)
        if seconds is None:
            seconds = self._lookups[num_tokens] = self._interpolate(curve, num_tokens)
        return seconds

    def _interpolate(self, curve: "_Curve", num_tokens: float) -> float:
        sizes, seconds = curve
        index = bisect.bisect_left(sizes, num_tokens)
        if index < len(sizes) and sizes[index] == num_tokens:
            return seconds[index]
        if 0 < index < len(sizes):
            below, above = sizes[index - 1], sizes[index]
            share = (num_tokens - below) / (above - below)
            between = seconds[index - 1] + share * (seconds[index] - seconds[index - 1])
            if above <= _NEAR * below + 1:
                return between
            # Rather too little than too much: what is tried is measured, and what is not tried never is.
            return min(between, seconds[index - 1] * (1 + _assumed_slope(below) * (num_tokens - below)))
        nearest = 0 if index == 0 else len(sizes) - 1
        return seconds[nearest] * (1 + _slope(curve, nearest) * (num_tokens - sizes[nearest]))

    def _build_curve(self) -> "_Curve":
        """Build the curve. Sizes measured often bound those measured once or twice from above.

        Otherwise a size whose first step took too long would never be tried again.
        """
        known, counts = self._seconds.copy(), self._num_recorded
        often = _never_falling({size: known[size] for size, count in counts.items() if count >= _NUM_BEST}, counts)
        for size, count in counts.items():
            if count < _NUM_BEST and often.sizes and often.sizes[0] <= size <= _REACH * often.sizes[-1]:
                known[size] = min(known[size], self._interpolate(often, size))
        self._curve = _never_falling(self._expected_with_overhead() | known, counts)
        self._curve_seconds = self._seconds.copy()
        self._lookups.clear()
        return self._curve

    def _expected_with_overhead(self) -> dict[int, float]:
        """Return the expectations plus the mean overhead of the steps that were run."""
        both = self._expected.keys() & self._seconds.keys()
        overhead = sum(self._seconds[size] - self._expected[size] for size in both) / len(both) if both else 0.0
        return {size: max(seconds, seconds + overhead) for size, seconds in self._expected.items()}


def _never_falling(known: Mapping[int, float], counts: Mapping[int, int]) -> _Curve:
    """Return the isotonic regression: neighbouring sizes that fall are pooled, weighted by their measurements."""
    sizes, seconds = sorted(known), []
    pools: list[tuple[float, float, int]] = []
    """(mean seconds, weight, number of sizes)."""
    for size in sizes:
        mean, weight, num_sizes = known[size], float(max(1, counts.get(size, 0))), 1
        while pools and pools[-1][0] > mean:
            other, other_weight, other_sizes = pools.pop()
            mean = (mean * weight + other * other_weight) / (weight + other_weight)
            weight, num_sizes = weight + other_weight, num_sizes + other_sizes
        pools.append((mean, weight, num_sizes))
    for mean, _, num_sizes in pools:
        seconds += [mean] * num_sizes
    return _Curve(sizes, seconds)


def _slope(curve: _Curve, index: int) -> float:
    """Return what a token adds beyond the smallest or largest size of the curve, as a share of that size's seconds."""
    sizes, seconds = curve
    if len(sizes) == 1:
        return _assumed_slope(sizes[0])
    first, second = (0, 1) if index == 0 else (index - 1, index)
    return (seconds[second] - seconds[first]) / (sizes[second] - sizes[first]) / seconds[index]


def _assumed_slope(size: int) -> float:
    """Return what a token adds to a step of this size, as a share of its seconds."""
    return _ASSUMED_SLOPE / (1 + _ASSUMED_SLOPE * (size - 1))


def _size(num_tokens: int) -> int:
    """Return the size as which a number of tokens is recorded."""
    if num_tokens <= _MAX_EXACT_SIZE:
        return num_tokens
    grain = 1 << max(0, num_tokens.bit_length() - 4)
    return num_tokens // grain * grain
