"""Confidence intervals of differences. Plain arithmetic: knows no benchmark."""

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
    """95 % interval, relative to the base."""

    low: float
    high: float


def student(degrees: float) -> float:
    """Return how many standard errors a 95 % interval reaches to either side. Fractional degrees are rounded down."""
    index = max(1, int(degrees))
    # Beyond the table: the first terms of the expansion around the normal's 1.96, right to three digits.
    return _T[index - 1] if index <= len(_T) else 1.95996 + 2.37227 / index + 2.8225 / index**2


def welch_interval(base: Sequence[float], other: Sequence[float]) -> Interval:
    """Return the interval for at least two values on either side, whose variances may differ."""
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
    """Return the interval for equally many resampled values of either side. Resamples with a base of 0 are left out."""
    usable = base != 0
    if not usable.any():
        return Interval(-np.inf, np.inf)
    low, high = np.percentile(other[usable] / base[usable] - 1, [2.5, 97.5]).tolist()
    return Interval(low, high)
