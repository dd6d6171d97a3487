"""The charts of one run: latencies, flow, the server's state, its roofline. Computes no metric; needs plotly."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from archerfish.bench.distribution import distribution
from archerfish.bench.report.series import Flow, RooflinePoints, SeriesPoint, bars, flow, roofline_points, thinned
from archerfish.bench.report.style import (
    BAD,
    DECODE,
    GOOD,
    INK,
    LOGARITHMIC,
    P50,
    P90,
    P99,
    PREFILL,
    QUIET,
    RUNNING,
    WAITING,
    Chart,
    apply_style,
    new_figure,
)
from archerfish.bench.serve.records import BenchRun, RequestRecord
from archerfish.bench.serve.summary import Summary
from archerfish.metrics.speculation import SpeculationStats, visible_positions
from archerfish.metrics.timing import Objectives

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_MS = 1000.0
_MARKS = ((50, P50, "solid"), (90, P90, "dash"), (99, P99, "dot"))
_NUM_POSITION_TICKS = 8
_SECONDS = "seconds since the run began"


def run_charts(run: BenchRun, summary: Summary, objectives: Objectives | None) -> list[Chart]:
    """Return the charts for which the run has data."""
    begun = [request for request in run.succeeded if request.token_times]
    points = roofline_points(run.samples)
    charts = [_latencies(begun), _first_tokens(begun, objectives)] if begun else []
    if points is not None:
        charts.append(_roofline(points))
    charts.append(_flow(flow(run, objectives), objectives))
    if len(run.samples) > 1:
        charts += [_state(run), _fullness(run)]
    if summary.engine is not None and summary.engine.speculation is not None:
        charts.append(_acceptance(summary.engine.speculation))
    return charts


# -- latencies --------------------------------------------------------------------------------------------------------


def _latencies(requests: Sequence[RequestRecord]) -> Chart:
    from plotly.subplots import make_subplots

    timings = [request.timing for request in requests]
    families: tuple[tuple[str, Sequence[float | None]], ...] = (
        ("TTFT", [timing.ttft for timing in timings]),
        ("TPOT", [timing.tpot for timing in timings]),
        ("ITL", [gap for request in requests for gap in request.gaps]),
        ("End to end", [timing.total for timing in timings]),
    )
    figure = make_subplots(rows=2, cols=2, subplot_titles=[name for name, _ in families], vertical_spacing=0.2)
    apply_style(figure, 560)
    for index, (_, latencies) in enumerate(families):
        values = [value * _MS for value in latencies if value is not None]
        if values:
            _add_histogram(figure, values, row=index // 2 + 1, col=index % 2 + 1)
    figure.update_xaxes(title_text="ms")
    figure.update_yaxes(tickformat=".0%")
    figure.update_annotations(font={"size": 14, "color": INK})
    for percent, colour, dash in _MARKS:
        line = {"color": colour, "width": 2, "dash": dash}
        figure.add_scatter(x=[None], y=[None], mode="lines", line=line, name=f"p{percent}", row=1, col=1)
    figure.update_layout(legend={"y": 1.09}, margin={"t": 72})
    return Chart(
        name="latencies",
        title="Latency",
        caption="Share of requests (ITL: of the gaps between tokens) in each bar. The axis is logarithmic where the "
        "tail is long.",
        figure=figure,
        is_wide=True,
    )


def _add_histogram(figure: "Figure", values: Sequence[float], *, row: int, col: int) -> None:
    histogram, summary = bars(values), distribution(values)
    assert summary is not None
    edges = histogram.edges
    # A staircase looks the same on linear and logarithmic axes, unlike bars.
    figure.add_scatter(
        x=np.repeat(edges, 2),
        y=np.concatenate([[0.0], np.repeat(histogram.shares, 2), [0.0]]),
        mode="lines",
        line={"color": DECODE, "width": 1},
        fill="tozeroy",
        showlegend=False,
        hovertemplate="%{x:.4g} ms: %{y:.1%}<extra></extra>",
        row=row,
        col=col,
    )
    top = float(histogram.shares.max()) * 1.05
    for percent, colour, dash in _MARKS:
        value = summary.percentile(percent)
        figure.add_scatter(
            x=[value, value],
            y=[0, top],
            mode="lines",
            line={"color": colour, "width": 2, "dash": dash},
            showlegend=False,
            hovertemplate=f"p{percent} = {value:,.4g} ms<extra></extra>",
            row=row,
            col=col,
        )
    if histogram.is_logarithmic:
        figure.update_xaxes(**LOGARITHMIC, row=row, col=col)


def _first_tokens(requests: Sequence[RequestRecord], objectives: Objectives | None) -> Chart:
    figure = new_figure(x="input tokens", y="time to first token, ms", height=400)
    shown = requests[thinned(len(requests))]
    bounds = objectives or Objectives()
    good = [bounds.met_by(request.timing, request.outcome) for request in shown]
    named = (("good", GOOD, "circle", True), ("missed its objectives", BAD, "x", False))
    for name, colour, symbol, wanted in named:
        chosen = [request for request, is_good in zip(shown, good, strict=True) if is_good is wanted]
        if chosen:
            figure.add_scatter(
                x=[request.num_input_tokens for request in chosen],
                y=[(request.timing.ttft or 0.0) * _MS for request in chosen],
                mode="markers",
                marker={"color": colour if objectives else DECODE, "symbol": symbol, "size": 6, "opacity": 0.6},
                name=name if objectives else "request",
                hovertemplate="%{x:,} tokens: %{y:,.1f} ms<extra></extra>",
            )
    if objectives is not None and objectives.ttft_ms is not None:
        figure.add_hline(objectives.ttft_ms, line={"color": QUIET, "dash": "dash", "width": 1})
    few = "" if len(shown) == len(requests) else f" {len(shown):,} of {len(requests):,} requests are shown."
    return Chart(
        name="first-tokens",
        title="Time to first token against input length",
        caption=f"A slope is prefill; height at the same length is queueing.{few}",
        figure=figure,
    )


# -- over time --------------------------------------------------------------------------------------------------------


def _flow(rates: Flow, objectives: Objectives | None) -> Chart:
    from plotly.subplots import make_subplots

    # Separate scales: there may be a hundred input tokens per output token.
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    apply_style(figure, 520)
    lines = [
        ("output tokens", rates.output_tokens, DECODE, "solid", 1),
        ("input tokens", rates.input_tokens, PREFILL, "solid", 2),
        ("requests ended", rates.ended_requests, RUNNING, "dot", 3),
    ]
    if objectives is not None:
        lines.append(("good requests", rates.good_requests, GOOD, "solid", 3))
    for name, values, colour, dash, row in lines:
        line = {"color": colour, "dash": dash, "width": 2, "shape": "hvh"}
        figure.add_scatter(x=rates.times, y=values, mode="lines", name=name, line=line, row=row, col=1)
    figure.update_layout(hovermode="x unified")
    for row, unit in enumerate(("tokens/s", "tokens/s", "requests/s"), 1):
        figure.update_yaxes(title_text=unit, row=row, col=1)
    figure.update_xaxes(title_text=_SECONDS, row=3, col=1)
    return Chart(
        name="flow",
        title="Throughput and goodput over time",
        caption="Input counts when its answer begins, a request when it ends."
        + ("" if objectives else " Without objectives every request that ends is good."),
        figure=figure,
        is_wide=True,
    )


def _state(run: BenchRun) -> Chart:
    figure = new_figure(x=_SECONDS, y="sequences")
    times = [sample.time for sample in run.samples]
    for name, values, colour, dash in (
        ("running", [sample.num_running for sample in run.samples], RUNNING, "solid"),
        ("waiting", [sample.num_waiting for sample in run.samples], WAITING, "dash"),
    ):
        line = {"color": colour, "dash": dash, "width": 2, "shape": "vh"}
        figure.add_scatter(x=times, y=values, mode="lines", name=name, line=line)
    figure.update_layout(hovermode="x unified")
    return Chart(
        name="state",
        title="Running and waiting",
        caption="As the server reported it. If the line of waiting requests only rises, the load cannot be served.",
        figure=figure,
    )


def _fullness(run: BenchRun) -> Chart:
    figure = new_figure(x=_SECONDS, y="share")
    times = [sample.time for sample in run.samples]
    for name, values, colour, dash in (
        ("KV cache in use", [sample.kv_cache_usage for sample in run.samples], DECODE, "solid"),
        ("batch occupancy, last 60 s", [sample.batch_occupancy for sample in run.samples], PREFILL, "dash"),
    ):
        line = {"color": colour, "dash": dash, "width": 2}
        figure.add_scatter(x=times, y=values, mode="lines", name=name, line=line)
    figure.update_yaxes(range=[0, 1.02], tickformat=".0%")
    figure.update_layout(hovermode="x unified")
    return Chart(
        name="fullness",
        title="Batch occupancy and KV cache",
        caption="Rows taken of all there are, and blocks in use of all there are.",
        figure=figure,
    )


# -- speculative decoding ---------------------------------------------------------------------------------------------


def _acceptance(stats: SpeculationStats) -> Chart:
    shares = visible_positions(stats)
    figure = new_figure(x="position in the draft", y="share of all drafts", height=300)
    figure.add_bar(
        x=list(range(1, len(shares) + 1)),
        y=list(shares),
        marker={"color": DECODE},
        hovertemplate="position %{x}: %{y:.1%}<extra></extra>",
    )
    # A few bars need not be as wide as the page.
    last = max(len(shares), _NUM_POSITION_TICKS)
    figure.update_xaxes(dtick=max(1, last // _NUM_POSITION_TICKS), range=[0.4, last + 0.6])
    figure.update_yaxes(range=[0, 1.02], tickformat=".0%")
    figure.update_layout(bargap=0.25)
    return Chart(
        name="acceptance",
        title="Acceptance by draft position",
        caption=f"Draft acceptance rate {stats.acceptance_rate:.1%}, mean acceptance length "
        f"{stats.acceptance_length:.2f} tokens. A bar is the share of all drafts whose token at that position was "
        "accepted; drafts that were shorter count as not accepted there.",
        figure=figure,
    )


# -- the roofline -----------------------------------------------------------------------------------------------------


def _roofline(points: RooflinePoints) -> Chart:
    figure = new_figure(x="operations / byte", y="operations / s", height=400)
    peak = points.peak
    ridge = peak.flops / peak.bandwidth
    every = [*points.prefill_moments, *points.decode_moments]
    low = min([ridge, *(point.intensity for point in every)]) / 4
    high = max([ridge, *(point.intensity for point in every)]) * 4
    roof = {"color": QUIET, "width": 2}
    figure.add_scatter(
        x=[low, ridge, high],
        y=[low * peak.bandwidth, peak.flops, peak.flops],
        mode="lines",
        line=roof,
        name=f"roof: {peak.bandwidth / 1e9:,.1f} GB/s, {peak.flops / 1e9:,.1f} GFLOP/s",
        hoverinfo="skip",
    )
    for name, whole, moments, colour, symbol in (
        ("prefill", points.prefill, points.prefill_moments, PREFILL, "diamond"),
        ("decode", points.decode, points.decode_moments, DECODE, "circle"),
    ):
        _add_points(
            figure, f"{name}, moments", moments, {"color": colour, "symbol": symbol, "size": 5, "opacity": 0.35}
        )
        if whole is not None:
            line = {"color": INK, "width": 1}
            _add_points(figure, name, [whole], {"color": colour, "symbol": symbol, "size": 14, "line": line})
    figure.update_traces(showlegend=False, selector={"marker.size": 5})
    figure.update_xaxes(type="log", showgrid=True, dtick=1)
    figure.update_yaxes(type="log", exponentformat="SI", dtick=1)
    return Chart(
        name="roofline",
        title="Roofline",
        caption="Left of the bend reading sets the pace, right of it arithmetic; the distance to the roof is what is "
        "lost otherwise. Above it lies work whose weights stayed in the caches. Large marks are the whole run, small "
        "ones moments of it.",
        figure=figure,
    )


def _add_points(figure: "Figure", name: str, points: Sequence[SeriesPoint], marker: dict[str, object]) -> None:
    figure.add_scatter(
        x=[point.intensity for point in points],
        y=[point.flops for point in points],
        mode="markers",
        marker=marker,
        name=name,
        hovertemplate="%{x:.3g} operations/byte, %{y:.3s} operations/s<extra>" + name + "</extra>",
    )
