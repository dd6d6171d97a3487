"""How long a step takes for the tokens in it, learned from the steps that were made. Knows no clock.

Others have the machine, too: for some seconds everything may take half as long again. Steps of a kind that is seldom
made would then be held against those of another time, so what is learned is what they take at the usual pace.
"""

import bisect
from collections.abc import Mapping
from typing import NamedTuple

_GUESSED_SLOPE = 0.2
"""What one token more adds to a step of one token, before anything was measured: more than on most machines."""
_WEIGHT = 0.1
"""Of a new measurement against what is known of its size."""
_PACE_WEIGHT = 0.25
"""Of a new measurement against the pace of those before it: it changes within a few steps, what is known does not."""
_ODD = 2.0
"""A time so much longer than what is known counts as no more than that: mostly somebody else had the machine."""
_FIRST = 3
"""Measurements of a size of which the best counts: a cold start is nothing that returns."""
_NEAR = 2
"""Sizes that differ by a larger factor say little of those between them."""
_REACH = 4
"""Times the largest size that is known well: beyond, what is known says nothing."""
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
        self._curve: _Curve | None = None
        """Made when it is asked for."""
        self.total = 0.0
        """Seconds of all that was recorded, as they were."""

    def __bool__(self) -> bool:
        return bool(self._seconds)

    def record(self, num_tokens: int, seconds: float) -> None:
        self.total += seconds
        size = _size(num_tokens)
        # A step of this size as its mean would be, had it exactly so many tokens.
        seconds *= size / num_tokens if num_tokens > _FEW else 1.0
        count = self._num_recorded[size] = self._num_recorded.get(size, 0) + 1
        before = self._seconds.get(size, seconds)
        if self._leads and count > _FIRST and before:
            self._pace.heard(seconds / before)
        seconds /= self._pace.factor
        if count <= _FIRST:
            self._seconds[size] = min(before, seconds)
        else:
            self._seconds[size] = before + _WEIGHT * (min(seconds, _ODD * before) - before)
        self._curve = None

    def forget_beyond(self, num_tokens: int) -> None:
        """Larger steps are to be measured anew: what is known of them may have been an accident."""
        for size in [size for size in self._seconds if size > num_tokens]:
            del self._seconds[size], self._num_recorded[size]
        self._curve = None

    def of(self, num_tokens: float) -> float:
        """Seconds of a step with so many tokens, or parts of them. Something must have been recorded."""
        return self._along(self._curve or self._made(), num_tokens)

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
        sure = _never_falling({size: self._seconds[size] for size, n in self._num_recorded.items() if n >= _FIRST})
        known = self._seconds
        if sure.sizes:
            near = range(sure.sizes[0], _REACH * sure.sizes[-1] + 1)
            known = {n: min(seconds, self._along(sure, n)) if n in near else seconds for n, seconds in known.items()}
        self._curve = _never_falling(known)
        return self._curve


def _never_falling(known: Mapping[int, float]) -> _Curve:
    """More tokens never take less time. What says otherwise was held up: that only ever adds."""
    sizes = sorted(known)
    seconds = [known[size] for size in sizes]
    for place in range(len(sizes) - 2, -1, -1):
        seconds[place] = min(seconds[place], seconds[place + 1])
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
