"""Lays out a summary like `vllm bench serve`, for scripts that parse its output. Computes nothing."""

from collections.abc import Iterator, Sequence

from archerfish.bench.cost import Costs
from archerfish.bench.distribution import Distribution
from archerfish.bench.serve.records import BenchRun, Finding, Workload
from archerfish.bench.serve.summary import EngineSummary, Summary
from archerfish.errors import ConfigError
from archerfish.metrics.speculation import speculation_rows

_WIDTH = 50
_METRICS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}


def parse_metrics(text: str) -> tuple[str, ...]:
    """Return the metrics of a list such as "ttft,tpot,itl,e2el"."""
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in _METRICS]
    if unknown:
        raise ConfigError(f"--percentile-metrics: {unknown[0]!r} is not one of {', '.join(_METRICS)}")
    return names


def parse_percents(text: str) -> tuple[float, ...]:
    """Return the percentiles of a list such as "90,99.9"."""
    try:
        percents = tuple(float(part) for part in text.split(","))
    except ValueError:
        percents = (-1.0,)
    if not all(0 <= percent <= 100 for percent in percents):
        raise ConfigError(f"--metric-percentiles: {text!r} must be numbers from 0 to 100 with commas between them")
    return percents


def layout(run: BenchRun, summary: Summary, metrics: Sequence[str]) -> str:
    lines = [_heading(" Serving Benchmark Result ", "="), *_counts(run.workload, summary), *_rates(summary)]
    lines.append(_count("Seed:", run.workload.seed))
    for name in metrics:
        lines += _latency(*_METRICS[name], getattr(summary.latencies, name))
    lines += _more_latencies(summary)
    if summary.engine is not None:
        lines += _engine(summary.engine)
    if summary.costs is not None:
        lines += _costs(summary.costs)
    lines.append("=" * _WIDTH)
    lines += [_finding(finding) for finding in run.findings]
    return "\n".join(lines)


def _counts(workload: Workload, summary: Summary) -> Iterator[str]:
    yield _count("Successful requests:", summary.num_succeeded)
    yield _count("Failed requests:", summary.num_failed)
    if workload.max_concurrency is not None:
        yield _count("Maximum request concurrency:", workload.max_concurrency)
    if workload.request_rate is not None:
        yield _number("Request rate configured (RPS):", workload.request_rate)
    yield _number("Benchmark duration (s):", summary.duration)
    yield _count("Total input tokens:", summary.num_input_tokens)
    yield _count("Total generated tokens:", summary.num_output_tokens)


def _rates(summary: Summary) -> Iterator[str]:
    throughput = summary.throughput
    yield _number("Request throughput (req/s):", throughput.requests)
    if summary.goodput is not None:
        yield _number("Request goodput (req/s):", summary.goodput.requests)
        yield _number("Good requests (%):", summary.goodput.share * 100)
    yield _number("Output token throughput (tok/s):", throughput.output_tokens)
    yield _number("Peak output token throughput (tok/s):", throughput.peak_output_tokens)
    yield _number("Peak concurrent requests:", throughput.peak_concurrency)
    yield _number("Total token throughput (tok/s):", throughput.tokens)
    yield _number("Input token throughput (tok/s):", throughput.input_tokens)
    if throughput.output_tokens_per_user is not None:
        yield _number("Output tokens per user (tok/s):", throughput.output_tokens_per_user)
    yield _number("Request throughput (req/min):", throughput.requests_per_minute)
    yield _count("Cached input tokens:", summary.num_cached_tokens)


def _latency(name: str, title: str, values: Distribution | None) -> Iterator[str]:
    yield _heading(title, "-")
    if values is None:
        return
    yield _number(f"Mean {name} (ms):", values.mean * 1000)
    yield _number(f"Median {name} (ms):", values.median * 1000)
    for entry in values.percentiles:
        yield _number(f"P{entry.percent:g} {name} (ms):", entry.value * 1000)


def _more_latencies(summary: Summary) -> Iterator[str]:
    latencies = summary.latencies
    others = {
        "first visible text": latencies.first_visible,
        "queue on the server": latencies.server_queue,
        "TTFT on the server": latencies.server_ttft,
        "TPOT on the server": latencies.server_tpot,
    }
    if latencies.first_visible == latencies.ttft:
        del others["first visible text"]
    if any(others.values()):
        yield _heading("Other Latencies", "-")
    for name, values in others.items():
        if values is not None:
            yield _number(f"Median {name} (ms):", values.median * 1000)
            yield _number(f"P{values.percentiles[-1].percent:g} {name} (ms):", values.percentiles[-1].value * 1000)


def _engine(engine: EngineSummary) -> Iterator[str]:
    yield _heading("Engine", "-")
    yield _number("Time in steps (%):", engine.busy_share * 100)
    if engine.mean_batch is not None:
        yield _number("Mean tokens in a step:", engine.mean_batch)
    yield _number("Largest KV cache use (%):", engine.largest_kv_cache_usage * 100)
    yield _count("Preemptions:", engine.num_preemptions)
    if engine.prefix_hit_share is not None:
        yield _number("Prefix cache hits (%):", engine.prefix_hit_share * 100)
    if engine.utilization is not None:
        used = engine.utilization
        yield _number("MFU prefill (%):", used.prefill_mfu * 100)
        yield _number("MFU decode (%):", used.decode_mfu * 100)
        yield _number("MBU prefill (%):", used.prefill_mbu * 100)
        yield _number("MBU decode (%):", used.decode_mbu * 100)
    if engine.joules_per_token is not None:
        yield _number("Energy (J/token):", engine.joules_per_token)
    if engine.speculation is not None:
        yield _heading("Speculative Decoding", "-")
        for name, value in speculation_rows(engine.speculation):
            yield f"{name + ':':<40} {value}"


def _costs(costs: Costs) -> Iterator[str]:
    yield _heading("Cost", "-")
    for name, value in (
        ("In all ($):", costs.total),
        ("Per request ($):", costs.per_request),
        ("Per 1000 requests ($):", costs.per_thousand_requests),
        ("Per 1M tokens ($):", costs.per_million_tokens),
        ("Per 1M output tokens, in all ($):", costs.per_million_output_tokens_in_all),
        ("Per 1M input tokens ($):", costs.per_million_input_tokens),
        ("Per 1M output tokens ($):", costs.per_million_output_tokens),
    ):
        if value is not None:
            yield f"{name:<40} {value:<10.6f}"


def _finding(finding: Finding) -> str:
    return f"{'INVALID' if finding.is_fatal else 'Note'}: {finding.name}: {finding.what}; {finding.fix}"


def _heading(title: str, filling: str) -> str:
    return f"{title:{filling}^{_WIDTH}}"


def _count(name: str, value: int) -> str:
    return f"{name:<40} {value:<10}"


def _number(name: str, value: float) -> str:
    return f"{name:<40} {value:<10.2f}"
