"""The page of a load test: the verdict first, then figures, tables, charts. Knows no HTML."""

from collections.abc import Iterator
from pathlib import Path

from archerfish.bench.cost import Costs
from archerfish.bench.distribution import Distribution
from archerfish.bench.report.charts import run_charts
from archerfish.bench.report.page import Conclusion, Figure, Notice, ReportPage, Table, Term, save_page
from archerfish.bench.report.verdict import RunLimit, RunVerdict, judge_run
from archerfish.bench.serve.records import BenchRun, Workload
from archerfish.bench.serve.summary import PERCENTS, EngineSummary, Summary, summarize
from archerfish.metrics.speculation import speculation_rows
from archerfish.metrics.timing import Objectives


def save_report(
    run: BenchRun, path: Path, *, objectives: Objectives | None = None, dollars_per_hour: float | None = None
) -> None:
    save_page(run_page(run, objectives=objectives, dollars_per_hour=dollars_per_hour), path)


def run_page(
    run: BenchRun, *, objectives: Objectives | None = None, dollars_per_hour: float | None = None
) -> ReportPage:
    summary = summarize(run, objectives=objectives, dollars_per_hour=dollars_per_hour)
    return ReportPage(
        title=f"Load test of {run.target.model}" + (f": {run.label}" if run.label else ""),
        subtitle=f"{workload_text(run.workload)} · {run.target.url}{run.target.endpoint} · {run.started_at}",
        alarm=alarm(run),
        notices=tuple(
            Notice(name=finding.name, text=f"{finding.what}; {finding.fix}.", is_alarm=finding.is_fatal)
            for finding in run.findings
        ),
        conclusion=_conclusion(judge_run(run, summary)),
        figures=tuple(_headline_figures(summary)),
        tables=tuple(_tables(summary)),
        charts=tuple(run_charts(run, summary, objectives)),
        version=run.version,
    )


def alarm(run: BenchRun) -> str:
    """Return the warning of an invalid run; empty for a valid one."""
    return "" if run.is_valid else "INVALID: these figures do not describe the server. The reasons are below."


def workload_text(workload: Workload) -> str:
    parts = [f"{workload.num_requests:,} requests of {workload.dataset}", f"{workload.arrivals} arrivals"]
    if workload.request_rate is not None:
        parts.append(f"{workload.request_rate:g} requests/s")
    if workload.max_concurrency is not None:
        parts.append(f"at most {workload.max_concurrency:,} at once")
    return ", ".join([*parts, f"seed {workload.seed}"])


def _conclusion(verdict: RunVerdict) -> Conclusion:
    headline = (
        "What held it back is not known" if verdict.limit is RunLimit.UNKNOWN else verdict.limit.value.capitalize()
    )
    return Conclusion(
        headline=headline,
        sentence=verdict.reason[0].upper() + verdict.reason[1:] + ".",
        evidence=tuple(Term(item.name, item.value) for item in verdict.evidence),
        suggestions=tuple(Term(advice.setting, f"{advice.change}: {advice.why}") for advice in verdict.advice),
    )


def _headline_figures(summary: Summary) -> Iterator[Figure]:
    latencies, throughput = summary.latencies, summary.throughput
    yield Figure("Requests", f"{throughput.requests:,.2f}", "/s")
    if summary.goodput is not None:
        yield Figure("Good requests", f"{summary.goodput.share:.1%}", f"{summary.goodput.requests:,.2f}/s")
    yield Figure("Output", f"{throughput.output_tokens:,.0f}", "tokens/s")
    yield Figure("Input", f"{throughput.input_tokens:,.0f}", "tokens/s")
    for name, latency in (
        ("TTFT p50", latencies.ttft),
        ("TPOT p50", latencies.tpot),
        ("End to end p50", latencies.e2el),
    ):
        if latency is not None:
            yield Figure(name, f"{latency.median * 1000:,.1f}", "ms")
    yield Figure("Failed", f"{summary.num_failed:,}", f"of {summary.num_failed + summary.num_succeeded:,}")


# -- tables -----------------------------------------------------------------------------------------------------------


def _tables(summary: Summary) -> Iterator[Table]:
    yield _latency_table(summary)
    yield _rates_table(summary)
    if summary.engine is not None:
        yield _engine_table(summary.engine)
    if summary.costs is not None:
        yield cost_table(summary.costs)


def _latency_table(summary: Summary) -> Table:
    latencies = summary.latencies
    named = (
        ("Time to first token", latencies.ttft),
        ("Time to first visible text", latencies.first_visible if latencies.first_visible != latencies.ttft else None),
        ("Time per output token", latencies.tpot),
        ("Gaps between tokens", latencies.itl),
        ("End to end", latencies.e2el),
        ("Server: queue", latencies.server_queue),
        ("Server: first token", latencies.server_ttft),
        ("Server: per output token", latencies.server_tpot),
    )
    return Table(
        heading="Latency, ms",
        columns=("", "mean", *(f"p{percent:g}" for percent in PERCENTS), "largest"),
        rows=tuple((name, *_latency_cells(latency)) for name, latency in named if latency is not None),
        is_wide=True,
    )


def _latency_cells(latency: Distribution) -> list[str]:
    values = [latency.mean, *(latency.percentile(percent) for percent in PERCENTS), latency.largest]
    return [f"{value * 1000:,.2f}" for value in values]


def _rates_table(summary: Summary) -> Table:
    throughput = summary.throughput
    rows = [
        ("Requests that succeeded", f"{summary.num_succeeded:,}"),
        ("Requests that failed", f"{summary.num_failed:,}"),
        ("Duration", f"{summary.duration:,.2f} s"),
        ("Requests", f"{throughput.requests:,.2f} /s"),
        ("Input tokens", f"{throughput.input_tokens:,.1f} /s"),
        ("of them from the cache", f"{summary.num_cached_tokens:,} of {summary.num_input_tokens:,}"),
        ("Output tokens", f"{throughput.output_tokens:,.1f} /s"),
        ("Most output tokens in a second", f"{throughput.peak_output_tokens:,}"),
        ("Most requests at once", f"{throughput.peak_concurrency:,}"),
    ]
    if throughput.output_tokens_per_user is not None:
        rows.append(("Output tokens for one user", f"{throughput.output_tokens_per_user:,.1f} /s"))
    if summary.goodput is None:
        return Table(heading="Throughput", columns=("", "value"), rows=tuple(rows))
    rows.append(("Good requests", f"{summary.goodput.requests:,.2f} /s"))
    rows.append(("Good, share of all", f"{summary.goodput.share:.1%}"))
    note = f"Good: {objectives_text(summary.goodput.objectives)}."
    return Table(heading="Throughput", columns=("", "value"), rows=tuple(rows), note=note)


def objectives_text(objectives: Objectives) -> str:
    named = (("TTFT", objectives.ttft_ms), ("TPOT", objectives.tpot_ms), ("end to end", objectives.e2el_ms))
    return ", ".join(f"{name} ≤ {value:g} ms" for name, value in named if value is not None)


def _engine_table(engine: EngineSummary) -> Table:
    rows = [("Time in steps", f"{engine.busy_share:.1%}")]
    if engine.mean_batch is not None:
        rows.append(("Tokens in a step, mean", f"{engine.mean_batch:,.1f}"))
    rows.append(("KV cache in use, highest", f"{engine.largest_kv_cache_usage:.1%}"))
    rows.append(("Preemptions", f"{engine.num_preemptions:,}"))
    if engine.prefix_hit_share is not None:
        rows.append(("Prefix cache hits", f"{engine.prefix_hit_share:.1%}"))
    used = engine.utilization
    if used is not None:
        rows.append(("MFU, prefill + decode", f"{used.prefill_mfu:.1%} + {used.decode_mfu:.1%}"))
        rows.append(("MBU, prefill + decode", f"{used.prefill_mbu:.1%} + {used.decode_mbu:.1%}"))
    if engine.joules_per_token is not None:
        rows.append(("Energy per computed token", f"{engine.joules_per_token:,.3f} J"))
    if engine.speculation is not None:
        rows += speculation_rows(engine.speculation, with_positions=False)
    return Table(heading="Engine", columns=("", "value"), rows=tuple(rows))


def cost_table(costs: Costs) -> Table:
    named = (
        ("In all", costs.total),
        ("1,000 requests", costs.per_thousand_requests),
        ("1M tokens, input and output alike", costs.per_million_tokens),
        ("1M output tokens, paying for everything", costs.per_million_output_tokens_in_all),
        ("1M input tokens, prefill's share", costs.per_million_input_tokens),
        ("1M output tokens, decode's share", costs.per_million_output_tokens),
    )
    return Table(
        heading="Cost",
        columns=("", "dollars"),
        rows=tuple((name, f"{value:,.4f}") for name, value in named if value is not None),
    )
