"""Makes command-line options from the fields of a dataclass, grouped in the help. Knows no particular dataclass."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

import click

from archerfish.cli.foreign_options import without_foreign_options
from archerfish.config.compatibility import own_value
from archerfish.config.load import LEAST_LIKENESS, field_docs, field_types, without_none
from archerfish.config.settings import flag_name

CommandFunction = Callable[..., None]

ENGINE_SECTION = "Engine"
"""The heading of the engine's settings."""

NUMBERS_NOTE = "Whole numbers may be written 4k (4000) or 4K (4096), also 25.6k, 2M, 1G."

_METAVARS: dict[Any, str] = {int: "INT", float: "NUMBER", str: "TEXT", Mapping: "JSON", tuple: "ID,..."}
_TEXTS = tuple[str, ...]
_REPEATED = " May be given several times."


class SettingChoice(click.Choice[str]):
    """One of a setting's values, which may also be given by another engine's name for it."""

    def __init__(self, name: str, choices: Sequence[str]) -> None:
        super().__init__(choices)
        self._name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(own_value(self._name, value), param, ctx)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SectionOption(click.Option):
    """An option that its command's help shows under a heading."""

    def __init__(self, *arguments: Any, section: str, takes_many: bool = False, **more: Any) -> None:
        """`takes_many` lets it take all values up to the next option, as `--flag a b` does in other engines."""
        super().__init__(*arguments, **more)
        self.section = section
        self.takes_many = takes_many


class SectionedCommand(click.Command):
    """A command whose help lists its own options first, then those of each section.

    A command with engine settings also accepts those of other engines, as far as they change nothing.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        if any(isinstance(option, SectionOption) and option.section == ENGINE_SECTION for option in options):
            args = without_foreign_options(options, args)
        take_many = [option for option in options if isinstance(option, SectionOption) and option.takes_many]
        args = _repeat_flags(args, {flag for option in take_many for flag in option.opts})
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = [spelling for option in options for spelling in (*option.opts, *option.secondary_opts)]
            likely = get_close_matches(error.option_name, known, n=2, cutoff=LEAST_LIKENESS)
            raise click.NoSuchOption(error.option_name, None, likely, ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                heading = parameter.section if isinstance(parameter, SectionOption) else "Options"
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def field_options(
    record: type,
    *,
    section: str,
    prefix: str,
    left_out: tuple[str, ...] = (),
    spell: Callable[[str], str] = flag_name,
    defaults: Mapping[str, object] | None = None,
    take_many: tuple[str, ...] = (),
) -> Callable[[CommandFunction], CommandFunction]:
    """Return a decorator that gives a command one option for each field.

    The option's parameter is `prefix` followed by the field's name. `defaults` are shown instead of the fields' own.
    Options of the fields in `take_many` take all values up to the next option.
    """
    docs, types = field_docs(record), field_types(record)
    shown = {field.name: None if field.default is MISSING else field.default for field in fields(record)}
    shown.update(defaults or {})

    def decorate(command: CommandFunction) -> CommandFunction:
        # The option that is added to a function last comes first in its help.
        for name in reversed([name for name in shown if name not in left_out]):
            kind = without_none(types[name])
            text = docs[name] + (_REPEATED if kind == _TEXTS else "") + _default_note(shown[name])
            declaration = _declaration(spell(name), kind)
            shape = _shape(name, kind) | {"takes_many": name in take_many}
            command = click.option(declaration, prefix + name, cls=SectionOption, section=section, help=text, **shape)(
                command
            )
        return command

    return decorate


def take_given(parameters: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Remove the parameters with the prefix, and return by field name those that the user set."""
    taken = {name: parameters.pop(name) for name in list(parameters) if name.startswith(prefix)}
    return {name.removeprefix(prefix): value for name, value in taken.items() if value not in (None, ())}


def _repeat_flags(arguments: list[str], flags: set[str]) -> list[str]:
    """Return `--flag a b` as `--flag a --flag b`, which click understands."""
    repeated: list[str] = []
    current: str | None = None
    for number, argument in enumerate(arguments):
        if argument == "--":
            return repeated + arguments[number:]
        if argument.startswith("-"):
            current = argument if argument in flags else None
        elif current is not None and arguments[number - 1] != current:
            repeated.append(current)
        repeated.append(argument)
    return repeated


def _declaration(flag: str, kind: Any) -> str:
    return f"{flag}/--no-{flag.removeprefix('--')}" if kind is bool else flag


def _shape(name: str, kind: Any) -> dict[str, Any]:
    """Return the option's settings for click. Values are converted by config/load.py, which also reads the other
    sources.
    """
    if kind is bool:
        return {"default": None}
    if get_origin(kind) is Literal:
        return {"type": SettingChoice(name, get_args(kind))}
    if kind == _TEXTS:
        return {"type": str, "multiple": True, "metavar": "TEXT"}
    return {"type": str, "metavar": _METAVARS[get_origin(kind) or kind]}


def _default_note(default: object) -> str:
    if default is None or default == ():
        return ""
    if isinstance(default, bool):
        return f" [default: {'on' if default else 'off'}]"
    return f" [default: {default:g}]" if isinstance(default, float) else f" [default: {default}]"
