"""Arrival times of a load, in seconds from the start; the same for the same seed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


def at_once(num_requests: int) -> Times:
    """Return arrivals at the start.

    With a bound on concurrency this is a closed loop: a request waits for another to end.
    """
    return np.zeros(num_requests)


def constant(num_requests: int, rate: float) -> Times:
    """Return arrivals with equal gaps, the first at the start."""
    return np.arange(num_requests) / rate


def gamma(num_requests: int, rate: float, burstiness: float, seed: int) -> Times:
    """Return arrivals with gaps of a gamma distribution of this shape: 1 is a Poisson process, smaller is burstier.

    Gaps are scaled so that the rate of the whole load is exact: in a short load, chance would change it much.
    """
    times = _after(_gaps(num_requests, burstiness, seed))
    return times * ((num_requests - 1) / rate / times[-1]) if num_requests > 1 and times[-1] > 0 else times


def ramp(num_requests: int, rates: tuple[float, float], burstiness: float, seed: int, *, growth: str) -> Times:
    """Return arrivals at a rate that changes from one request to the next; `growth` is linear or exponential."""
    first, last = rates
    rising = np.linspace(first, last, num_requests) if growth == "linear" else np.geomspace(first, last, num_requests)
    return _after(_gaps(num_requests, burstiness, seed) / rising)


def replay(times: Sequence[float], time_scale: float) -> Times:
    """Return the arrivals of a trace, the first at the start. A scale of 2 takes twice as long."""
    recorded = np.asarray(times, np.float64)
    return (recorded - recorded[0]) * time_scale if len(recorded) else recorded


def _gaps(num_requests: int, burstiness: float, seed: int) -> Times:
    """Return gaps with a mean of 1."""
    return np.random.default_rng(seed).gamma(burstiness, 1 / burstiness, num_requests)


def _after(gaps: Times) -> Times:
    """Return the arrivals with these gaps, the first at the start."""
    times = np.zeros(len(gaps))
    np.cumsum(gaps[:-1], out=times[1:])
    return times
