"""Options of other engines on the command line: accepted where they ask for nothing, else refused with what to use."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import click

from archerfish.config.compatibility import FOREIGN, translate
from archerfish.config.settings import flag_name
from archerfish.errors import ConfigError


def without_foreign_options(options: Sequence[click.Option], arguments: Sequence[str]) -> list[str]:
    """The arguments without options of other engines that ask for nothing, and with our own in place of others.

    Options of the command itself always come first, so no name is taken from them.
    """
    foreign, spellings, kept = _parted(options, arguments)
    translated = translate(foreign, lambda name: spellings.get(name) or flag_name(name))
    for notice in translated.notices:
        click.echo(notice, err=True)
    for name, value in translated.settings.items():
        if any(argument.partition("=")[0] == flag_name(name) for argument in kept):
            raise ConfigError(
                f"{' and '.join(spellings.values())} asks for {flag_name(name)} {value}: leave one of them out"
            )
        kept = [flag_name(name), value, *kept]
    return kept


class _Parted(NamedTuple):
    foreign: dict[str, Any]
    """Values of options of other engines, by name."""
    spellings: dict[str, str]
    """How each was written."""
    kept: list[str]
    """All other arguments."""


def _parted(options: Sequence[click.Option], arguments: Sequence[str]) -> _Parted:
    own = {spelling: option for option in options for spelling in (*option.opts, *option.secondary_opts)}
    parted = _Parted({}, {}, [])
    foreign, spellings, kept = parted
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
        else:
            spellings[name] = spelling
            if has_value:
                foreign[name] = value
            elif FOREIGN[name].is_switch:
                foreign[name] = spelling.lstrip("-").replace("-", "_") == name
            else:
                foreign[name] = next(rest, "")
    return parted


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
