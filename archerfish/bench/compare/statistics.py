"""Intervals of how much one thing differs from another. Plain arithmetic: knows no benchmark."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# 97.5th percentiles of Student's t for 1, 2, ... degrees of freedom.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class Interval(NamedTuple):
    """95 %, relative to the base."""

    low: float
    high: float


def student(degrees: float) -> float:
    """How many standard errors a 95 % interval reaches to either side. Fractions count as the whole below them."""
    index = max(1, int(degrees))
    # Beyond the table by the first terms of the expansion around the normal's 1.96: right to three digits.
    return _T[index - 1] if index <= len(_T) else 1.95996 + 2.37227 / index + 2.8225 / index**2


def welch_interval(base: Sequence[float], other: Sequence[float]) -> Interval:
    """From at least two values on either side, which may spread differently."""
    errors = [float(np.var(side, ddof=1)) / len(side) for side in (base, other)]
    mean = float(np.mean(base))
    difference = float(np.mean(other)) - mean
    if sum(errors) == 0:
        return _relative(difference, difference, mean)
    degrees = sum(errors) ** 2 / sum(
        error**2 / (len(side) - 1) for error, side in zip(errors, (base, other), strict=True)
    )
    reach = student(degrees) * sum(errors) ** 0.5
    return _relative(difference - reach, difference + reach, mean)


def _relative(low: float, high: float, base: float) -> Interval:
    ends = sorted((low / base, high / base))
    return Interval(ends[0], ends[1])


def bootstrap_interval(base: NDArray[np.float64], other: NDArray[np.float64]) -> Interval:
    """From equally many resampled values of either side. Resamples whose base is 0 say nothing and are left out."""
    usable = base != 0
    if not usable.any():
        return Interval(-np.inf, np.inf)
    low, high = np.percentile(other[usable] / base[usable] - 1, [2.5, 97.5]).tolist()
    return Interval(low, high)
