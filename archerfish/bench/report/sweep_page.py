"""The page of a sweep. Knows no HTML."""

from collections.abc import Iterator

from archerfish.bench.report.page import Conclusion, Figure, Notice, ReportPage, Table
from archerfish.bench.report.run_page import cost_table, objectives_text
from archerfish.bench.report.sweep_charts import sweep_charts
from archerfish.bench.serve.summary import Summary
from archerfish.bench.sweep.sweep import PointRecord, Sweep, load_text, percentile_of, uncounted_reasons, verdict_text

COLUMNS = (
    *("load", "outcome", "trials", "requests/s", "good", "output tokens/s"),
    *("TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99"),
)
"""Names of the cells of point_cells; latencies in ms."""


def sweep_page(sweep: Sweep) -> ReportPage:
    condition = "the server keeps up"
    if sweep.objectives is not None:
        condition = f"{sweep.goodput_share:.0%} of the requests meet {objectives_text(sweep.objectives)}"
    uncounted = uncounted_reasons(sweep.points)
    return ReportPage(
        title=f"Load sweep of {sweep.label}",
        subtitle=f"By {sweep.axis}; a load is met when {condition}.",
        alarm="" if any(point.counted for point in sweep.points) else "INVALID: no measurement could be counted.",
        notices=tuple(Notice(name="not counted", text=text, is_alarm=False) for text in uncounted),
        conclusion=Conclusion(headline=_headline(sweep), sentence=verdict_text(sweep)),
        figures=tuple(_figures(sweep)),
        tables=(_points_table(sweep), *(() if sweep.costs is None else (cost_table(sweep.costs),))),
        charts=tuple(sweep_charts(sweep)),
        version=sweep.version,
    )


def _headline(sweep: Sweep) -> str:
    return "Nothing holds" if sweep.best is None else load_text(sweep.best, sweep.axis)


def _figures(sweep: Sweep) -> Iterator[Figure]:
    best = sweep.best_point
    if best is None:
        return
    for name, value, unit in (
        ("Requests", best.mean(lambda summary: summary.throughput.requests), "/s"),
        ("Good requests", best.mean(_good_percent), "%"),
        ("Output", best.mean(lambda summary: summary.throughput.output_tokens), "tokens/s"),
        ("TTFT p99", best.mean(percentile_of("ttft", 99)), "ms"),
        ("TPOT p99", best.mean(percentile_of("tpot", 99)), "ms"),
        ("1M tokens", None if sweep.costs is None else sweep.costs.per_million_tokens, "dollars"),
        (
            "1M output tokens, paying for all",
            None if sweep.costs is None else sweep.costs.per_million_output_tokens_in_all,
            "dollars",
        ),
    ):
        if value is not None:
            yield Figure(name, f"{value:,.4g}", unit)


def _good_percent(summary: Summary) -> float | None:
    return None if summary.goodput is None else summary.goodput.share * 100


def _points_table(sweep: Sweep) -> Table:
    return Table(
        heading="Loads",
        columns=COLUMNS,
        rows=tuple(point_cells(point) for point in sweep.points),
        note="Means over the trials that count; latencies in ms.",
        is_wide=True,
    )


def point_cells(point: PointRecord) -> tuple[str, ...]:
    good = point.mean(_good_percent)
    numbers = [
        point.mean(lambda summary: summary.throughput.output_tokens),
        *(point.mean(percentile_of("ttft", percent)) for percent in (50, 99)),
        *(point.mean(percentile_of("tpot", percent)) for percent in (50, 99)),
    ]
    return (
        f"{point.load:,.4g}",
        point.outcome,
        f"{len(point.counted)} of {len(point.trials)}",
        _text(point.mean(lambda summary: summary.throughput.requests), ".2f"),
        "-" if good is None else f"{good:.1f} %",
        *(_text(number, ".1f") for number in numbers),
    )


def _text(number: float | None, number_format: str) -> str:
    return "-" if number is None else f"{number:,{number_format}}"
