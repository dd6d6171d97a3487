"""The measures that are compared, and how each is resampled. The figures themselves are those of summary.py."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from archerfish.bench.distribution import Distribution
from archerfish.bench.report.series import flow
from archerfish.bench.serve.records import BenchRun
from archerfish.bench.serve.summary import Summary
from archerfish.metrics.timing import Objectives

_NUM_SLICES = 20
"""Slices of a run. They are long enough to be nearly independent of their neighbours."""

_MOST_AT_ONCE = 2_000_000
"""Numbers of a resample that are in memory at once."""

Values = NDArray[np.float64]
Family = Literal["requests", "output", "tokens", "good", "good_share", "ttft", "tpot", "itl", "e2el"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    name: str
    unit: str
    is_more_better: bool
    family: Family
    """Family of values that the measure is computed from."""
    percent: float | None = None
    """Percentile; None for the mean."""
    read: Callable[[Summary], float | None]

    @property
    def needs_objectives(self) -> bool:
        return self.family in ("good", "good_share")


def _latency(family: Literal["ttft", "tpot", "itl", "e2el"], name: str, percent: float | None) -> Measure:
    def read(summary: Summary) -> float | None:
        latency: Distribution | None = getattr(summary.latencies, family)
        if latency is None:
            return None
        return (latency.mean if percent is None else latency.percentile(percent)) * 1000

    kind = "mean" if percent is None else f"p{percent:g}"
    return Measure(name=f"{name} {kind}", unit="ms", is_more_better=False, family=family, percent=percent, read=read)


MEASURES: tuple[Measure, ...] = (
    Measure(
        name="Requests",
        unit="/s",
        is_more_better=True,
        family="requests",
        read=lambda summary: summary.throughput.requests,
    ),
    Measure(
        name="Output tokens",
        unit="/s",
        is_more_better=True,
        family="output",
        read=lambda summary: summary.throughput.output_tokens,
    ),
    Measure(
        name="All tokens",
        unit="/s",
        is_more_better=True,
        family="tokens",
        read=lambda summary: summary.throughput.tokens,
    ),
    Measure(
        name="Good requests",
        unit="/s",
        is_more_better=True,
        family="good",
        read=lambda summary: None if summary.goodput is None else summary.goodput.requests,
    ),
    Measure(
        name="Good requests",
        unit="%",
        is_more_better=True,
        family="good_share",
        read=lambda summary: None if summary.goodput is None else summary.goodput.share * 100,
    ),
    *(_latency("ttft", "TTFT", percent) for percent in (None, 50, 90, 99)),
    *(_latency("tpot", "TPOT", percent) for percent in (None, 50, 90, 99)),
    *(_latency("itl", "ITL", percent) for percent in (50, 99)),
    *(_latency("e2el", "End to end", percent) for percent in (None, 50, 99)),
)


class Resampler:
    """Resamples a run with replacement."""

    def __init__(self, run: BenchRun, objectives: Objectives | None) -> None:
        rates = flow(run, objectives, _NUM_SLICES)
        timings = [request.timing for request in run.succeeded]
        bounds = objectives or Objectives()
        good = [bounds.met_by(request.timing, request.outcome) for request in run.requests]
        self._units: dict[Family, Values] = {
            "requests": rates.ended_requests,
            "output": rates.output_tokens,
            "tokens": rates.input_tokens + rates.output_tokens,
            "good": rates.good_requests,
            "good_share": np.asarray(good, np.float64) * 100,
            "ttft": _milliseconds([timing.ttft for timing in timings]),
            "tpot": _milliseconds([timing.tpot for timing in timings]),
            "e2el": _milliseconds([timing.total for timing in timings]),
        }
        # Gaps of one answer are correlated: only whole answers are left out or taken twice.
        self._gaps = [np.asarray(request.gaps) * 1000 for request in run.succeeded if request.gaps]

    def replicates(self, measure: Measure, count: int, rng: np.random.Generator) -> Values:
        """Return the measure of `count` resamples."""
        if measure.family == "itl":
            return np.concatenate([_reduce(measure, self._resample_gaps(rng)) for _ in range(count)])
        units = self._units[measure.family]
        # Many resamples at once, as far as memory allows: separate calls would cost more than the arithmetic.
        num_at_once = max(1, _MOST_AT_ONCE // len(units))
        parts = []
        for first in range(0, count, num_at_once):
            num_rows = min(num_at_once, count - first)
            parts.append(_reduce(measure, units[rng.integers(len(units), size=(num_rows, len(units)))]))
        return np.concatenate(parts)

    def _resample_gaps(self, rng: np.random.Generator) -> Values:
        chosen = rng.integers(len(self._gaps), size=len(self._gaps))
        return np.concatenate([self._gaps[index] for index in chosen])[np.newaxis]


def _reduce(measure: Measure, resamples: Values) -> Values:
    """Return one value for each row."""
    values: Values = (
        resamples.mean(axis=1) if measure.percent is None else np.percentile(resamples, measure.percent, axis=1)
    )
    return values


def _milliseconds(values: list[float | None]) -> Values:
    return np.asarray([value * 1000 for value in values if value is not None], np.float64)
