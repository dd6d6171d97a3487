"""Writes a page of text, tables and charts as one self-contained HTML file. Knows no benchmark."""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from archerfish.bench.report.style import DARK
from archerfish.errors import ConfigError

if TYPE_CHECKING:
    from archerfish.bench.report.style import Chart

_ASSETS = files("archerfish.bench.report") / "assets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A warning above the figures."""

    name: str
    text: str
    is_alarm: bool


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its name, shown large."""

    name: str
    value: str
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    heading: str
    columns: tuple[str, ...]
    """Names of the columns; the first column names the rows."""
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    is_wide: bool = False
    """Whether the table takes the page's whole width."""


@dataclass(frozen=True, slots=True)
class Term:
    name: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The result in words."""

    headline: str
    sentence: str
    evidence: tuple[Term, ...] = ()
    suggestions: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    title: str
    subtitle: str
    alarm: str = ""
    """A warning in red above everything; empty if there is none."""
    notices: tuple[Notice, ...] = ()
    conclusion: Conclusion
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: "tuple[Chart, ...]" = ()
    version: str
    """Version of the package that measured."""


def render(page: ReportPage) -> str:
    from jinja2 import Environment
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(_asset("page.html.jinja"))
    figures = {chart.name: json.loads(chart.figure.to_json()) for chart in page.charts}
    return template.render(
        page=page,
        style=Markup(_asset("page.css")),
        script=Markup(_asset("page.js")),
        plotly=Markup(get_plotlyjs()),
        data=Markup(_for_script({"figures": figures, "dark": DARK})),
    )


def save_page(page: ReportPage, path: Path) -> None:
    """Write the page to a file, atomically."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(render(page), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {path}: {error.strerror}") from error


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _for_script(value: object) -> str:
    """Return JSON that cannot end the script element, whatever its texts contain."""
    return json.dumps(value).replace("<", "\\u003c")
