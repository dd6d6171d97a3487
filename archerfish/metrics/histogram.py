"""A histogram that takes many values at once: thousands of gaps between tokens come every second."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

import numpy as np

_WORTH_AN_ARRAY = 32
"""Below so many values, numpy's overhead is larger than what it saves."""


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
