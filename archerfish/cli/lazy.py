"""A group of commands that imports a command's module only when it is called or shows its own help."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
"""Names of the help option and the width of help, for all commands."""


class Entry(NamedTuple):
    """Module and summary of a command; repeated here because the commands, which --help need not import, need torch."""

    module: str
    summary: str


class LazyGroup(click.Group):
    """A group of commands by name; each is the object `command` in a module of `package`."""

    def __init__(self, *arguments: Any, package: str, entries: Mapping[str, Entry], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._package = package
        self._entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._entries:
            return None
        command = import_module(f"{self._package}.{self._entries[cmd_name].module}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        # click would suggest the commands that it has imported, which are none.
        if name not in self._entries and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"there is no command {name!r}; choose from {', '.join(self._entries)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self._entries.items()])


def lazy_group(name: str, package: str, entries: Mapping[str, Entry], summary: str) -> LazyGroup:
    """Return a command that is a group of others, and lists them when it is called without one."""

    def list_commands(context: click.Context) -> None:
        if context.invoked_subcommand is None:
            click.echo(context.get_help())

    return LazyGroup(
        name,
        package=package,
        entries=entries,
        callback=click.pass_context(list_commands),
        help=summary,
        invoke_without_command=True,
        epilog="Each has its own --help.",
        context_settings=CONTEXT_SETTINGS,
    )
