"""The tools of a conversation: what the prompt shows, what the answer must be, and how calls are read."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from archerfish.api.answers import AnswerReader, CallArguments, CallStart, Delta
from archerfish.api.model import ServedModel
from archerfish.api.tools import ToolCallReader, ToolFormat, check_tools, grammar_for
from archerfish.errors import InvalidParameter


class CallingReader(AnswerReader):
    """One answer that may hold calls."""

    def __init__(self, tool_format: ToolFormat, known: tuple[str, ...], *, parallel: bool) -> None:
        self._parallel = parallel
        self._reader = ToolCallReader(tool_format, known=known)

    @property
    def has_calls(self) -> bool:
        return self._reader.num_calls > 0

    @property
    def has_invalid_calls(self) -> bool:
        return self._reader.num_invalid_calls > 0

    def feed(self, text: str) -> list[Delta]:
        return self._without_further_calls(self._reader.feed(text))

    def finish(self) -> list[Delta]:
        return self._without_further_calls(self._reader.finish())

    def _without_further_calls(self, deltas: list[Delta]) -> list[Delta]:
        if self._parallel:
            return deltas
        # One call was asked for; the model may go on all the same.
        return [delta for delta in deltas if not isinstance(delta, (CallStart, CallArguments)) or delta.index == 0]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a conversation, as prompts and answers need them."""

    shown: list[dict[str, Any]] | None = None
    """Tools that the template writes into the prompt."""
    calls: str | None = None
    """A grammar of calls and nothing else, where it is needed."""
    is_required: bool = False
    """Whether the answer must be calls."""
    marker: int | None = None
    """The token that every call begins with, if there is one."""
    parallel: bool = True
    """Whether there may be more than one call."""
    reads_special_tokens: bool = False
    """Whether calls are marked with tokens that are usually left out of the text."""
    names_function: bool = False
    """Whether one function was named, to be called once."""
    new_reader: Callable[[], AnswerReader] = AnswerReader
    """For each answer one."""

    def without_descriptions(self) -> "ToolUse":
        """Return a copy that can read answers, without the tools themselves."""
        return replace(self, shown=None if self.shown is None else [], calls=None)

    @classmethod
    def of(
        cls,
        model: ServedModel,
        tools: list[dict[str, Any]] | None,
        tool_choice: object,
        *,
        parallel: bool,
        has_grammar: bool,
    ) -> "ToolUse":
        """`tools` and `tool_choice` in the words of the chat API. `has_form`: answers without calls have a form."""
        choice = check_tools(tools, tool_choice)
        if choice.mode == "none":
            return cls()
        tool_format, tokenizer = model.tool_format, model.processor.tokenizer
        if tool_format is None or tokenizer is None:
            raise InvalidParameter("tools", "...", "this model's chat template knows no tools")
        tokens = {text: token for text, token in tokenizer.added_tokens.items() if text in tool_format.markers}
        is_hidden = not tokenizer.special_token_ids.isdisjoint(tokens.values())
        is_named = choice.mode == "function"
        parallel = parallel and not is_named
        is_required = choice.mode != "auto"
        grammar = None
        if is_required or has_grammar or _has_strict(tools or (), choice.functions):
            grammar = grammar_for(tool_format, tools or (), choice, parallel=parallel, token_ids=tokens)
        return cls(
            shown=tools,
            calls=grammar,
            is_required=is_required,
            marker=None if tool_format.may_be_bare else tokens.get(tool_format.start),
            parallel=parallel,
            reads_special_tokens=is_hidden,
            names_function=is_named,
            new_reader=partial(CallingReader, tool_format, choice.functions, parallel=parallel),
        )


def _has_strict(tools: Sequence[Mapping[str, Any]], names: Collection[str]) -> bool:
    return any(tool["function"].get("strict") and tool["function"]["name"] in names for tool in tools)
