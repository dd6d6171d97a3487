"""Gives a command the options of a load test: the requests, their timing, and objectives. Measures nothing."""

from collections.abc import Mapping
from functools import wraps
from typing import Any

import click

from archerfish.bench.serve.datasets.options import DatasetOptions
from archerfish.bench.serve.options import LoadOptions
from archerfish.cli.field_options import CommandFunction, SectionedCommand, field_options, take_given
from archerfish.config.load import read_flags

_GOODPUT = "--goodput"
_RECORDS: dict[str, tuple[type, str]] = {"load": (LoadOptions, "Load"), "dataset": (DatasetOptions, "Dataset")}

goodput_option = click.option(
    _GOODPUT,
    multiple=True,
    metavar="NAME:MS...",
    help="Objectives that a good request meets, in milliseconds: any of ttft:200 tpot:50 e2el:5000.",
)
url_option = click.option(
    "--url",
    "--base-url",
    metavar="URL",
    help="Server to measure, such as http://127.0.0.1:8000. Without one, archerfish serve is started for the run.",
)
dollars_option = click.option(
    "--dollars-per-hour",
    type=click.FloatRange(min=0, min_open=True),
    metavar="NUMBER",
    help="Price of the server, to report costs.",
)


class GoodputCommand(SectionedCommand):
    """A command that also accepts several objectives after one --goodput, as vLLM's does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        behind = False
        for argument in args:
            if argument.startswith("-"):
                behind = argument == _GOODPUT
            elif behind and spread[-1] != _GOODPUT:
                spread.append(_GOODPUT)
            spread.append(argument)
        return super().parse_args(ctx, spread)


def load_options(
    command: CommandFunction, *, more: Mapping[str, tuple[type, str]] | None = None, left_out: tuple[str, ...] = ()
) -> CommandFunction:
    """Call the command with `load` and `dataset`, and with the records in `more`, by name and heading.

    Options of the load that are left out have their defaults.
    """
    records = {**(more or {}), **_RECORDS}

    @wraps(command)
    def with_options(**parameters: Any) -> None:
        for name, (record, _) in records.items():
            parameters[name] = record(**read_flags(record, take_given(parameters, f"{name}_")))
        command(**parameters)

    wrapped: CommandFunction = with_options
    for name, (record, section) in reversed(records.items()):
        hidden = left_out if name in _RECORDS else ()
        wrapped = field_options(record, section=section, prefix=f"{name}_", left_out=hidden)(wrapped)
    return wrapped
