"""Computes from a run how its server spent its time: busy, waiting, full, near its roof. Draws no conclusion."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from archerfish.bench.serve.records import BenchRun, ServerSample
from archerfish.bench.serve.summary import EngineSummary, Latencies, Summary, reported_peak, work_between

KV_FULL = 0.9
"""Share of the KV cache in use, above which the next prompt may not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """The time that the computed work takes at the peak, and the time it took."""

    busy_seconds: float
    compute_seconds: float
    """Time that compute-bound phases would take at the peak."""
    bandwidth_seconds: float
    """Time that bandwidth-bound phases would take at the peak."""

    @property
    def share(self) -> float:
        """Share of the time in steps that the work would take at the peak."""
        return (self.compute_seconds + self.bandwidth_seconds) / self.busy_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The server's time between its first sample and its last. Shares are of that time."""

    engine: EngineSummary
    active_share: float
    """Share with sequences running or waiting."""
    waiting_share: float
    """Share with sequences waiting."""
    crowded_share: float
    """Share with sequences waiting while the KV cache was full."""
    occupancy: float
    """Highest share of rows in use that was reported."""
    queue_share: float | None
    """Queueing as a share of the time to first token on the server; None if it was not reported."""
    roof: Roof | None
    """None if the peak is unknown or nothing was computed."""


def read_facts(run: BenchRun, summary: Summary) -> ServerFacts | None:
    """Return the facts; None if the server reported fewer than two samples."""
    samples = run.samples
    if summary.engine is None or samples[-1].time <= samples[0].time:
        return None
    return ServerFacts(
        engine=summary.engine,
        active_share=_share_of_time(samples, lambda sample: sample.num_running + sample.num_waiting > 0),
        waiting_share=_share_of_time(samples, lambda sample: sample.num_waiting > 0),
        crowded_share=_share_of_time(
            samples, lambda sample: sample.num_waiting > 0 and sample.kv_cache_usage >= KV_FULL
        ),
        occupancy=max(sample.batch_occupancy for sample in samples),
        queue_share=_queue_share(summary.latencies),
        roof=_roof(samples[0], samples[-1]),
    )


def _share_of_time(samples: Sequence[ServerSample], holds: Callable[[ServerSample], bool]) -> float:
    """Return the share of the time in which a predicate holds; a sample counts for the time since the one before it."""
    lengths = [(later.time - earlier.time, holds(later)) for earlier, later in pairwise(samples)]
    return sum(length for length, held in lengths if held) / sum(length for length, _ in lengths)


def _queue_share(latencies: Latencies) -> float | None:
    queue, ttft = latencies.server_queue, latencies.server_ttft
    return queue.mean / ttft.mean if queue is not None and ttft is not None and ttft.mean > 0 else None


def _roof(first: ServerSample, last: ServerSample) -> Roof | None:
    busy, peak = last.busy_seconds - first.busy_seconds, reported_peak(last)
    if peak is None or busy <= 0:
        return None
    work = work_between(first, last)
    compute = bandwidth = 0.0
    for flops, num_bytes in ((work.prefill_flops, work.prefill_bytes), (work.decode_flops, work.decode_bytes)):
        computing, reading = flops / peak.flops, num_bytes / peak.bandwidth
        if computing >= reading:
            compute += computing
        else:
            bandwidth += reading
    if compute + bandwidth == 0:
        return None
    return Roof(busy_seconds=busy, compute_seconds=compute, bandwidth_seconds=bandwidth)
