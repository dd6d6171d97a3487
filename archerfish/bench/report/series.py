"""Reduces a run's records to the few numbers of a chart. Knows no plotting library."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from archerfish.bench.serve.records import BenchRun, ServerSample
from archerfish.bench.serve.summary import reported_peak, work_between
from archerfish.machine.peak import Peak
from archerfish.metrics.timing import Objectives
from archerfish.metrics.utilization import prefill_share

Values = NDArray[np.float64]

_FEWEST_BINS, _MOST_BINS = 8, 40
_NUM_SLICES = 60
_SHORTEST_SLICE = 0.25
_LONG_TAIL = 30.0
"""Ratio of the largest value to the median above which bins are logarithmic: most values would share one equal bin."""
_MOST_POINTS = 4000


@dataclass(frozen=True, slots=True)
class Bars:
    """A histogram."""

    edges: Values
    shares: Values
    is_logarithmic: bool


def bars(values: Sequence[float]) -> Bars:
    """Return the histogram of at least one value; every value is in one of the bars."""
    array = np.asarray(values, np.float64)
    low, high, median = float(array.min()), float(array.max()), float(np.median(array))
    is_logarithmic = low > 0 and high > _LONG_TAIL * median
    # A bar of one or two values shows only chance: more bars for more values.
    num_bins = min(_MOST_BINS, max(_FEWEST_BINS, round(3 * len(array) ** (1 / 3))))
    if is_logarithmic:
        edges = np.geomspace(low, high, num_bins + 1)
        # Rounding must leave neither end outside.
        edges[0], edges[-1] = low, high
    elif high > low:
        edges = np.linspace(low, high, num_bins + 1)
    else:
        edges = np.array([low * 0.99, low * 1.01]) if low else np.array([0.0, 1e-6])
    counts, _ = np.histogram(array, edges)
    return Bars(edges, counts / len(array), is_logarithmic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Rates in each of many equal slices of the run."""

    times: Values
    """Middle of each slice."""
    input_tokens: Values
    """Tokens of prompts, counted when their answer begins."""
    output_tokens: Values
    ended_requests: Values
    good_requests: Values


def flow(run: BenchRun, objectives: Objectives | None, most_slices: int = _NUM_SLICES) -> Flow:
    """Return the rates of requests that succeeded; their mean over all slices is the run's throughput."""
    num_slices = max(1, min(most_slices, int(run.duration / _SHORTEST_SLICE)))
    edges = np.linspace(0.0, max(run.duration, 1e-9), num_slices + 1)
    width = edges[1]
    ended = [request for request in run.succeeded if request.token_times]
    bounds = objectives or Objectives()
    good = [request for request in ended if bounds.met_by(request.timing, request.outcome)]

    def per_second(times: Iterable[float], weights: Sequence[float] | None = None) -> Values:
        # A last token may come a rounding error after the end of the run.
        inside = np.clip(np.fromiter(times, np.float64), 0.0, edges[-1])
        values: Values = np.histogram(inside, edges, weights=weights)[0] / width
        return values

    return Flow(
        times=(edges[:-1] + edges[1:]) / 2,
        input_tokens=per_second(
            (request.token_times[0] for request in ended), [float(request.num_input_tokens) for request in ended]
        ),
        output_tokens=per_second(time for request in ended for time in request.token_times),
        ended_requests=per_second(request.token_times[-1] for request in ended),
        good_requests=per_second(request.token_times[-1] for request in good),
    )


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """A point on a roofline."""

    intensity: float
    """Operations per byte read."""
    flops: float
    """Operations per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoints:
    peak: Peak
    prefill: SeriesPoint | None
    """Point of the whole run; None without such work."""
    decode: SeriesPoint | None
    prefill_moments: tuple[SeriesPoint, ...]
    """Points between consecutive samples of the server."""
    decode_moments: tuple[SeriesPoint, ...]


def roofline_points(samples: Sequence[ServerSample]) -> RooflinePoints | None:
    """Return the points; None if the server did not report enough.

    Phases share the time in steps as they would at the peak.
    """
    peak = reported_peak(samples[-1]) if len(samples) > 1 else None
    if peak is None:
        return None
    prefill, decode = _points(samples[0], samples[-1], peak)
    moments = [_points(earlier, later, peak) for earlier, later in pairwise(samples)]
    return RooflinePoints(
        peak=peak,
        prefill=prefill,
        decode=decode,
        prefill_moments=tuple(point for point, _ in moments if point is not None),
        decode_moments=tuple(point for _, point in moments if point is not None),
    )


def _points(first: ServerSample, last: ServerSample, peak: Peak) -> tuple[SeriesPoint | None, SeriesPoint | None]:
    busy = last.busy_seconds - first.busy_seconds
    work = work_between(first, last)
    share = prefill_share(work, peak)
    if share is None or busy <= 0:
        return None, None
    return (
        _point(work.prefill_flops, work.prefill_bytes, busy * share),
        _point(work.decode_flops, work.decode_bytes, busy * (1 - share)),
    )


def _point(flops: float, num_bytes: float, seconds: float) -> SeriesPoint | None:
    return SeriesPoint(flops / num_bytes, flops / seconds) if flops > 0 and num_bytes > 0 and seconds > 0 else None


def thinned(length: int) -> slice:
    """Return at most so many evenly spaced items, so that a browser can draw them."""
    return slice(None, None, max(1, -(-length // _MOST_POINTS)))
