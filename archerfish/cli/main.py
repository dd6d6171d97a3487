"""The `archerfish` program: finds the command, and turns errors into one line and an exit code. Knows no engine."""

import os
import sys
from collections.abc import Sequence

import click

from archerfish import __version__
from archerfish.cli.lazy import CONTEXT_SETTINGS, Entry, LazyGroup
from archerfish.errors import ArcherfishError, DoesNotFit, InvalidParameter, UserError

_INTERRUPTED = 128 + 2  # 128 plus the signal's number, as in shells.


_COMMANDS = {
    "generate": Entry("generate", "Generate text from prompts in arguments, stdin or a file."),
    "serve": Entry("serve", "Serve a model over an OpenAI-compatible API."),
    "chat": Entry("chat", "Chat with a model."),
    "batch": Entry("batch", "Run a file of requests in OpenAI's batch format."),
    "bench": Entry("bench", "Measure speed: of the engine, its kernels, or any server."),
    "tune": Entry("tune", "Measure what is fastest here, and store it for later starts."),
    "train-draft": Entry("train_draft", "Train a drafter for speculative decoding on a model's output."),
    "estimate": Entry("estimate", "Estimate whether a model fits in memory, before downloading it."),
    "models": Entry("models", "List bundled models and those in the hub cache."),
    "doctor": Entry("doctor", "Show what this machine can do and which kernels it will run."),
}


@click.group(
    cls=LazyGroup,
    package="archerfish.cli",
    entries=_COMMANDS,
    invoke_without_command=True,
    epilog="Each command has its own --help.",
    context_settings=CONTEXT_SETTINGS,
)
@click.version_option(__version__, message="archerfish %(version)s")
@click.pass_context
def program(context: click.Context) -> None:
    """Archerfish runs large language models: fast, cheap, and able to prove it."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Run the program: the entry point of the installed script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code: 2 for an error the user can fix, 1 for one that ended the engine."""
    if hasattr(sys.stdout, "reconfigure"):
        # An answer may contain characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="replace")
    try:
        program.main(list(arguments), prog_name="archerfish", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return _report(_usage_message(error), error.exit_code)
    except UserError as error:
        # These have several lines: what would fit, or where a text has a mistake.
        return _report(str(error) if isinstance(error, (DoesNotFit, InvalidParameter)) else _in_one_line(error), 2)
    except ArcherfishError as error:
        return _report(_in_one_line(error), 1)
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except MemoryError:
        return _report("there is not enough memory; a smaller --kv-cache-memory-bytes or --max-model-len may help", 2)
    except BrokenPipeError:
        return _leave_closed_pipe()
    except OSError as error:  # Standard output: files that users name are checked when opened.
        _leave_closed_pipe()
        return _report(f"cannot write the output: {error.strerror}", 1)
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
    # Python flushes once more on exit, which must not fail again.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    return 1
