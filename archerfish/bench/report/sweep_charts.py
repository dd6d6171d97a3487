"""The charts of a sweep: the server's figures by load. Computes no metric; needs plotly."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from archerfish.bench.report.style import (
    BAD,
    DECODE,
    GOOD,
    LOGARITHMIC,
    P50,
    P90,
    P99,
    QUIET,
    RUNNING,
    Chart,
    new_figure,
)
from archerfish.bench.serve.summary import Summary
from archerfish.bench.sweep.sweep import LatencyName, PointRecord, Sweep, percentile_of
from archerfish.metrics.timing import Objectives

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Read = Callable[[Summary], float | None]
_WIDE_RANGE = 8.0
"""Ratio of the loads above which the axis is logarithmic."""


def sweep_charts(sweep: Sweep) -> list[Chart]:
    charts = [_requests(sweep), _tokens(sweep)]
    if sweep.objectives is not None:
        charts.append(_share(sweep))
    bounds = sweep.objectives or Objectives()
    charts.append(_latency(sweep, "ttft", "Time to first token", bounds.ttft_ms))
    charts.append(_latency(sweep, "tpot", "Time per output token", bounds.tpot_ms))
    return charts


def _requests(sweep: Sweep) -> Chart:
    figure = _figure(sweep, "requests/s")
    _add_line(figure, sweep.points, "answered", RUNNING, "dot", lambda summary: summary.throughput.requests)
    title, caption = (
        "Requests against load",
        "All requests that were answered; good ones are not distinguished without objectives.",
    )
    if sweep.objectives is not None:
        _add_line(figure, sweep.points, "good", GOOD, "solid", _good_requests)
        title = "Goodput against load"
        caption = "Where good requests decline, more load makes the service worse for all."
    _mark_best(figure, sweep)
    return Chart(name="requests", title=title, caption=caption, figure=figure)


def _good_requests(summary: Summary) -> float | None:
    return None if summary.goodput is None else summary.goodput.requests


def _tokens(sweep: Sweep) -> Chart:
    figure = _figure(sweep, "output tokens/s")
    _add_line(figure, sweep.points, "output tokens", DECODE, "solid", lambda summary: summary.throughput.output_tokens)
    _mark_best(figure, sweep)
    return Chart(
        name="tokens",
        title="Throughput against load",
        caption="A flat curve is saturation: more load only waits longer.",
        figure=figure,
    )


def _share(sweep: Sweep) -> Chart:
    figure = _figure(sweep, "share of requests")
    for name, colour, symbol in (("held", GOOD, "circle"), ("missed", BAD, "x"), ("not counted", QUIET, "circle-open")):
        chosen = [
            (point.load, trial.summary.goodput.share)
            for point in sweep.points
            for trial in point.trials
            if trial.outcome == name and trial.summary.goodput is not None
        ]
        figure.add_scatter(
            x=[load for load, _ in chosen],
            y=[share for _, share in chosen],
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 9},
            name=name,
            showlegend=bool(chosen),
        )
    figure.add_hline(sweep.goodput_share, line={"color": QUIET, "dash": "dash", "width": 1})
    figure.update_yaxes(range=[-0.02, 1.04], tickformat=".0%")
    _mark_best(figure, sweep)
    return Chart(
        name="share",
        title="Requests that met their objectives",
        caption=f"Every trial. The dashed line is what must be met: {sweep.goodput_share:.0%}.",
        figure=figure,
    )


def _latency(sweep: Sweep, name: LatencyName, title: str, objective: float | None) -> Chart:
    figure = _figure(sweep, "ms")
    for percent, colour, dash in ((50, P50, "solid"), (90, P90, "dash"), (99, P99, "dot")):
        _add_line(figure, sweep.points, f"p{percent}", colour, dash, percentile_of(name, percent))
    if objective is not None:
        figure.add_hline(objective, line={"color": BAD, "dash": "dash", "width": 1})
    figure.update_yaxes(**LOGARITHMIC)
    _mark_best(figure, sweep)
    return Chart(
        name=name,
        title=f"{title} against load",
        caption="Means over the trials that count." + (" The red line is the objective." if objective else ""),
        figure=figure,
    )


def _figure(sweep: Sweep, unit: str) -> "Figure":
    figure = new_figure(x="requests/s offered" if sweep.axis == "request rate" else "requests at once", y=unit)
    loads = [point.load for point in sweep.points]
    if loads and max(loads) > _WIDE_RANGE * min(loads):
        figure.update_xaxes(**LOGARITHMIC)
    return figure


def _add_line(figure: "Figure", points: Sequence[PointRecord], name: str, colour: str, dash: str, read: Read) -> None:
    known = [(point.load, value) for point in points if (value := point.mean(read)) is not None]
    figure.add_scatter(
        x=[load for load, _ in known],
        y=[value for _, value in known],
        mode="lines+markers",
        line={"color": colour, "dash": dash, "width": 2},
        name=name,
        hovertemplate="%{x:,.4g}: %{y:,.4g}<extra>" + name + "</extra>",
    )


def _mark_best(figure: "Figure", sweep: Sweep) -> None:
    if sweep.best is not None:
        figure.add_vline(sweep.best, line={"color": GOOD, "width": 1, "dash": "dashdot"})
