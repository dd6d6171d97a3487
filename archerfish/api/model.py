"""The served model as endpoints need it: names, input processor, and formats of calls and reasoning."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archerfish.api.errors import UnknownModel
from archerfish.api.reasoning import ReasoningFormat
from archerfish.api.reasoning import choose_format as choose_reasoning_format
from archerfish.api.reasoning import find_format as find_reasoning_format
from archerfish.api.tools import ToolFormat, choose_format, find_format
from archerfish.engine.input_processor import InputProcessor
from archerfish.engine.pooling import EmbeddingSizes as EmbeddingSizes
from archerfish.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ServedModel:
    names: tuple[str, ...]
    """What bodies may call it; replies carry the first."""
    processor: InputProcessor
    recommended: Mapping[str, Any]
    """Sampling parameters that its makers recommend, by name."""
    tool_format: ToolFormat | None = None
    """How it writes calls; None if its template knows no tools."""
    reasoning_format: ReasoningFormat | None = None
    """How it marks what it thinks before it answers; None if it does not, or that is part of the content."""
    embedding: EmbeddingSizes | None = None
    """How long its embeddings are and can be; None if that is not known."""

    @property
    def name(self) -> str:
        return self.names[0]

    def check_name(self, name: str | None) -> None:
        """A body need not name the model, but must not name another."""
        if name is not None and name not in self.names:
            raise UnknownModel(name, self.names)


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """Formats of tool calls and reasoning that a user chose; None uses what the chat template shows."""

    tool_call_format: str | None = None
    reasoning_parser: str | None = None

    def check(self) -> None:
        """Raise a ConfigError that names what there is instead of an unknown name."""
        if self.tool_call_format is not None:
            find_format(self.tool_call_format)
        if self.reasoning_parser is not None:
            find_reasoning_format(self.reasoning_parser)

    def tool_format(self, family: str, tokenizer: Tokenizer | None) -> ToolFormat | None:
        """Return the format of the model's calls; None if it makes none."""
        named = self.tool_call_format
        return usual_tool_format(family, tokenizer) if named is None else find_format(named)

    def reasoning_format(self, tokenizer: Tokenizer | None) -> ReasoningFormat | None:
        """Return the format of the model's reasoning; None if reasoning stays in the content."""
        named = self.reasoning_parser
        return usual_reasoning_format(tokenizer) if named is None else find_reasoning_format(named)


def usual_tool_format(family: str, tokenizer: Tokenizer | None) -> ToolFormat | None:
    """Return the format of calls that a model's chat template shows."""
    if tokenizer is None:
        return None
    special = {tokenizer.token_text(token) for token in tokenizer.special_token_ids}
    return choose_format(family, tokenizer.chat_template.text, special)


def usual_reasoning_format(tokenizer: Tokenizer | None) -> ReasoningFormat | None:
    """Return the reasoning format that a model's chat template shows."""
    return None if tokenizer is None else choose_reasoning_format(tokenizer.chat_template.text)
