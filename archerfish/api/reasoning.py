"""Reasoning as text: how models mark it, where it begins and ends in an answer, and how it is read."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from archerfish.api.answers import AnswerReader, Delta, Reasoning
from archerfish.errors import ConfigError
from archerfish.tokenizer import Tokenizer

OFF = "none"
"""The name that asks for no format: reasoning stays in the content, with its tags."""

_SPACE = " \t\r\n"

Opening = Literal["open", "possible", "closed"]
"""Whether an answer begins within reasoning, may begin with its start tag, or has none."""

_BEGINNING = 32
"""Tokens among which a start tag is looked for: before it there is at most some space."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """One way to mark reasoning."""

    name: str
    start: str = "<think>"
    end: str = "</think>"
    starts_untagged: bool = False
    """Whether an answer begins within reasoning where neither the prompt nor the answer has the start tag."""


_ALL = (
    ReasoningFormat("think"),
    ReasoningFormat("deepseek_r1", starts_untagged=True),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    ReasoningFormat("seed_oss", "<seed:think>", "</seed:think>"),
)
FORMATS: dict[str, ReasoningFormat] = {reasoning_format.name: reasoning_format for reasoning_format in _ALL}
"""By name, in the order in which a template is asked for their tags."""

_ALIASES = {
    **dict.fromkeys(("qwen3", "glm45", "deepseek_v3", "holo2", "olmo3"), "think"),
    **dict.fromkeys(("step3", "minimax_m2"), "deepseek_r1"),
}
"""Other names that these have in vLLM."""


def find_format(name: str) -> ReasoningFormat | None:
    """The format a user named; None for "none"."""
    if name == OFF:
        return None
    known = FORMATS.get(_ALIASES.get(name, name))
    if known is None:
        raise ConfigError(
            f"there is no reasoning parser {name!r}: choose one of {', '.join((*FORMATS, *_ALIASES))}, or {OFF}"
        )
    return known


def choose_format(chat_template: str | None) -> ReasoningFormat | None:
    """Return the reasoning format of a chat template; None if it shows no reasoning."""
    return next(
        (
            reasoning_format
            for reasoning_format in _ALL
            if chat_template is not None and reasoning_format.end in chat_template
        ),
        None,
    )


class ReasoningReader(AnswerReader):
    """Reasoning up to its end tag, and what another reader finds behind it. How the text is cut makes no difference.

    Space next to a tag belongs to it. An end tag that is missing means that all of it was reasoning.
    """

    def __init__(self, reasoning_format: ReasoningFormat, inner: AnswerReader, *, is_open: bool) -> None:
        """`is_open`: the answer begins within reasoning, with a start tag or without. Otherwise only with one."""
        self._format = reasoning_format
        self._inner = inner
        self._text = ""
        """What is held back."""
        self._is_open = is_open
        self._is_decided = False
        self._is_inside = False
        self._has_begun = False
        """Whether anything was given out of the part being read: space before that is dropped."""

    @property
    def has_calls(self) -> bool:
        return self._inner.has_calls

    @property
    def has_invalid_calls(self) -> bool:
        return self._inner.has_invalid_calls

    def feed(self, text: str) -> list[Delta]:
        self._text += text
        return self._advance(is_complete=False)

    def finish(self) -> list[Delta]:
        return self._advance(is_complete=True) + self._inner.finish()

    def _advance(self, *, is_complete: bool) -> list[Delta]:
        if not self._is_decided and not self._decide(is_complete):
            return []
        deltas = self._reasoning(is_complete) if self._is_inside else []
        return deltas if self._is_inside else deltas + self._answer()

    def _decide(self, is_complete: bool) -> bool:
        """Whether it is known if the answer begins with the start tag."""
        words = self._text.lstrip(_SPACE)
        if words.startswith(self._format.start):
            self._text = words[len(self._format.start) :]
            self._is_inside = True
        elif not is_complete and self._format.start.startswith(words):
            return False
        elif self._is_open:
            self._is_inside = True
        else:
            self._has_begun = True  # Without reasoning, space at the beginning is part of the answer.
        self._is_decided = True
        return True

    def _reasoning(self, is_complete: bool) -> list[Delta]:
        end = self._format.end
        end_index = self._text.find(end)
        if end_index < 0:
            held = 0 if is_complete else _num_held(self._text, end)
            text, self._text = self._text[: len(self._text) - held], self._text[len(self._text) - held :]
        else:
            text, self._text = self._text[:end_index].rstrip(_SPACE), self._text[end_index + len(end) :]
        if not self._has_begun:
            text = text.lstrip(_SPACE)
        if is_complete and end_index < 0:
            text = text.rstrip(_SPACE)
        self._has_begun = self._has_begun or bool(text)
        if end_index >= 0:
            self._is_inside = self._has_begun = False
        return [Reasoning(text)] if text else []

    def _answer(self) -> list[Delta]:
        text, self._text = self._text, ""
        if not self._has_begun:
            text = text.lstrip(_SPACE)
        self._has_begun = self._has_begun or bool(text)
        return self._inner.feed(text) if text else []


def _num_held(text: str, end: str) -> int:
    """Return how many characters at the end of the text may be space before the end tag, or begin the tag."""
    lengths = range(min(len(end) - 1, len(text)), 0, -1)
    of_tag = next((length for length in lengths if text.endswith(end[:length])), 0)
    words = text[: len(text) - of_tag].rstrip(_SPACE)
    return len(text) - len(words)


class TagIds(NamedTuple):
    """The tokens that tags are; None where a tag is written with several."""

    start: int | None
    end: int | None
    are_special: bool
    """Whether any of them is left out of texts unless it is asked for."""


@dataclass(frozen=True, slots=True)
class ReasoningState:
    """The format and the initial state of the reasoning in answers to one prompt."""

    format: ReasoningFormat
    opening: Opening

    @classmethod
    def of(cls, reasoning_format: ReasoningFormat, prompt: str, continued: str | None) -> "ReasoningState":
        """`continued` is the text of the answer that the prompt ends with, where it is to be continued."""
        end = prompt.rstrip()
        if continued is not None:
            is_open = continued.rfind(reasoning_format.start) > continued.rfind(reasoning_format.end)
            return cls(reasoning_format, "open" if is_open else "closed")
        if end.endswith(reasoning_format.start):
            return cls(reasoning_format, "open")
        if end.endswith(reasoning_format.end):
            return cls(reasoning_format, "closed")
        return cls(reasoning_format, "open" if reasoning_format.starts_untagged else "possible")

    def reader(self, inner: AnswerReader) -> AnswerReader:
        """Return a reader for one answer; `inner` reads what follows the reasoning."""
        if self.opening == "closed":
            return inner
        return ReasoningReader(self.format, inner, is_open=self.opening == "open")

    def num_tokens(self, token_ids: Sequence[int], tokenizer: Tokenizer) -> int:
        """Return how many tokens of an answer are reasoning, its tags included."""
        if self.opening == "closed" or not token_ids:
            return 0
        if self.opening == "possible":
            beginning = tokenizer.decode(token_ids[:_BEGINNING], skip_special_tokens=False)
            if not beginning.lstrip().startswith(self.format.start):
                return 0
        end = tag_ids(self.format, tokenizer).end
        if end is not None and end in token_ids:
            return token_ids.index(end) + 1

        def has_ended(count: int) -> bool:
            return self.format.end in tokenizer.decode(token_ids[:count], skip_special_tokens=False)

        return bisect_left(range(len(token_ids)), True, key=has_ended)


@lru_cache(16)
def tag_ids(reasoning_format: ReasoningFormat, tokenizer: Tokenizer) -> TagIds:
    """The tokens of a format's tags."""
    added = tokenizer.added_tokens
    ids = [added.get(tag) for tag in (reasoning_format.start, reasoning_format.end)]
    return TagIds(
        ids[0], ids[1], not tokenizer.special_token_ids.isdisjoint(token_id for token_id in ids if token_id is not None)
    )
