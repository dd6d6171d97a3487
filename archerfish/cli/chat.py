"""`archerfish chat`: reads turns from a terminal or a pipe and writes the answers."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from archerfish.cli.answers import speed, write
from archerfish.cli.chat_commands import EXIT, run_command
from archerfish.cli.chat_input import Typed, read_message, read_piped_line
from archerfish.cli.conversation import ChatHistory, ChatModel
from archerfish.cli.engine_options import engine_options, open_model
from archerfish.cli.field_options import NUMBERS_NOTE, SectionedCommand
from archerfish.cli.sampling_options import sampling_options, sampling_params
from archerfish.config.settings import EngineConfig
from archerfish.errors import EngineError, RequestError, UserError
from archerfish.metrics.timing import RequestTiming

if TYPE_CHECKING:
    from archerfish.engine.llm import LLM

_WELCOME = "Context of {:,} tokens. /help lists commands; Ctrl-C stops an answer."
_INTERRUPT_HINT = "(Press Ctrl-C again or Ctrl-D, or type /exit, to quit.)"


# Each turn has one answer, shown as text: options whose effect only --json could show are left out.
@click.command("chat", cls=SectionedCommand, epilog=NUMBERS_NOTE)
@click.option("--system", metavar="TEXT", help="System prompt.")
@engine_options
@sampling_options(left_out=("n", "best_of", "logprobs", "prompt_logprobs"))
def command(system: str | None, sampling: Mapping[str, Any], config: EngineConfig) -> None:
    """Chat with a model.

    From a pipe, each line is a turn; a line that ends with a backslash is continued on the next, and three quotes
    (\"\"\") open and close a message of several lines. When the context is full, the oldest turns are dropped. In the
    conversation, /help lists the commands: /params, /system, /save, /load, /reset and /exit.
    """
    with open_model(config) as llm:
        # A model that cannot chat is reported before the first message; whether it accepts this one does not matter.
        with suppress(RequestError):
            llm.assembly.processor.chat_text([{"role": "user", "content": "Hello"}])
        params = sampling_params(llm.assembly.recommended, sampling, llm.assembly.processor.max_model_len)
        conversation = ChatHistory(_chat_model(llm), params, system)
        if sys.stdin.isatty():
            _notice(_WELCOME.format(conversation.max_model_len))
            _talk(conversation, Typed())
        else:
            while (text := read_message(read_piped_line)) is not None and text.strip() != EXIT:
                _take(conversation, text)


def _chat_model(llm: "LLM") -> ChatModel:
    processor = llm.assembly.processor
    return ChatModel(
        llm.stream_chat,
        # The template has already written the special tokens.
        lambda messages: processor.token_ids(processor.chat_text(messages), add_special_tokens=False),
        processor.check_length,
        processor.max_model_len,
    )


def _talk(conversation: ChatHistory, typed: Typed) -> None:
    """Read messages from the terminal. A refused one is reported; Ctrl-C clears the line, or twice in a row, ends."""
    while True:
        try:
            text = read_message(typed)
        except KeyboardInterrupt:
            click.echo(err=True)
            if typed.num_interrupts > 1:
                return
            _notice(_INTERRUPT_HINT)
            continue
        if text is None or text.strip() == EXIT:
            return
        try:
            _take(conversation, text)
        except UserError as error:
            _notice(f"error: {error}")


def _take(conversation: ChatHistory, text: str) -> None:
    """Run a command, or answer a message."""
    if text.startswith("/"):
        _notice(run_command(conversation, text))
    elif text.strip():
        num_dropped = conversation.drop_oldest_turns(text)
        if num_dropped:
            turns = "turn was" if num_dropped == 1 else f"{num_dropped} turns were"
            _notice(f"(The context of {conversation.max_model_len:,} tokens is full: the oldest {turns} dropped.)")
        _answer(conversation, text)


def _answer(conversation: ChatHistory, text: str) -> None:
    reason = error = None
    timing = RequestTiming(time.monotonic())
    with _interrupt_flag() as interrupted, closing(conversation.answer(text)) as pieces:
        for piece in pieces:
            if piece.token_ids:
                timing.record_tokens(len(piece.token_ids), time.monotonic())
            write(piece.text)
            reason, error = piece.finish_reason, piece.error
            if interrupted():
                break
        write("\n")
        _notice(f"({speed(timing)}{_ending(conversation, timing, reason, interrupted=interrupted())})")
    if reason == "error":
        raise EngineError(f"the answer could not be completed: {error}")


def _ending(conversation: ChatHistory, timing: RequestTiming, reason: str | None, *, interrupted: bool) -> str:
    """Return how an answer ended, where it did not end by itself."""
    if reason == "length":
        at_limit = timing.num_generated_tokens == conversation.params.max_tokens
        return "; cut off at --max-tokens, see /params" if at_limit else "; cut off at the end of the context"
    return "; stopped" if interrupted and reason is None else ""


@contextmanager
def _interrupt_flag() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed.

    The first press is only recorded, because a step must not be interrupted; a second one raises KeyboardInterrupt.
    """
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


def _notice(text: str) -> None:
    """Show text that is not part of an answer; click leaves out the dimming where it goes to a file."""
    click.secho(text, err=True, dim=True)
