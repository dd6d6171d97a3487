"""The `archerfish` program: finds the command, and turns errors into one line and an exit code. Knows no engine."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

import click

from archerfish import __version__
from archerfish.errors import ArcherfishError, DoesNotFit, UserError

_INTERRUPTED = 128 + 2  # As shells number the end of a process by SIGINT.


class _Entry(NamedTuple):
    module: str
    summary: str


# Kept by hand, so that --help imports no command: those bring torch with them.
_COMMANDS = {
    "generate": _Entry("generate", "Continue prompts: from arguments, standard input or a file."),
    "serve": _Entry("serve", "Serve a model to clients of OpenAI's API."),
    "chat": _Entry("chat", "Talk with a model, turn by turn."),
    "batch": _Entry("batch", "Answer a file of requests in OpenAI's batch format."),
    "models": _Entry("models", "List the models in the box and in the hub cache."),
    "doctor": _Entry("doctor", "Show what this machine offers and which kernels will run on it."),
}


class _LazyGroup(click.Group):
    """Imports a command's file when the command is called or its own help is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = import_module(f"archerfish.cli.{_COMMANDS[cmd_name].module}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        # click would offer the commands it has imported, which are none.
        if name not in _COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"there is no command {name!r}; there are {', '.join(_COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in _COMMANDS.items()])


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    epilog="Each command has its own --help.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, message="archerfish %(version)s")
@click.pass_context
def program(context: click.Context) -> None:
    """Archerfish runs large language models: fast, cheap, and able to prove it."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """What the installed script calls."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. 2 is an error the user can fix, 1 one that ended the engine."""
    if hasattr(sys.stdout, "reconfigure"):
        # An answer may hold characters that a terminal of another encoding cannot show.
        sys.stdout.reconfigure(errors="replace")
    try:
        program.main(list(arguments), prog_name="archerfish", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return _report(_usage_message(error), error.exit_code)
    except UserError as error:
        return _report(str(error) if isinstance(error, DoesNotFit) else _in_one_line(error), 2)
    except ArcherfishError as error:
        return _report(_in_one_line(error), 1)
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except MemoryError:
        return _report("there is not enough memory; a smaller --kv-cache-memory-bytes or --max-model-len may help", 2)
    except BrokenPipeError:
        return _leave_closed_pipe()
    except OSError as error:  # What a user names is checked where it is opened: this is the answer's own way out.
        _leave_closed_pipe()
        return _report(f"the answer could not be written: {error.strerror}", 1)
    return 0


def _usage_message(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    where = "" if context is None else f" (see {context.command_path} --help)"
    return _in_one_line(error.format_message()) + where


def _in_one_line(error: object) -> str:
    return " ".join(str(error).split())


def _report(message: str, exit_code: int) -> int:
    click.echo(f"error: {message}", err=True)
    return exit_code


def _leave_closed_pipe() -> int:
    # Python flushes once more on its way out, which must not fail again.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    return 1
