"""The parts of an answer: text, reasoning and tool calls, as deltas and as a whole."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple, TypeAlias


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
