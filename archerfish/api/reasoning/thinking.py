"""The beginning and end of the reasoning in a conversation's answers, in text and in tokens."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from archerfish.api.answer_reader import AnswerReader
from archerfish.api.reasoning.formats import ReasoningFormat
from archerfish.api.reasoning.reader import ReasoningReader
from archerfish.tokenizer import Tokenizer

Opening = Literal["open", "possible", "closed"]
"""Whether an answer begins within reasoning, may begin with its start tag, or has none."""

_BEGINNING = 32
"""Tokens among which a start tag is looked for: before it there is at most some space."""


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
    return TagIds(ids[0], ids[1], not tokenizer.special_token_ids.isdisjoint(one for one in ids if one is not None))
