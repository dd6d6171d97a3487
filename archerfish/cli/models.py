"""`archerfish models`: what can run without a download."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from archerfish.cli.inventory import FoundModel, Inventory

_HEADINGS = ("name", "where", "family", "parameters", "dtype", "on disk", "context")
_NUMBERS = ("parameters", "on disk", "context")


@click.command("models")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; sizes in bytes.")
def command(as_json: bool) -> None:
    """List bundled models and those in the hub cache.

    No weights are read. HF_HUB_CACHE or HF_HOME set the location of the hub cache.
    """
    from archerfish.cli.inventory import take_inventory

    inventory = take_inventory()
    if as_json:
        models = [_record(model) for model in inventory.models]
        click.echo(json.dumps({**asdict(inventory), "models": models}, indent=2))
    else:
        _print(inventory)


def _record(model: "FoundModel") -> dict[str, Any]:
    values = asdict(model)
    description = values.pop("description")
    return {**values, **description}


def _print(inventory: "Inventory") -> None:
    # Not cut in a narrow terminal: names are there to be copied.
    if inventory.models:
        _print_columns([_HEADINGS, *(_cells(model) for model in inventory.models)])
    elif inventory.hub_cache_problem is None:
        click.echo(f"There are no bundled models, and none in the hub cache, {inventory.hub_cache}.")
    else:
        click.echo("There are no bundled models.")
    problems = [f"{model.name}: {_reason(model)}" for model in inventory.models if model.description.problem]
    if inventory.hub_cache_problem is not None:
        problems.append(f"the hub cache, {inventory.hub_cache}, cannot be read: {inventory.hub_cache_problem}")
    if problems:
        click.echo("\n" + "\n".join(problems))


def _print_columns(rows: list[tuple[str, ...]]) -> None:
    columns = []
    for heading, *cells in zip(*rows, strict=True):
        width = max(map(len, (heading, *cells)))
        align = str.rjust if heading in _NUMBERS else str.ljust
        columns.append([align(cell, width) for cell in (heading, *cells)])
    for row in zip(*columns, strict=True):
        click.echo("  ".join(row))


def _cells(model: "FoundModel") -> tuple[str, ...]:
    from archerfish.config.numbers import format_bytes

    known = model.description
    return (
        model.name,
        model.location,
        known.family or "-",
        "-" if known.num_parameters is None else _count(known.num_parameters),
        known.dtype or "-",
        format_bytes(model.num_bytes),
        "-" if known.context_length is None else f"{known.context_length:,}",
    )


def _reason(model: "FoundModel") -> str:
    """Return the problem, short enough for a list: without the path and the advice, which --json has."""
    problem = model.description.problem or ""
    return problem.replace(f"{model.directory}/", "").replace(model.directory, "it").partition(";")[0]


def _count(number: int) -> str:
    """Return a count in short form, such as '12.3M' or '8.0B'."""
    scale, unit = (1e9, "B") if number >= 1e9 else (1e6, "M") if number >= 1e6 else (1e3, "K")
    return f"{number / scale:,.1f}{unit}"
