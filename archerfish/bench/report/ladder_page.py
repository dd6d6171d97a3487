"""The page of a ladder and its charts. Knows no HTML; charts need plotly."""

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from archerfish.bench.ladder.ladder import Ladder, LadderRow, verdict_lines
from archerfish.bench.offline.conditions import Conditions
from archerfish.bench.report.page import Conclusion, Notice, ReportPage, Table
from archerfish.bench.report.page import Figure as Headline
from archerfish.bench.report.style import DECODE, INK, PREFILL, QUIET, RUNNING, WAITING, Chart, new_figure
from archerfish.config.numbers import format_bytes

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_WHOLE = 100.0
"""Rates from here on are shown without a fraction."""
_SPACE_FOR_TEXT = 1.6
_BAR_HEIGHT, _AXIS_HEIGHT = 36, 110
"""Pixels of a row, and of everything else."""


def ladder_page(conditions: Conditions, ladder: Ladder) -> ReportPage:
    measured = [row for row in ladder.rows if row.reason is None]
    return ReportPage(
        title=f"What each optimization adds to {conditions.model}",
        subtitle=f"{conditions.title} · {ladder.load_text} · each line has what those above it have",
        alarm="" if _agrees(measured) else "Lossless lines did not write the same tokens.",
        notices=tuple(
            Notice(name=row.name, text=f"not measured, {row.reason}.", is_alarm=False)
            for row in ladder.rows
            if row.reason is not None
        ),
        conclusion=_conclusion(measured),
        figures=_figures(measured),
        tables=(_table(ladder.rows),),
        charts=_charts(measured),
        version=conditions.version,
    )


def _agrees(measured: Sequence[LadderRow]) -> bool:
    return all(row.same_tokens for row in measured if not row.is_lossy)


def _conclusion(measured: Sequence[LadderRow]) -> Conclusion:
    """Name the fastest line, and what is notable about the others."""
    best = max(measured, key=_rate, default=None)
    if best is None:
        return Conclusion(headline="Nothing was measured", sentence="No line could be run here.")
    return Conclusion(
        headline=f"{_rate(best) / _rate(measured[0]):,.1f} x as fast as {measured[0].name}",
        sentence=f"{_rate(best):,.1f} tokens/s at the line {best.name}. " + " ".join(verdict_lines(measured)),
    )


def _figures(measured: Sequence[LadderRow]) -> tuple[Headline, ...]:
    # Each line has what the lines before it have: from the first lossy one on, none is lossless.
    exact = list(takewhile(lambda row: not row.is_lossy, measured))
    named = (("Tokens/s, lossless", exact), ("Tokens/s, with quantization", measured))
    return tuple(Headline(name, f"{max(map(_rate, rows)):,.1f}") for name, rows in named if rows)


def _table(rows: Sequence[LadderRow]) -> Table:
    return Table(
        heading="Lines",
        columns=("", "s/request", "mean latency, s", "tokens/s", "memory", "x above", "x first", "tokens"),
        rows=tuple((row.name, *_cells(row)) for row in rows),
        note="x above and x first: tokens/s relative to the line above and to the first. Memory: weights, KV cache in "
        "use, and workspace of the largest step (estimated).",
        is_wide=True,
    )


def _cells(row: LadderRow) -> tuple[str, ...]:
    if row.seconds_per_request is None or row.mean_latency is None:
        return ("-",) * 7
    agreement = "the same" if row.same_tokens in (True, None) else "lossy" if row.is_lossy else "DIFFERENT"
    return (
        f"{row.seconds_per_request:,.3f}",
        f"{row.mean_latency:,.2f}",
        f"{_rate(row):,.1f}",
        _memory_text(row),
        "" if row.ratio is None else f"{row.ratio:,.2f}",
        "" if row.total_ratio is None else f"{row.total_ratio:,.2f}",
        agreement,
    )


def _rate(row: LadderRow) -> float:
    return row.tokens_per_second or 0.0


# -- charts -----------------------------------------------------------------------------------------------------------


def _charts(measured: Sequence[LadderRow]) -> tuple[Chart, ...]:
    if not measured:
        return ()
    return (
        Chart(
            name="throughput",
            title="Tokens per second",
            caption="All requests together, and x the line above. Orange lines are lossy, gray ones slower than the "
            "line above.",
            figure=_bars([_Bar(row.name, _rate(row), _rate_text(row), _colour(row)) for row in measured], "tokens/s"),
            is_wide=True,
        ),
        Chart(
            name="latency",
            title="Mean latency",
            caption="From the arrival of all requests until an answer is complete.",
            figure=_bars([_Bar(row.name, _latency(row), f"{_latency(row):,.2f} s", RUNNING) for row in measured], "s"),
        ),
        Chart(
            name="memory",
            title="Memory",
            caption="Weights, KV cache in use (cached prefixes included) and workspace of a step (estimated).",
            figure=_memory_bars(measured),
        ),
    )


class _Bar(NamedTuple):
    name: str
    value: float
    text: str
    colour: str


def _bars(bars: Sequence[_Bar], unit: str) -> "Figure":
    """Draw one bar per line, from top to bottom, each with its value."""
    figure = new_figure(x=unit, y="", height=_AXIS_HEIGHT + _BAR_HEIGHT * len(bars))
    figure.add_bar(
        x=[bar.value for bar in bars],
        y=[bar.name for bar in bars],
        orientation="h",
        marker={"color": [bar.colour for bar in bars]},
        text=[bar.text for bar in bars],
        textposition="outside",
        textfont={"color": INK},
        cliponaxis=False,
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
    _lay_out(figure, max(bar.value for bar in bars))
    return figure


def _memory_bars(rows: Sequence[LadderRow]) -> "Figure":
    """Draw weights, KV cache and workspace of each line one after the other, with their sum behind them."""
    figure = new_figure(x="MiB", y="", height=_AXIS_HEIGHT + _BAR_HEIGHT * len(rows))
    parts = (
        ("weights", [row.weight_bytes or 0 for row in rows], RUNNING),
        ("KV cache", [row.kv_bytes or 0 for row in rows], WAITING),
        ("workspace", [row.workspace_bytes or 0 for row in rows], QUIET),
    )
    for name, sizes, colour in parts:
        is_last = name == "workspace"
        figure.add_bar(
            name=name,
            x=[size / 2**20 for size in sizes],
            y=[row.name for row in rows],
            orientation="h",
            marker={"color": [colour] * len(rows)},
            text=[_memory_text(row) for row in rows] if is_last else None,
            textposition="outside" if is_last else "none",
            textfont={"color": INK},
            cliponaxis=False,
            hovertemplate=f"%{{y}}, {name}: %{{x:,.1f}} MiB<extra></extra>",
        )
    figure.update_layout(barmode="stack")
    _lay_out(figure, max((row.memory_bytes or 0) / 2**20 for row in rows))
    return figure


def _lay_out(figure: "Figure", longest: float) -> None:
    figure.update_layout(bargap=0.3)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    # The value of the longest bar is written behind it.
    figure.update_xaxes(showgrid=True, range=[0, _SPACE_FOR_TEXT * longest] if longest else None)


def _latency(row: LadderRow) -> float:
    return row.mean_latency or 0.0


def _memory_text(row: LadderRow) -> str:
    return format_bytes(row.memory_bytes or 0)


def _rate_text(row: LadderRow) -> str:
    rate = f"{_rate(row):,.{0 if _rate(row) >= _WHOLE else 1}f}"
    return rate if row.ratio is None else f"{rate}, x {row.ratio:,.2f}"


def _colour(row: LadderRow) -> str:
    if row.ratio is not None and row.ratio < 1:
        return QUIET
    return PREFILL if row.is_lossy else DECODE
