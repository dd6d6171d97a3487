"""Options of other engines on the command line: accepted where they change nothing, else refused with what to use."""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from archerfish.config.compatibility import SettingSource, shown_value, translate
from archerfish.config.foreign_settings import FOREIGN
from archerfish.config.settings import flag_name


def without_foreign_options(options: Sequence[click.Option], arguments: Sequence[str]) -> list[str]:
    """Return the arguments with options of other engines dropped if they change nothing, or replaced by our own.

    The command's own options take precedence, so none of them changes its meaning.
    """
    foreign, spellings, own_arguments = _parted(options, arguments)

    def write(name: str, value: object) -> str:
        # A flag shows its value by itself.
        return spellings[name] if isinstance(value, bool) else f"{spellings[name]} {shown_value(value)}"

    given = {_setting(argument.partition("=")[0]) for argument in own_arguments if argument.startswith("-")}
    translated = translate(foreign, SettingSource(own_settings(options), flag_name, write), given)
    for notice in translated.notices:
        click.echo(notice, err=True)
    for name, value in translated.settings.items():
        own_arguments = [flag_name(name), value, *own_arguments]
    return own_arguments


def own_settings(options: Sequence[click.Option]) -> set[str]:
    """Names of the settings that a command has flags for."""
    return {_setting(flag) for option in options for flag in option.opts if flag.startswith("--")}


def _setting(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


class _Parted(NamedTuple):
    foreign: dict[str, Any]
    """Values of options of other engines, by setting."""
    spellings: dict[str, str]
    """Spelling of each on the command line."""
    own_arguments: list[str]
    """All other arguments."""


def _parted(options: Sequence[click.Option], arguments: Sequence[str]) -> _Parted:
    own = {spelling: option for option in options for spelling in (*option.opts, *option.secondary_opts)}
    parted = _Parted({}, {}, [])
    foreign, spellings, own_arguments = parted
    rest = deque(arguments)
    while rest:
        argument = rest.popleft()
        spelling, has_value, value = argument.partition("=")
        name = _foreign_name(spelling)
        if argument == "--":
            own_arguments += [argument, *rest]
            break
        if spelling in own:
            own_arguments.append(argument)
            # The next argument is its value, whatever it looks like.
            if not has_value and not own[spelling].is_flag:
                own_arguments += [rest.popleft() for _ in range(min(own[spelling].nargs, len(rest)))]
        elif name is None:
            own_arguments.append(argument)
        else:
            spellings[name] = spelling
            if not has_value:
                value = _value(name, spelling, rest)
            foreign[name] = value
    return parted


def _value(name: str, spelling: str, rest: deque[str]) -> Any:
    """Return the value of an option, and remove it from `rest` if it is the next argument."""
    if not FOREIGN[name].is_switch or (rest and rest[0] in FOREIGN[name].words):
        return rest.popleft() if rest else ""
    return _setting(spelling) == name


def _foreign_name(spelling: str) -> str | None:
    """Return the name in the table of an option, also if it is negated; None if it is not there."""
    if not spelling.startswith("-"):
        return None
    name = _setting(spelling)
    if name in FOREIGN:
        return name
    positive = name.removeprefix("no_")
    return positive if positive in FOREIGN and FOREIGN[positive].is_switch else None
