"""How long a step takes for the tokens in it, learned from the steps that were made. Knows no clock.

Others have the machine, too: for some seconds everything may take half as long again. Steps of a kind that is seldom
made would then be held against those of another time, so what is learned is what they take at the usual pace.
"""

import bisect
from collections.abc import Mapping
from typing import NamedTuple

_GUESSED_SLOPE = 0.2
"""What one token more adds to a step of one token, before anything was measured: more than on most machines."""
_LEAST_WEIGHT = 0.004
"""Of a new measurement against what is known of its size, once that is a mean of many."""
_PACE_WEIGHT = 0.1
"""Of a new measurement against the pace of those before it: it changes sooner than what is known does."""
_ODD = 2.0
"""A time so much longer than what is known counts as no more than that: mostly somebody else had the machine."""
_KNOWN_WELL = 16
"""Measurements of a size, after which another one says something of the pace."""
_FIRST = 3
"""Measurements of a size of which the best counts: a cold start is nothing that returns."""
_COLD = 4
"""Measurements that are passed over where something was expected: the first time everything takes longer."""
_NEAR = 2
"""Sizes that differ by a larger factor say little of those between them."""
_REACH = 4
"""Times the largest size that is known well: beyond, what is known says nothing."""
_LITTLE = 0.02
"""A share: what is known of a size may change by so much without anybody being told."""
_FEW = 16
"""Up to so many tokens each number has its own time; beyond, sizes that differ by an eighth share one."""


class _Curve(NamedTuple):
    """Sizes, and seconds that never fall."""

    sizes: list[int]
    seconds: list[float]


class Pace:
    """How much longer than usual everything takes at the moment."""

    def __init__(self) -> None:
        self.factor = 1.0

    def heard(self, ratio: float) -> None:
        """Something took so many times as long as what is known of it."""
        self.factor += _PACE_WEIGHT * (min(ratio, _ODD) - self.factor)


class StepTimes:
    """Seconds by the number of tokens: measured where there were steps, a line between them and beyond."""

    def __init__(self, pace: Pace | None = None, *, leads: bool = False) -> None:
        """Times that lead set the pace; others are only measured by it."""
        self._pace = Pace() if pace is None else pace
        self._leads = leads
        self._seconds: dict[int, float] = {}
        self._num_recorded: dict[int, int] = {}
        self._expected: dict[int, float] = {}
        """What is told of sizes as long as there was no step."""
        self._curve: _Curve | None = None
        """Made when it is asked for, and again when something has changed:"""
        self._drawn: dict[int, float] = {}
        """What was known when it was made."""
        self._found: dict[float, float] = {}
        """On the curve."""
        self._num_cold = 0
        self.total = 0.0
        """Seconds of all that was recorded, as they were."""

    def __bool__(self) -> bool:
        return bool(self._seconds or self._expected)

    def expect(self, num_tokens: int, seconds: float) -> None:
        """Something like a step took so long, but for what every step takes beside: the least of several such times."""
        self._expected[num_tokens] = min(seconds, self._expected.get(num_tokens, seconds))
        self._curve = None

    def record(self, num_tokens: int, seconds: float) -> None:
        self.total += seconds
        if self._expected and self._num_cold < _COLD:
            self._num_cold += 1
            return
        size = _size(num_tokens)
        # A step of this size as its mean would be, had it exactly so many tokens.
        seconds *= size / num_tokens if num_tokens > _FEW else 1.0
        count = self._num_recorded[size] = self._num_recorded.get(size, 0) + 1
        before = self._seconds.get(size, seconds)
        if not self._leads:
            seconds /= self._pace.factor
        elif self.is_known_well(num_tokens) and before:
            self._pace.heard(seconds / before)
        if count <= _FIRST:
            self._seconds[size] = min(before, seconds)
        else:
            self._seconds[size] = before + max(_LEAST_WEIGHT, 1 / count) * (min(seconds, _ODD * before) - before)
        drawn = self._drawn.get(size, 0.0)
        if count <= _FIRST or abs(self._seconds[size] - drawn) > _LITTLE * drawn:
            self._curve = None

    def is_known_well(self, num_tokens: int) -> bool:
        return self._num_recorded.get(_size(num_tokens), 0) > _KNOWN_WELL

    def forget_beyond(self, num_tokens: int) -> None:
        """Larger steps are to be measured anew: what is known of them may have been an accident."""
        for size in [size for size in self._seconds if size > num_tokens]:
            del self._seconds[size], self._num_recorded[size]
        self._curve = None

    def of(self, num_tokens: float) -> float:
        """Seconds of a step with so many tokens, or parts of them. Something must have been recorded."""
        curve = self._curve or self._made()
        seconds = self._found.get(num_tokens)
        if seconds is None:
            seconds = self._found[num_tokens] = self._along(curve, num_tokens)
        return seconds

    def _along(self, curve: "_Curve", num_tokens: float) -> float:
        sizes, seconds = curve
        place = bisect.bisect_left(sizes, num_tokens)
        if place < len(sizes) and sizes[place] == num_tokens:
            return seconds[place]
        if 0 < place < len(sizes):
            below, above = sizes[place - 1], sizes[place]
            share = (num_tokens - below) / (above - below)
            between = seconds[place - 1] + share * (seconds[place] - seconds[place - 1])
            if above <= _NEAR * below + 1:
                return between
            # Rather too little than too much: what is tried is measured, and what is not tried never is.
            return min(between, seconds[place - 1] * (1 + _guessed_slope(below) * (num_tokens - below)))
        known = 0 if place == 0 else len(sizes) - 1
        return seconds[known] * (1 + _slope(curve, known) * (num_tokens - sizes[known]))

    def _made(self) -> "_Curve":
        """Sizes that were measured often enough say what others take at most, if these were measured only once or
        twice: whatever took too long the first time would never be tried again."""
        known, counts = self._seconds.copy(), self._num_recorded
        sure = _never_falling({size: known[size] for size, count in counts.items() if count >= _FIRST}, counts)
        for size, count in counts.items():
            if count < _FIRST and sure.sizes and sure.sizes[0] <= size <= _REACH * sure.sizes[-1]:
                known[size] = min(known[size], self._along(sure, size))
        self._curve = _never_falling(self._still_expected() | known, counts)
        self._drawn = self._seconds.copy()
        self._found.clear()
        return self._curve

    def _still_expected(self) -> dict[int, float]:
        """With what the steps that there were took beside."""
        both = self._expected.keys() & self._seconds.keys()
        beside = sum(self._seconds[size] - self._expected[size] for size in both) / len(both) if both else 0.0
        return {size: max(seconds, seconds + beside) for size, seconds in self._expected.items()}


def _never_falling(known: Mapping[int, float], counts: Mapping[int, int]) -> _Curve:
    """More tokens never take less time: sizes that say otherwise are taken together, each for as much as is known."""
    sizes, seconds = sorted(known), []
    together: list[tuple[float, float, int]] = []
    """Seconds, what is known of them, and how many sizes they are."""
    for size in sizes:
        mean, weight, num_sizes = known[size], float(max(1, counts.get(size, 0))), 1
        while together and together[-1][0] > mean:
            other, other_weight, other_sizes = together.pop()
            mean = (mean * weight + other * other_weight) / (weight + other_weight)
            weight, num_sizes = weight + other_weight, num_sizes + other_sizes
        together.append((mean, weight, num_sizes))
    for mean, _, num_sizes in together:
        seconds += [mean] * num_sizes
    return _Curve(sizes, seconds)


def _slope(curve: _Curve, known: int) -> float:
    """What a token more adds beyond the smallest or largest size that was seen, as a share of its time."""
    sizes, seconds = curve
    if len(sizes) == 1:
        return _guessed_slope(sizes[0])
    one, other = (0, 1) if known == 0 else (known - 1, known)
    return (seconds[other] - seconds[one]) / (sizes[other] - sizes[one]) / seconds[known]


def _guessed_slope(size: int) -> float:
    """As a share of the time of a step of this size."""
    return _GUESSED_SLOPE / (1 + _GUESSED_SLOPE * (size - 1))


def _size(num_tokens: int) -> int:
    """The size that a number of tokens is counted as."""
    if num_tokens <= _FEW:
        return num_tokens
    grain = 1 << max(0, num_tokens.bit_length() - 4)
    return num_tokens // grain * grain
