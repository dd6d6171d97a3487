"""`archerfish bench sweep`: a server at many loads, and the most that it serves in time."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from archerfish.bench.serve.datasets.options import DatasetOptions
from archerfish.bench.serve.options import LoadOptions
from archerfish.bench.serve.records import BenchRun, save_run
from archerfish.bench.sweep.options import SweepOptions
from archerfish.bench.sweep.sweep import Sweep, load_text, sweep, uncounted_reasons, verdict_text
from archerfish.cli.bench.load_options import (
    GoodputCommand,
    dollars_option,
    goodput_option,
    load_options,
    url_option,
)
from archerfish.cli.bench.reporting import check_report, report_option
from archerfish.cli.field_options import NUMBERS_NOTE
from archerfish.errors import ConfigError, InvalidMeasurement
from archerfish.metrics.timing import parse_objectives

if TYPE_CHECKING:
    from archerfish.bench.sweep.sweep import PointRecord

_SWEPT = (
    *("request_rate", "max_concurrency", "num_prompts", "label", "arrivals", "time_scale"),
    *("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps"),
)
"""Options of a load that the sweep itself sets."""
_BAR_WIDTH = 16


@click.command("sweep", cls=GoodputCommand, epilog=NUMBERS_NOTE)
@url_option
@goodput_option
@dollars_option
@report_option
@click.option(
    "--result-dir", type=click.Path(path_type=Path), metavar="DIR", help="Write every run there, as bench serve does."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object; times in seconds.")
@partial(load_options, more={"chosen": (SweepOptions, "Sweep")}, left_out=_SWEPT)
def command(
    url: str | None,
    goodput: tuple[str, ...],
    dollars_per_hour: float | None,
    chosen: SweepOptions,
    load: LoadOptions,
    dataset: DatasetOptions,
    **output: Any,
) -> None:
    """Find the highest load that a server serves in time.

    A load is met when --goodput-share of its requests meet --goodput, or, without objectives, when the server keeps up
    with it. The limit between the highest load that is met and the lowest that is not is found by bisection. The server
    is started once for all loads. Measurements that are invalid because of the client or the load do not count.
    """
    writer = _Output(**output)
    plan = chosen.plan(parse_objectives(goodput), dollars_per_hour)
    from archerfish.bench.serve.measure import measure_load, open_server, prepare_load

    is_own = url is None
    # Mistakes in the dataset are reported before a server is started.
    prepare_load(replace(load, num_prompts=1), dataset, is_own=is_own)
    with open_server(load, url) as address:

        def measure(offered: float, number: int) -> BenchRun:
            options = _at(load, chosen, offered, number)
            run = measure_load(address, options, prepare_load(options, dataset, is_own=is_own), is_own=is_own)
            writer.save(run, number)
            what = f"{load_text(offered, chosen.axis)} with seed {options.seed}"
            click.echo(f"measured {what}: {_first_words(run)}", err=True)
            return run

        result = sweep(measure, plan)
    writer.write(result)


def _at(load: LoadOptions, chosen: SweepOptions, offered: float, number: int) -> LoadOptions:
    """Return the load of one measurement. Each has its own seed: the server may have cached the requests of others."""
    at = replace(load, num_prompts=chosen.num_requests(offered), seed=load.seed + number)
    if chosen.axis == "request rate":
        return replace(at, request_rate=repr(offered), label=f"{offered:.4g}/s")
    return replace(at, max_concurrency=int(offered), label=f"{offered:.0f} at once")


def _first_words(run: BenchRun) -> str:
    fatal = [f"{finding.what}; {finding.fix}" for finding in run.findings if finding.is_fatal]
    return fatal[0] if fatal else f"{len(run.succeeded)} requests in {run.duration:.1f} s"


class _Output:
    """Prints and saves the results; invalid options are refused before anything is measured."""

    def __init__(self, *, report: Path | None, result_dir: Path | None, as_json: bool) -> None:
        if result_dir is not None and not result_dir.is_dir():
            raise ConfigError(f"--result-dir: there is no directory {result_dir}")
        check_report(report)
        self._report = report
        self._directory = result_dir
        self._as_json = as_json

    def save(self, run: BenchRun, number: int) -> None:
        if self._directory is not None:
            save_run(run, self._directory / f"sweep-{number:03d}.json")

    def write(self, result: Sweep) -> None:
        if self._as_json:
            click.echo(msgspec.json.encode(result).decode())
        else:
            _print(result)
        if self._report is not None:
            from archerfish.bench.report.page import save_page
            from archerfish.bench.report.sweep_page import sweep_page

            save_page(sweep_page(result), self._report)
            click.echo(f"the report is {self._report}", err=True)
        if not any(point.counted for point in result.points):
            raise InvalidMeasurement(f"no measurement could be counted: {uncounted_reasons(result.points)[0]}")


def _print(result: Sweep) -> None:
    from archerfish.bench.report.sweep_page import COLUMNS, point_cells
    from archerfish.cli.bench.reporting import print_tables, table

    # The columns that fit eighty characters; the page has all of them.
    shown = [COLUMNS.index(name) for name in ("load", "outcome", "requests/s", "good", "TTFT p99", "TPOT p99")]
    rows = table(*(COLUMNS[index] for index in shown), " ")
    most = max((_good_or_all(point) for point in result.points), default=0.0)
    for point in result.points:
        cells = point_cells(point)
        bar = "█" * round(_BAR_WIDTH * _good_or_all(point) / most) if most else ""
        style = "bold green" if point.load == result.best else None
        rows.add_row(*(cells[index] for index in shown), bar, style=style)
    what = "requests/s" if result.objectives is None else "good requests/s"
    rows.caption, rows.caption_justify = f"Latencies in ms. Bars: {what}.", "left"
    print_tables(verdict_text(result), rows)
    for line in uncounted_reasons(result.points):
        click.echo(line, err=True)
    if result.costs is not None and result.costs.per_million_tokens is not None:
        per_output = result.costs.per_million_output_tokens_in_all or 0.0
        click.echo(
            f"At this load, 1M tokens cost ${result.costs.per_million_tokens:.4f}; if output tokens carry all of it, "
            f"1M of them cost ${per_output:.4f}."
        )


def _good_or_all(point: "PointRecord") -> float:
    """Return good requests per second, or all requests per second without objectives."""
    rate = point.mean(
        lambda summary: summary.throughput.requests if summary.goodput is None else summary.goodput.requests
    )
    return rate or 0.0
