"""The style of charts: colours for light and dark, fonts, axes. Knows nothing of their contents.

Figures are made in light colours; the page replaces each by its dark counterpart if the reader prefers that. Colours
are distinguishable with red-green colour blindness, and lines that could be confused also differ in dash.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

INK, QUIET, GRID = "#0f1f28", "#4a5d68", "#dfe7eb"
PREFILL, DECODE = "#d9690a", "#00818f"
RUNNING, WAITING = "#2460c4", "#c2347f"
P50, P90, P99 = "#123f86", "#2f74cf", "#7a93b5"
GOOD, BAD = "#1a7f45", "#b3261e"

DARK = {
    INK: "#e6eff3",
    QUIET: "#9fb2bc",
    GRID: "#2b3d47",
    PREFILL: "#f2913d",
    DECODE: "#3fc7d6",
    RUNNING: "#6aa5ff",
    WAITING: "#f27ab6",
    P50: "#9cc6ff",
    P90: "#5493ee",
    P99: "#7f93ad",
    GOOD: "#4fce85",
    BAD: "#ff8a80",
}
"""The dark counterpart of each colour."""

_TICKS = [digit * 10.0**exponent for exponent in range(-4, 7) for digit in (1, 2, 5)]
LOGARITHMIC: dict[str, Any] = {"type": "log", "tickvals": _TICKS, "ticktext": [f"{tick:,.10g}" for tick in _TICKS]}
"""An axis with ticks at whole numbers: plotly's own drop the zeros between powers of ten."""

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', sans-serif"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure with its explanation."""

    name: str
    """Identifier within the page."""
    title: str
    caption: str
    figure: "Figure"
    is_wide: bool = False
    """Whether the chart takes the page's whole width."""


def new_figure(*, x: str, y: str, height: int = 320) -> "Figure":
    """Return an empty figure with named axes."""
    from plotly.graph_objects import Figure

    figure = Figure()
    apply_style(figure, height)
    figure.update_xaxes(title_text=x)
    figure.update_yaxes(title_text=y)
    return figure


def apply_style(figure: "Figure", height: int) -> None:
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 64, "r": 16, "t": 36, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": _FONT, "size": 13, "color": INK},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": INK}},
        hovermode="closest",
        bargap=0,
    )
    axis: dict[str, Any] = {
        "gridcolor": GRID,
        "zerolinecolor": GRID,
        "linecolor": QUIET,
        "tickfont": {"color": QUIET, "size": 12},
        "title_font": {"color": QUIET, "size": 12},
        "automargin": True,
    }
    figure.update_xaxes(showgrid=False, showline=True, ticks="outside", tickcolor=QUIET, **axis)
    figure.update_yaxes(rangemode="tozero", **axis)
