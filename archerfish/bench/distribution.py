"""Summarizes values: mean, spread and percentiles. Knows nothing of what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Percentile:
    percent: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Summary of at least one value."""

    count: int
    mean: float
    deviation: float
    """Standard deviation of these values, not an estimate for a population."""
    smallest: float
    median: float
    largest: float
    percentiles: tuple[Percentile, ...]

    def percentile(self, percent: float) -> float:
        """Return one of the percentiles that were computed."""
        return next(entry.value for entry in self.percentiles if entry.percent == percent)


def distribution(values: Sequence[float], percents: Sequence[float] = (50, 90, 95, 99)) -> Distribution | None:
    """Return the summary; None without values.

    A percentile between two values is interpolated, as numpy and vLLM do.
    """
    if not len(values):
        return None
    array = np.asarray(values, np.float64)
    interpolated = np.percentile(array, list(percents)).tolist()
    return Distribution(
        count=len(array),
        mean=float(array.mean()),
        deviation=float(array.std()),
        smallest=float(array.min()),
        median=float(np.median(array)),
        largest=float(array.max()),
        percentiles=tuple(Percentile(percent, value) for percent, value in zip(percents, interpolated, strict=True)),
    )
