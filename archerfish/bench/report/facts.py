"""Reads off a run what its server did with its time: busy, waiting, full, near its roof. Draws no conclusion."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from archerfish.bench.serve.records import BenchRun, ServerSample
from archerfish.bench.serve.summary import EngineSummary, Latencies, Summary, reported_peak, work_between

KV_FULL = 0.9
"""Above this share of the KV cache in use, the next prompt may find no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """What the computed work demands of the machine, against the time it took."""

    busy_seconds: float
    compute_seconds: float
    """That phases bound by operations would take at the peak."""
    bandwidth_seconds: float
    """That phases bound by reading would take at the peak."""

    @property
    def share(self) -> float:
        """Of the time in steps, what a perfect machine would have taken, too."""
        return (self.compute_seconds + self.bandwidth_seconds) / self.busy_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Of the time between the first sample of the server and the last. Shares are of that time."""

    engine: EngineSummary
    active_share: float
    """With any sequence running or waiting."""
    waiting_share: float
    """With any sequence waiting."""
    crowded_share: float
    """With one waiting while the KV cache was full."""
    occupancy: float
    """Rows in use / rows; the highest that was reported."""
    queue_share: float | None
    """Of the time to first token on the server, waiting for a place; None where it did not tell."""
    roof: Roof | None
    """None where the peak is not known or nothing was computed."""


def read_facts(run: BenchRun, summary: Summary) -> ServerFacts | None:
    """None where the server reported fewer than two samples."""
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
    """How long it was true; a sample stands for the time since the one before it."""
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
