"""Answers with calls as models write them, and readers that see them cut in every way."""

import itertools
from collections.abc import Iterable

import pytest

from archerfish.api.answers import CallArguments, CallStart, Content, InvalidCall, joined
from archerfish.api.tools import FORMATS, ToolCallReader, ToolFormat

every_format = pytest.mark.parametrize("name", FORMATS)
WEATHER = '{"city": "Bergen", "days": [1, 2, {"unit": "°C"}]}'
TRICKY = (
    r'{"code": "if (a) { b[\"}\"] = \"\\\\\"; }", "text": "]}\u00e5 å 好 🇳🇴 </tool_call> [ARGS] <|end|>\\", '
    r'"n": {"m": [{}, []]}}'
)
EMPTY = "{}"


def write(tool_format: ToolFormat, *calls: tuple[str, str]) -> str:
    """Calls as the model was trained to write them."""
    written = [tool_format.call.replace("$name", name).replace("$arguments", arguments) for name, arguments in calls]
    return tool_format.openings[0] + tool_format.between.join(written) + tool_format.ending


def numbered() -> Iterable[str]:
    return (f"id{number}" for number in itertools.count())


def read(
    name: str, pieces: Iterable[str], known: tuple[str, ...] | None = None
) -> tuple[str, list[tuple[str, str, str]]]:
    """Content, and each call's id, name and arguments. Deltas must come in an order that a client can follow."""
    ids = iter(numbered())
    reader = ToolCallReader(FORMATS[name], known=known, new_id=lambda: next(ids))
    deltas = [delta for piece in pieces for delta in reader.feed(piece)] + reader.finish()
    content, calls = "", []
    for delta in deltas:
        match delta:
            case Content(text):
                assert text
                content += text
            case CallStart(index, call_id, function):
                assert index == len(calls)
                calls.append((call_id, function, ""))
            case CallArguments(index, text):
                assert text
                assert index == len(calls) - 1
                call_id, function, arguments = calls[index]
                calls[index] = (call_id, function, arguments + text)
    assert reader.num_calls == len(calls)
    assert reader.num_invalid_calls == sum(isinstance(delta, InvalidCall) for delta in deltas)
    return content, calls


def content_and_calls(name: str, text: str, known: tuple[str, ...] | None = None) -> tuple[str, list[tuple[str, str]]]:
    """Read in one piece, by single characters, and cut in two at every place: always the same."""
    whole = read(name, [text], known)
    assert read(name, text, known) == whole
    for cut in range(len(text) + 1):
        assert read(name, [text[:cut], text[cut:]], known) == whole, (text[:cut], text[cut:])
    content, calls = whole
    return content, [(function, arguments) for _, function, arguments in calls]


Told = tuple[str, list[tuple[str, str]], list[InvalidCall]]


def told(name: str, text: str, known: tuple[str, ...] | None = ("get_weather", "now")) -> Told:
    """Content, calls and invalid calls: the same however the text is cut."""
    answers = []
    for pieces in ([text], text, *([text[:cut], text[cut:]] for cut in range(len(text)))):
        reader = ToolCallReader(FORMATS[name], known=known)
        deltas = [*(delta for piece in pieces for delta in reader.feed(piece)), *reader.finish()]
        answer = joined(deltas)
        calls = [(call.name, call.arguments) for call in answer.calls]
        answers.append((answer.content, calls, list(answer.invalid_calls)))
    assert all(one == answers[0] for one in answers)
    return answers[0]


def announced(name: str, *calls: tuple[str, str]) -> str:
    """Calls behind a marker, also in formats that can do without."""
    text = write(FORMATS[name], *calls)
    return text if FORMATS[name].start in text else FORMATS[name].start + text
