"""Tools in a conversation: what the model is shown of them, what it must write, and the calls in what it wrote."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from archerfish.api.model import ServedModel
from archerfish.api.tools import (
    Answer,
    CallStart,
    Content,
    Delta,
    ToolCallReader,
    ToolFormat,
    check_tools,
    grammar_for,
    read_answer,
)
from archerfish.errors import InvalidParameter
from archerfish.request import Structured


class AnswerReader:
    """One answer without tools: all of it is content."""

    has_calls = False

    def feed(self, text: str) -> list[Delta]:
        """Read on; what is certain now."""
        return [Content(text)] if text else []

    def finish(self) -> list[Delta]:
        """The answer is complete; what was held back."""
        return []

    def read(self, text: str) -> Answer:
        """A whole answer at once."""
        return Answer(text, [])


class CallingReader(AnswerReader):
    """One answer that may hold calls."""

    def __init__(self, tool_format: ToolFormat, known: tuple[str, ...], *, parallel: bool) -> None:
        self._format = tool_format
        self._known = known
        self._parallel = parallel
        self._reader = ToolCallReader(tool_format, known=known)

    def feed(self, text: str) -> list[Delta]:
        return self._kept(self._reader.feed(text))

    def finish(self) -> list[Delta]:
        return self._kept(self._reader.finish())

    def read(self, text: str) -> Answer:
        content, calls = read_answer(text, self._format, known=self._known)
        self.has_calls = bool(calls)
        return Answer(content, calls if self._parallel else calls[:1])

    def _kept(self, deltas: list[Delta]) -> list[Delta]:
        self.has_calls = self.has_calls or any(isinstance(delta, CallStart) for delta in deltas)
        if self._parallel:
            return deltas
        # One call was asked for; the model may go on all the same.
        return [delta for delta in deltas if isinstance(delta, Content) or delta.index == 0]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a conversation's tools come to."""

    shown: list[dict[str, Any]] | None = None
    """Tools that the template writes into the prompt."""
    constraint: Structured | None = None
    """What the answer must be, if a call is required."""
    reads_special_tokens: bool = False
    """Whether calls are marked with tokens that are usually left out of the text."""
    names_function: bool = False
    """Whether one function was named, to be called once."""
    new_reader: Callable[[], AnswerReader] = AnswerReader
    """For each answer one."""

    def without_descriptions(self) -> "ToolUse":
        """What answers are read with, and no more of the tools."""
        return replace(self, shown=None if self.shown is None else [], constraint=None)

    @classmethod
    def of(
        cls, model: ServedModel, tools: list[dict[str, Any]] | None, tool_choice: object, parallel: bool
    ) -> "ToolUse":
        """`tools` and `tool_choice` in the words of the chat API."""
        choice = check_tools(tools, tool_choice)
        if choice.mode == "none":
            return cls()
        tool_format, tokenizer = model.tool_format, model.intake.tokenizer
        if tool_format is None or tokenizer is None:
            raise InvalidParameter("tools", "...", "this model's chat template knows no tools")
        tokens = {text: token for text, token in tokenizer.added_tokens.items() if text in tool_format.markers}
        is_hidden = not tokenizer.special_token_ids.isdisjoint(tokens.values())
        is_named = choice.mode == "function"
        parallel = parallel and not is_named
        grammar = grammar_for(tool_format, tools or [], choice, parallel=parallel, token_ids=tokens)
        constraint = None if grammar is None else Structured(grammar=grammar)
        reader = partial(CallingReader, tool_format, choice.functions, parallel=parallel)
        return cls(tools, constraint, is_hidden, is_named, reader)
