"""`archerfish chat`: reads turns from a terminal or a pipe and writes the answers."""

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

import click

from archerfish.cli.answers import write
from archerfish.cli.conversation import Conversation
from archerfish.cli.engine_options import engine_options, open_model
from archerfish.cli.field_options import NUMBERS_NOTE, SectionedCommand
from archerfish.cli.prompts import decode_utf8
from archerfish.cli.sampling_options import sampling_options, sampling_params
from archerfish.config.settings import EngineConfig
from archerfish.errors import EngineError, RequestError

_WELCOME = "/exit or Ctrl-D ends, /reset starts anew, /system TEXT sets instructions, Ctrl-C stops an answer."


# One answer a turn, shown as text: what only --json could show is left out.
@click.command("chat", cls=SectionedCommand, epilog=NUMBERS_NOTE)
@click.option("--system", metavar="TEXT", help="Instructions that stand before the conversation.")
@engine_options
@sampling_options(left_out=("n", "best_of", "logprobs", "prompt_logprobs"))
def command(system: str | None, sampling: Mapping[str, Any], config: EngineConfig) -> None:
    """Talk with a model, turn by turn.

    From a pipe, each line is a turn. In the conversation, /reset forgets all turns, /system TEXT replaces the
    instructions, and /exit ends.
    """
    with open_model(config) as llm:
        # A model that cannot chat should say so before anybody types; what it thinks of this turn does not matter.
        with suppress(RequestError):
            llm.assembly.intake.chat_text([{"role": "user", "content": "Hello"}])
        params = sampling_params(llm.assembly.recommended, sampling)
        conversation = Conversation(llm.stream_chat, params, system)
        if sys.stdin.isatty():
            _notice(_WELCOME)
            _talk(conversation, _typed_lines(), go_on=True)
        else:
            _talk(conversation, _piped_lines(), go_on=False)


def _talk(conversation: Conversation, lines: Iterator[str], *, go_on: bool) -> None:
    """Answer line by line. With `go_on`, a refused turn is reported and the next one read."""
    for line in lines:
        try:
            if line.startswith("/"):
                if line.strip() == "/exit":
                    return
                _obey(conversation, line)
            elif line.strip():
                _answer(conversation, line)
        except RequestError as error:
            if not go_on:
                raise
            _notice(f"error: {error}")


def _obey(conversation: Conversation, line: str) -> None:
    order, _, text = line.strip().partition(" ")
    if order == "/reset":
        conversation.reset()
        _notice("(The conversation starts anew.)")
    elif order == "/system":
        conversation.system = text.strip() or None
        _notice("(No instructions.)" if conversation.system is None else "(Instructions set.)")
    else:
        raise RequestError(f"there is no {order}; there are /exit, /reset and /system TEXT")


def _answer(conversation: Conversation, text: str) -> None:
    reason = error = None
    with _interrupt_flag() as interrupted, closing(conversation.answer(text)) as pieces:
        for piece in pieces:
            write(piece.text)
            reason, error = piece.finish_reason, piece.error
            if interrupted():
                break
    write("\n")
    if reason == "error":
        raise EngineError(f"the answer could not be completed: {error}")
    if reason == "length":
        _notice("(Cut off: the answer reached --max-tokens, or the end of the context; /reset starts afresh.)")


@contextmanager
def _interrupt_flag() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed since. The first is only noted, as a step must not be torn apart; a second raises."""
    pressed = False

    def note(*_: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _typed_lines() -> Iterator[str]:
    with suppress(ImportError):
        import readline  # noqa: F401 - input() edits lines and remembers them once it is there
    while True:
        try:
            # Where answers go to a file, the sign to type must not.
            if not sys.stdout.isatty():
                click.echo("> ", err=True, nl=False)
            line = input("> " if sys.stdout.isatty() else "")
        except EOFError:
            click.echo(err=True)
            return
        yield line


def _piped_lines() -> Iterator[str]:
    for line in sys.stdin.buffer:
        yield decode_utf8(line, "standard input").rstrip("\r\n")


def _notice(text: str) -> None:
    click.echo(text, err=True)
