"""The parts of an answer (text, reasoning, tool calls), and the reader of plain answers, on which others build."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from archerfish.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Content:
    """Words to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Reasoning that comes before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins."""

    index: int
    """0 for the first call of the answer."""
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of a call's arguments, which are the text of a JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class InvalidCall:
    """A whole call that cannot be made: there is no such function, or it is not written as a call is."""

    name: str
    """The function that is meant, or what the model wrote where there is none; empty where it could not be read."""
    arguments: str
    """As the model wrote them; empty where they could not be read."""
    error: str
    """Why it cannot be made."""
    text: str
    """The whole call as the model wrote it, without markers."""


Delta: TypeAlias = Content | Reasoning | CallStart | CallArguments | InvalidCall


class ParsedToolCall(NamedTuple):
    """A whole call."""

    id: str
    name: str
    arguments: str
    """JSON, as the model wrote it."""


class ParsedAnswer(NamedTuple):
    """A whole answer."""

    content: str
    calls: list[ParsedToolCall]
    reasoning: str = ""
    invalid_calls: tuple[InvalidCall, ...] = ()


def joined(deltas: Iterable[Delta]) -> ParsedAnswer:
    """The whole answer that the deltas come to."""
    content: list[str] = []
    reasoning: list[str] = []
    invalid: list[InvalidCall] = []
    starts: dict[int, CallStart] = {}
    arguments: dict[int, list[str]] = {}
    for delta in deltas:
        match delta:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case InvalidCall():
                invalid.append(delta)
            case CallStart(index):
                starts[index], arguments[index] = delta, []
            case CallArguments(index, text):
                arguments[index].append(text)
    calls = [ParsedToolCall(start.id, start.name, "".join(arguments[index])) for index, start in starts.items()]
    return ParsedAnswer("".join(content), calls, "".join(reasoning), tuple(invalid))


def as_field(calls: Iterable[InvalidCall]) -> dict[str, list[dict[str, str]]]:
    """Return the reply's field `invalid_tool_calls`; no field if all calls were valid."""
    fields = [asdict(call) for call in calls]
    return {"invalid_tool_calls": fields} if fields else {}


class AnswerReader:
    """One answer in which everything is content."""

    @property
    def has_calls(self) -> bool:
        return False

    @property
    def has_invalid_calls(self) -> bool:
        return False

    def feed(self, text: str) -> list[Delta]:
        """Read on; what is certain now."""
        return [Content(text)] if text else []

    def finish(self) -> list[Delta]:
        """The answer is complete; what was held back."""
        return []

    def read(self, text: str) -> ParsedAnswer:
        """A whole answer at once: the same as when it comes in pieces."""
        return joined([*self.feed(text), *self.finish()])


class SpecialTexts:
    """The texts of a tokenizer's special tokens. They steer the model, and are nothing to show."""

    def __init__(self, texts: Sequence[str]) -> None:
        # The longest first: one may be the beginning of another.
        ordered = sorted(filter(None, texts), key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, ordered)) if ordered else r"(?!)")
        self._beginnings = {text[:length] for text in ordered for length in range(1, len(text))}
        self._longest = max(map(len, ordered), default=1) - 1

    @classmethod
    @lru_cache(8)
    def of(cls, tokenizer: Tokenizer) -> "SpecialTexts":
        return cls([tokenizer.token_text(token) for token in tokenizer.special_token_ids])

    def split(self, text: str) -> tuple[str, str]:
        """The text without them, and the end of it that may still become one."""
        shown: list[str] = []
        while True:
            num_sure = len(text) - self._num_open(text)
            match = self._any.search(text)
            if match is None or match.start() >= num_sure:
                return "".join((*shown, text[:num_sure])), text[num_sure:]
            shown.append(text[: match.start()])
            text = text[match.end() :]

    def without(self, text: str) -> str:
        return self._any.sub("", text)

    def _num_open(self, text: str) -> int:
        """Return how many characters at the end of the text may begin a special token."""
        lengths = range(min(self._longest, len(text)), 0, -1)
        return next((length for length in lengths if text[-length:] in self._beginnings), 0)


class ReaderWithoutSpecialTexts(AnswerReader):
    """Removes special tokens from the text that another reader reads.

    Calls and reasoning may be marked with special tokens, and are then read from a text that shows all of them.
    """

    def __init__(self, reader: AnswerReader, special: SpecialTexts) -> None:
        self._reader = reader
        self._special = special
        self._kind: type[Content] | type[Reasoning] = Content
        self._held = ""
        """The end of the words so far, which may become a special token. Of the kind."""

    @property
    def has_calls(self) -> bool:
        return self._reader.has_calls

    @property
    def has_invalid_calls(self) -> bool:
        return self._reader.has_invalid_calls

    def feed(self, text: str) -> list[Delta]:
        return [cleaned for delta in self._reader.feed(text) for cleaned in self._cleaned(delta)]

    def finish(self) -> list[Delta]:
        return [cleaned for delta in self._reader.finish() for cleaned in self._cleaned(delta)] + self._rest()

    def _cleaned(self, delta: Delta) -> list[Delta]:
        if not isinstance(delta, (Content, Reasoning)):
            return [*self._rest(), delta]
        before = [] if isinstance(delta, self._kind) else self._rest()
        self._kind = type(delta)
        text, self._held = self._special.split(self._held + delta.text)
        return [*before, self._kind(text)] if text else before

    def _rest(self) -> list[Delta]:
        held, self._held = self._special.without(self._held), ""
        return [self._kind(held)] if held else []
