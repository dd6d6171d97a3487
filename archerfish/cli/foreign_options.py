"""Options of other engines on the command line: accepted where they ask for nothing, else refused with what to use."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import click

from archerfish.config.compatibility import FOREIGN, translate
from archerfish.config.settings import flag_name
from archerfish.errors import ConfigError


def without_foreign_options(options: Sequence[click.Option], arguments: Sequence[str]) -> list[str]:
    """The arguments without options of other engines that ask for nothing, and with our own in place of others.

    Options of the command itself always come first, so no name is taken from them.
    """
    foreign, kept = _parted(options, arguments)
    translated = translate(foreign, flag_name)
    for notice in translated.notices:
        click.echo(notice, err=True)
    for name, value in translated.settings.items():
        if any(argument.partition("=")[0] == flag_name(name) for argument in kept):
            flags = " and ".join(map(flag_name, foreign))
            raise ConfigError(f"{flags} asks for {flag_name(name)} {value}: leave one of them out")
        kept = [flag_name(name), value, *kept]
    return kept


def _parted(options: Sequence[click.Option], arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Options of other engines by name, and all other arguments."""
    own = {spelling: option for option in options for spelling in (*option.opts, *option.secondary_opts)}
    foreign: dict[str, Any] = {}
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        spelling, has_value, value = argument.partition("=")
        name = _foreign_name(spelling)
        if argument == "--":
            kept += [argument, *rest]
        elif spelling in own:
            kept.append(argument)
            # What follows is its value, whatever it looks like.
            if not has_value and not own[spelling].is_flag:
                kept += _taken(rest, own[spelling].nargs)
        elif name is None:
            kept.append(argument)
        elif FOREIGN[name].is_switch:
            is_negated = spelling.lstrip("-").replace("-", "_") != name
            foreign[name] = value if has_value else not is_negated
        else:
            foreign[name] = value if has_value else next(rest, "")
    return foreign, kept


def _foreign_name(spelling: str) -> str | None:
    """The name in the table of an option's spelling, be it negated; None if it is not there."""
    if not spelling.startswith("-"):
        return None
    name = spelling.lstrip("-").replace("-", "_")
    if name in FOREIGN:
        return name
    positive = name.removeprefix("no_")
    return positive if positive in FOREIGN and FOREIGN[positive].is_switch else None


def _taken(rest: Iterator[str], count: int) -> list[str]:
    return list(islice(rest, count))
