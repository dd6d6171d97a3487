"""The page of a comparison and its chart. Knows no HTML; charts need plotly."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from archerfish import __version__
from archerfish.bench.compare.compare import Change, Comparison, ComparisonRow, Outcome
from archerfish.bench.report.page import Conclusion, Notice, ReportPage, Table
from archerfish.bench.report.style import BAD, GOOD, QUIET, Chart, new_figure

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_BASIS = {
    "repeats": "Intervals (95 %) cover differences between repeated runs.",
    "bootstrap": "One run per label: intervals (95 %) cover differences between requests, not between runs. "
    "Several runs per label would cover those.",
}
_COLOURS: dict[Outcome, tuple[str, str]] = {
    "better": (GOOD, "circle"),
    "perhaps better": (GOOD, "circle-open"),
    "worse": (BAD, "x"),
    "perhaps worse": (BAD, "x-open"),
    "no difference": (QUIET, "diamond-open"),
}
_ROW_HEIGHT, _AXIS_HEIGHT = 30, 120
"""Pixels of a row, and of everything else."""


def compare_page(comparison: Comparison) -> ReportPage:
    base, *others = comparison.labels
    return ReportPage(
        title=f"{', '.join(others)} against {base}",
        subtitle=", ".join(
            f"{label}: {count} {'run' if count == 1 else 'runs'}"
            for label, count in zip(comparison.labels, comparison.num_runs, strict=True)
        ),
        alarm="NOT COMPARABLE: these runs had different loads." if comparison.differences else "",
        notices=tuple(
            Notice(name=difference.field, text=" or ".join(difference.values), is_alarm=True)
            for difference in comparison.differences
        ),
        conclusion=Conclusion(headline=_headline(comparison), sentence=_sentence(comparison)),
        tables=(_table(comparison),),
        charts=tuple(_charts(comparison)),
        version=__version__,
    )


def _headline(comparison: Comparison) -> str:
    outcomes = [change.outcome for row in comparison.rows for change in row.changes if change is not None]
    better = sum(outcome.endswith("better") for outcome in outcomes)
    worse = sum(outcome.endswith("worse") for outcome in outcomes)
    perhaps = "perhaps " if comparison.method == "bootstrap" else ""
    same = len(outcomes) - better - worse
    return f"{better} {perhaps}better, {worse} {perhaps}worse, {same} without a difference"


def _sentence(comparison: Comparison) -> str:
    seeds = "" if comparison.has_same_seeds else " The seeds differ: prompts were drawn again, and differ by chance."
    return _BASIS[comparison.method] + seeds


def _table(comparison: Comparison) -> Table:
    columns = ["", comparison.labels[0]]
    for label in comparison.labels[1:]:
        columns += [label, "change", "95 % interval", "outcome"]
    return Table(heading="Measures", columns=tuple(columns), rows=tuple(map(_cells, comparison.rows)), is_wide=True)


def _cells(row: ComparisonRow) -> tuple[str, ...]:
    cells = [_name(row), _number(row.values[0])]
    for value, change in zip(row.values[1:], row.changes, strict=True):
        cells.append(_number(value))
        if change is None:
            cells += ["-", "-", "-"]
        else:
            low, high = change.interval
            cells += [f"{change.relative:+.1%}", f"{low:+.1%} to {high:+.1%}", change.outcome]
    return tuple(cells)


def _name(row: ComparisonRow) -> str:
    return f"{row.name}, {row.unit}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


# -- charts -----------------------------------------------------------------------------------------------------------


def _charts(comparison: Comparison) -> Iterator[Chart]:
    """Return one chart for each side but the base."""
    base, *others = comparison.labels
    for index, label in enumerate(others):
        known = [(row, change) for row in comparison.rows if (change := row.changes[index]) is not None]
        drawn = [(row, change) for row, change in known if all(map(math.isfinite, change.interval))]
        if drawn:
            yield Chart(
                name=f"change-{index}",
                title=f"{label} against {base}",
                caption="Change of each measure with its 95 % interval. More is better for rates, less for latencies; "
                "an interval that reaches 0 is no difference.",
                figure=_changes(drawn),
                is_wide=True,
            )


def _changes(drawn: list[tuple[ComparisonRow, Change]]) -> "Figure":
    figure = new_figure(x="change against the base", y="", height=_AXIS_HEIGHT + _ROW_HEIGHT * len(drawn))
    for outcome, (colour, symbol) in _COLOURS.items():
        chosen = [(row, change) for row, change in drawn if change.outcome == outcome]
        if not chosen:
            continue
        changes = [change for _, change in chosen]
        figure.add_scatter(
            x=[change.relative for change in changes],
            y=[_name(row) for row, _ in chosen],
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 11, "line": {"width": 2}},
            error_x={
                "type": "data",
                "symmetric": False,
                # The mean of resamples may lie outside their interval.
                "array": [max(0.0, change.interval.high - change.relative) for change in changes],
                "arrayminus": [max(0.0, change.relative - change.interval.low) for change in changes],
                "color": colour,
                "thickness": 2,
            },
            name=outcome,
            hovertemplate="%{y}: %{x:+.1%}<extra>" + outcome + "</extra>",
        )
    figure.add_vline(0.0, line={"color": QUIET, "width": 1})
    figure.update_xaxes(tickformat="+.0%", showgrid=True)
    # In the order of the table, whatever the outcomes.
    names = [_name(row) for row, _ in drawn]
    figure.update_yaxes(categoryorder="array", categoryarray=names, autorange="reversed", showgrid=True)
    return figure
