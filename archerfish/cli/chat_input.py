"""Reads messages for `archerfish chat` from a terminal or a pipe, joining the lines of each."""

import sys
from collections.abc import Callable
from contextlib import suppress

import click

from archerfish.cli.prompts import decode_utf8

ReadLine = Callable[[str], str | None]
"""Shows a prompt, and returns the next line without its end; None at the end of the input."""

_PROMPT = "> "
_CONTINUED = "... "
_QUOTES = '"""'


def read_message(read_line: ReadLine) -> str | None:
    r"""Return the next message; None at the end of the input.

    A line that ends with \ is continued on the next; a line that begins with three quotes opens a block of lines that
    ends with the next three.
    """
    line = read_line(_PROMPT)
    if line is None:
        return None
    if line.startswith(_QUOTES):
        return _read_block(line.removeprefix(_QUOTES), read_line)
    lines = []
    while line is not None and line.endswith("\\"):
        lines.append(line.removesuffix("\\"))
        line = read_line(_CONTINUED)
    return "\n".join([*lines, line] if line is not None else lines)


def _read_block(line: str | None, read_line: ReadLine) -> str:
    lines = []
    while line is not None and not line.rstrip().endswith(_QUOTES):
        lines.append(line)
        line = read_line(_CONTINUED)
    last = [] if line is None else [line.rstrip().removesuffix(_QUOTES)]
    return "\n".join(lines + last).strip("\n")


def read_piped_line(_: str) -> str | None:
    """Return the next line of standard input."""
    line = sys.stdin.buffer.readline()
    return decode_utf8(line, "standard input").rstrip("\r\n") if line else None


class Typed:
    """Lines typed at a terminal; Ctrl-C raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.num_interrupts = 0
        """Presses of Ctrl-C in a row, with nothing typed between them."""
        self._typed: Callable[[], str] = lambda: ""
        with suppress(ImportError):
            import readline  # Once imported, input() edits lines and has a history.

            self._typed = readline.get_line_buffer

    def __call__(self, prompt: str) -> str | None:
        on_terminal = sys.stdout.isatty()
        # Where standard output is a file, the prompt must not be written to it.
        if not on_terminal:
            click.echo(prompt, err=True, nl=False)
        try:
            line = input(prompt if on_terminal else "")
        except EOFError:
            click.echo(err=True)
            return None
        except KeyboardInterrupt:
            self.num_interrupts = 1 if self._typed() else self.num_interrupts + 1
            raise
        self.num_interrupts = 0
        return line
