"""`archerfish bench report`: a saved run as a page of charts."""

from pathlib import Path

import click

from archerfish.cli.bench.load_options import GoodputCommand, dollars_option, goodput_option
from archerfish.metrics.timing import parse_objectives


@click.command("report", cls=GoodputCommand)
@click.argument("run_file", metavar="RUN.json", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="HTML file to write, by default RUN.html."
)
@goodput_option
@dollars_option
def command(run_file: Path, output: Path | None, goodput: tuple[str, ...], dollars_per_hour: float | None) -> None:
    """Make an HTML report of a saved run of bench serve.

    One HTML file that needs nothing else: the verdict in words, every figure, and interactive charts.
    """
    objectives = parse_objectives(goodput)
    from archerfish.bench.report.run_page import save_report
    from archerfish.bench.serve.records import load_run

    target = output or run_file.with_suffix(".html")
    save_report(load_run(run_file), target, objectives=objectives, dollars_per_hour=dollars_per_hour)
    click.echo(target)
