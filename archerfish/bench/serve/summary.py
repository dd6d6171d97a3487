"""Computes the figures of a load test that docs/metrics.md defines. Judges nothing."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from archerfish.bench.cost import Costs, costs
from archerfish.bench.distribution import Distribution, distribution
from archerfish.bench.serve.records import BenchRun, RequestRecord, ServerSample
from archerfish.machine.peak import Peak
from archerfish.metrics.speculation import SpeculationStats, speculation_between
from archerfish.metrics.timing import Objectives
from archerfish.metrics.utilization import Utilization, Work, prefill_share, utilization

PERCENTS = (50.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Latencies in seconds; None if no request had the figure."""

    ttft: Distribution | None
    first_visible: Distribution | None
    """Time to the first text that is not hidden reasoning."""
    tpot: Distribution | None
    itl: Distribution | None
    e2el: Distribution | None
    server_queue: Distribution | None
    server_ttft: Distribution | None
    server_tpot: Distribution | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputSummary:
    """Rates of requests that succeeded, per second of the run."""

    requests: float
    input_tokens: float
    output_tokens: float
    tokens: float
    """Input and output tokens."""
    output_tokens_per_user: float | None
    """Speed of one answer for its client: 1 / median TPOT."""
    peak_output_tokens: int
    """Most output tokens in any one second."""
    peak_concurrency: int
    """Most requests open at once."""

    @property
    def requests_per_minute(self) -> float:
        return self.requests * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Requests that met every objective."""

    objectives: Objectives
    num_good: int
    share: float
    """Share of all requests, failed ones included."""
    requests: float
    """Requests per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSummary:
    """Increase of our server's counters; None if it did not report them."""

    busy_share: float
    """Share of the time between the first and the last sample."""
    mean_batch: float | None
    """Mean number of tokens computed in a step."""
    largest_kv_cache_usage: float
    num_preemptions: int
    prefix_hit_share: float | None
    utilization: Utilization | None
    joules_per_token: float | None
    """Energy per computed token of prompts and answers."""
    speculation: SpeculationStats | None
    """Statistics of draft tokens; None if nothing was drafted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    num_succeeded: int
    num_failed: int
    duration: float
    num_input_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    latencies: Latencies
    throughput: ThroughputSummary
    goodput: Goodput | None
    engine: EngineSummary | None
    costs: Costs | None


def summarize(
    run: BenchRun,
    *,
    percents: Sequence[float] = PERCENTS,
    objectives: Objectives | None = None,
    dollars_per_hour: float | None = None,
) -> Summary:
    succeeded = run.succeeded
    num_in = sum(record.num_input_tokens for record in succeeded)
    num_out = sum(record.num_output_tokens for record in succeeded)
    latencies = _latencies(succeeded, percents)
    return Summary(
        num_succeeded=len(succeeded),
        num_failed=len(run.requests) - len(succeeded),
        duration=run.duration,
        num_input_tokens=num_in,
        num_cached_tokens=sum(record.num_cached_tokens or 0 for record in succeeded),
        num_output_tokens=num_out,
        latencies=latencies,
        throughput=_throughput(succeeded, run.duration, latencies.tpot),
        goodput=None if objectives is None else _goodput(run, objectives),
        engine=_engine(run.samples),
        costs=None
        if dollars_per_hour is None
        else costs(
            run.duration,
            dollars_per_hour,
            num_requests=len(succeeded),
            num_input_tokens=num_in,
            num_output_tokens=num_out,
            prefill_share=_prefill_share(run.samples),
        ),
    )


def _latencies(records: Sequence[RequestRecord], percents: Sequence[float]) -> Latencies:
    timings = [record.timing for record in records]
    reported = [record.server for record in records if record.server is not None]

    def of(values: Iterable[float | None]) -> Distribution | None:
        return distribution([value for value in values if value is not None], percents)

    return Latencies(
        ttft=of(timing.ttft for timing in timings),
        first_visible=of(
            None if record.first_visible is None else record.first_visible - record.sent for record in records
        ),
        tpot=of(timing.tpot for timing in timings),
        itl=of(gap for record in records for gap in record.gaps),
        e2el=of(timing.total for timing in timings),
        server_queue=of(server.queue for server in reported),
        server_ttft=of(server.ttft for server in reported),
        server_tpot=of(server.tpot for server in reported),
    )


def _throughput(records: Sequence[RequestRecord], duration: float, tpot: Distribution | None) -> ThroughputSummary:
    num_in = sum(record.num_input_tokens for record in records)
    num_out = sum(record.num_output_tokens for record in records)

    def rate(count: int) -> float:
        return count / duration if duration > 0 else 0.0

    by_second = Counter(int(time) for record in records for time in record.token_times)
    return ThroughputSummary(
        requests=rate(len(records)),
        input_tokens=rate(num_in),
        output_tokens=rate(num_out),
        tokens=rate(num_in + num_out),
        output_tokens_per_user=1 / tpot.median if tpot is not None and tpot.median > 0 else None,
        peak_output_tokens=max(by_second.values(), default=0),
        peak_concurrency=_most_at_once(records),
    )


def _most_at_once(records: Sequence[RequestRecord]) -> int:
    changes = sorted([(record.sent, 1) for record in records] + [(record.ended, -1) for record in records])
    current = most = 0
    for _, change in changes:
        current += change
        most = max(most, current)
    return most


def _goodput(run: BenchRun, objectives: Objectives) -> Goodput:
    num_good = sum(objectives.met_by(record.timing, record.outcome) for record in run.requests)
    return Goodput(
        objectives=objectives,
        num_good=num_good,
        share=num_good / len(run.requests) if run.requests else 0.0,
        requests=num_good / run.duration if run.duration > 0 else 0.0,
    )


# -- what our server tells --------------------------------------------------------------------------------------------


def _engine(samples: Sequence[ServerSample]) -> EngineSummary | None:
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]

    def grown(read: Callable[[ServerSample], float]) -> float:
        return read(last) - read(first)

    busy, num_steps = grown(lambda sample: sample.busy_seconds), grown(lambda sample: sample.num_steps)
    num_computed = grown(lambda sample: sample.num_computed_tokens)
    num_queried = grown(lambda sample: sample.num_prefix_tokens_queried)
    peak, joules = reported_peak(last), None
    if first.energy_joules is not None and last.energy_joules is not None:
        joules = last.energy_joules - first.energy_joules
    return EngineSummary(
        busy_share=busy / (last.time - first.time) if last.time > first.time else 0.0,
        mean_batch=num_computed / num_steps if num_steps else None,
        largest_kv_cache_usage=max(sample.kv_cache_usage for sample in samples),
        num_preemptions=int(grown(lambda sample: sample.num_preemptions)),
        prefix_hit_share=grown(lambda sample: sample.num_prefix_tokens_hit) / num_queried if num_queried else None,
        utilization=utilization(work_between(first, last), busy, peak) if peak is not None and busy > 0 else None,
        joules_per_token=joules / num_computed if joules is not None and num_computed else None,
        speculation=speculation_between(first.speculation_totals, last.speculation_totals),
    )


def _prefill_share(samples: Sequence[ServerSample]) -> float | None:
    peak = reported_peak(samples[-1]) if len(samples) > 1 else None
    return None if peak is None else prefill_share(work_between(samples[0], samples[-1]), peak)


def reported_peak(sample: ServerSample) -> Peak | None:
    """Return the peak of the machine, if the server has reported it."""
    if sample.peak_flops is None or sample.peak_bandwidth is None:
        return None
    return Peak(sample.peak_flops, sample.peak_bandwidth)


def work_between(first: ServerSample, last: ServerSample) -> Work:
    """Return the work between two samples."""
    return Work(
        prefill_flops=last.prefill_flops - first.prefill_flops,
        decode_flops=last.decode_flops - first.decode_flops,
        prefill_bytes=last.prefill_bytes - first.prefill_bytes,
        decode_bytes=last.decode_bytes - first.decode_bytes,
    )
