"""Shows results of engine benchmarks: as tables for people, as JSON for programs. Measures nothing."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from archerfish.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from archerfish.bench.distribution import Distribution
    from archerfish.bench.offline.conditions import Conditions
    from archerfish.bench.offline.phases import Phase
    from archerfish.machine.peak import Peak
    from archerfish.metrics.speculation import SpeculationStats

_PERCENTS = (50, 90, 95, 99)
_FILE_WIDTH = 120
_TEXT_COLUMNS = frozenset(("limit", "shape", "kernel", " "))


report_option = click.option(
    "--report",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write an HTML report: one self-contained file.",
)


def check_report(path: Path | None) -> None:
    """Refuse a path where no page can be written, before anything is measured."""
    if path is not None and not path.resolve().parent.is_dir():
        raise ConfigError(f"--report: there is no directory {path.parent}")


def write_record(conditions: "Conditions", result: Any) -> None:
    """Print one JSON object; times in seconds."""
    click.echo(json.dumps({"conditions": asdict(conditions), "result": asdict(result)}, indent=2))


def print_tables(title: str, *tables: "Table") -> None:
    from rich.console import Console

    # In a file, lines need not fit a window.
    console = Console(width=None if sys.stdout.isatty() else _FILE_WIDTH)
    console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
    for table in tables:
        console.print(table)


def table(*columns: str) -> "Table":
    """Return a plain table. The first column and the known text columns hold text, all others numbers."""
    from rich import box
    from rich.table import Table

    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for index, column in enumerate(columns):
        is_text = index == 0 or column in _TEXT_COLUMNS
        result.add_column(column, justify="left" if is_text else "right", no_wrap=not is_text)
    return result


def latency_table(rows: "Sequence[tuple[str, Distribution | None]]") -> "Table":
    """Return a table of distributions of seconds, shown in milliseconds."""
    result = table("ms", "mean", *(f"p{percent}" for percent in _PERCENTS))
    for name, latency in rows:
        if latency is not None:
            values = (latency.mean, *(latency.percentile(percent) for percent in _PERCENTS))
            result.add_row(name, *(f"{value * 1000:,.2f}" for value in values))
    return result


def phase_table(prefill: "Phase", decode: "Phase", peak: "Peak") -> "Table":
    result = table("phase", "tokens", "seconds", "tokens/s", "MFU", "MBU", "limit")
    for name, phase in (("prefill", prefill), ("decode", decode)):
        rate = "-" if phase.tokens_per_second is None else f"{phase.tokens_per_second:,.1f}"
        shares = (percentage(phase.mfu), percentage(phase.mbu))
        result.add_row(name, f"{phase.num_tokens:,}", f"{phase.seconds:,.3f}", rate, *shares, phase.limit)
    result.caption = peak_text(peak)
    result.caption_justify = "left"
    return result


def speculation_tables(stats: "SpeculationStats | None") -> "list[Table]":
    """Return a table of the figures, or none if nothing was drafted."""
    if stats is None:
        return []
    from archerfish.metrics.speculation import speculation_rows

    result = table("speculative decoding", "value")
    for name, value in speculation_rows(stats):
        result.add_row(name, value)
    return [result]


def peak_text(peak: "Peak") -> str:
    return f"Measured peak: {peak.flops / 1e9:,.1f} GFLOP/s, {peak.bandwidth / 1e9:,.1f} GB/s."


def percentage(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
