"""Aggregates of many values: histograms since the start, and quantiles and sums of the last seconds."""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import floor, inf
from typing import NamedTuple

import numpy as np

_WORTH_AN_ARRAY = 32
"""Below so many values, numpy's overhead is larger than what it saves."""

_LARGEST_SAMPLE = 20_000
"""Values that quantiles are taken of: enough for a tenth of a percent, and a millisecond's work."""


class Bucket(NamedTuple):
    bound: float
    num_values: int
    """Up to and including the bound."""


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(set(bounds)), "bounds must rise"
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        if len(values) < _WORTH_AN_ARRAY:
            for value in values:
                self.observe(value)
            return
        array = np.asarray(values, np.float64)
        buckets = np.searchsorted(self._bounds, array, side="left")
        for bucket, count in enumerate(np.bincount(buckets, minlength=len(self._counts)).tolist()):
            self._counts[bucket] += count
        self.sum += float(array.sum())

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[Bucket]:
        """Each with all that lie below it, the last without a bound."""
        return [Bucket(*pair) for pair in zip([*self._bounds, inf], accumulate(self._counts), strict=True)]


class RecentValues:
    """Values of the last seconds, the current one included."""

    def __init__(self, num_seconds: int) -> None:
        self._num_seconds = num_seconds
        self._slots: deque[tuple[int, array[float]]] = deque()

    def add(self, value: float, now: float) -> None:
        self._slot(now).append(value)

    def extend(self, values: Iterable[float], now: float) -> None:
        self._slot(now).extend(values)

    def quantiles(self, shares: Sequence[float], now: float) -> list[float] | None:
        """Interpolated between neighbours; None where there are no values. Of very many values, those of a sample."""
        self._forget(floor(now))
        slots = [np.frombuffer(values, np.float64) for _, values in self._slots if values]
        if not slots:
            return None
        values = np.concatenate(slots)
        if len(values) > _LARGEST_SAMPLE:
            values = values[np.random.default_rng(0).integers(len(values), size=_LARGEST_SAMPLE)]
        found: list[float] = np.quantile(values, shares).tolist()
        return found

    def _slot(self, now: float) -> "array[float]":
        second = floor(now)
        if not self._slots or second > self._slots[-1][0]:
            self._slots.append((second, array("d")))
            self._forget(second)
        return self._slots[-1][1]

    def _forget(self, second: int) -> None:
        while self._slots and self._slots[0][0] <= second - self._num_seconds:
            self._slots.popleft()


class Span(NamedTuple):
    """Sums over a stretch of time."""

    sums: list[float]
    seconds: float
    """How long it is: less than asked for while nothing is older."""

    def rate(self, index: int) -> float:
        return self.sums[index] / self.seconds if self.seconds > 0 else 0.0


class RecentSums:
    """Several sums over the last seconds, the current one included."""

    def __init__(self, num_sums: int, num_seconds: int, start: float) -> None:
        self._num_sums = num_sums
        self._num_seconds = num_seconds
        self._start = start
        """When counting began: no rate is taken over the time before."""
        self._slots: deque[tuple[int, list[float]]] = deque()

    def add(self, values: Iterable[float], now: float) -> None:
        second = floor(now)
        if not self._slots or second > self._slots[-1][0]:
            self._slots.append((second, [0.0] * self._num_sums))
            while self._slots[0][0] <= second - self._num_seconds:
                self._slots.popleft()
        sums = self._slots[-1][1]
        for index, value in enumerate(values):
            sums[index] += value

    def over(self, num_seconds: int, now: float) -> Span:
        """Sums over this second and as many before it as make num_seconds."""
        assert num_seconds <= self._num_seconds, "so much is not kept"
        first = floor(now) - num_seconds + 1
        sums = [0.0] * self._num_sums
        for second, values in self._slots:
            if second >= first:
                sums = [total + value for total, value in zip(sums, values, strict=True)]
        return Span(sums, now - max(self._start, float(first)))
