"""`archerfish bench compare`: saved runs side by side, with intervals of what differs."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from archerfish.cli.bench.load_options import GoodputCommand, goodput_option
from archerfish.cli.bench.reporting import check_report, report_option
from archerfish.metrics.timing import parse_objectives

if TYPE_CHECKING:
    from rich.text import Text

    from archerfish.bench.compare.compare import Change, Comparison
    from archerfish.bench.serve.records import BenchRun

_STYLES = {
    "better": "green",
    "worse": "red",
    "perhaps better": "yellow",
    "perhaps worse": "yellow",
    "no difference": "dim",
}


@click.command("compare", cls=GoodputCommand)
@click.argument("files", metavar="[LABEL=]RUN.json...", nargs=-1, required=True)
@goodput_option
@click.option("--force", is_flag=True, help="Also compare runs with different loads, and invalid runs.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="INT", help="Seed of the resampling.")
@report_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; differences relative to the base.")
def command(
    files: tuple[str, ...], goodput: tuple[str, ...], force: bool, seed: int, report: Path | None, as_json: bool
) -> None:
    """Compare saved runs, with confidence intervals.

    Runs with the same label are repeats of the same thing; the first label is the base. With several runs of every
    label, the intervals (95 %) cover differences between repeats; otherwise those between requests of a run. If an
    interval contains 0, the difference may be chance.
    """
    objectives = parse_objectives(goodput)
    check_report(report)
    from archerfish.bench.compare.compare import compare, group

    sides = group([_read(file) for file in files])
    comparison = compare(sides, objectives=objectives, force=force, seed=seed)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(comparison).decode())
    else:
        _print(comparison)
    if report is not None:
        from archerfish.bench.report.compare_page import compare_page
        from archerfish.bench.report.page import save_page

        save_page(compare_page(comparison), report)
        click.echo(f"the report is {report}", err=True)


def _read(file: str) -> "BenchRun":
    from archerfish.bench.serve.records import load_run

    label, equals, path = file.partition("=")
    if not equals or Path(file).exists():
        return load_run(Path(file))
    return replace(load_run(Path(path)), label=label)


def _print(comparison: "Comparison") -> None:
    from rich.text import Text

    from archerfish.cli.bench.reporting import print_tables, table

    sides = [
        f"{label} ({count} runs)" if count > 1 else label
        for label, count in zip(comparison.labels, comparison.num_runs, strict=True)
    ]
    changes = [title for side in sides[1:] for title in (side, "change", "95 % interval", "note")]
    rows = table("", sides[0], *changes)
    for row in comparison.rows:
        cells: list[Text] = [Text(f"{row.name}, {row.unit}"), _value(row.values[0])]
        for value, change in zip(row.values[1:], row.changes, strict=True):
            cells += [_value(value), *_change_cells(change)]
        rows.add_row(*cells)
    print_tables(f"Against {comparison.labels[0]}", rows)
    for difference in comparison.differences:
        click.echo(f"NOT COMPARABLE: {difference.field} is {' or '.join(difference.values)}", err=True)
    if comparison.method == "bootstrap" and not comparison.has_same_seeds:
        click.echo("The seeds differ: requests and their arrival times were drawn differently.", err=True)
    if comparison.method == "bootstrap":
        click.echo(
            "One run per label: the intervals cover differences between requests, not between runs. Give several files "
            "per label to cover those.",
            err=True,
        )


def _value(value: float | None) -> "Text":
    from rich.text import Text

    return Text("-" if value is None else f"{value:,.2f}")


def _change_cells(change: "Change | None") -> "list[Text]":
    from rich.text import Text

    if change is None:
        return [Text("-"), Text("-"), Text("")]
    low, high = change.interval
    style = _STYLES[change.outcome]
    return [
        Text(f"{change.relative:+.1%}", style),
        Text(f"{low:+.1%} to {high:+.1%}", style),
        Text(change.outcome, style),
    ]
