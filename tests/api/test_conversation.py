"""Calls in earlier messages reach a chat template in the form it writes them from."""

import copy
from typing import Any

import pytest

from archerfish.api.conversation import template_messages
from archerfish.api.tools import FORMATS, read_answer
from archerfish.box import models_in_box
from archerfish.tokenizer import Tokenizer


def calling(arguments: object) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city": "Ålesund", "days": [1, 2.5, null]}', {"city": "Ålesund", "days": [1, 2.5, None]}),
        ("{}", {}),
        (" ", {}),
        ({"city": "Bergen"}, {"city": "Bergen"}),
        ('{"city": ', '{"city": '),
        ("[1]", "[1]"),
        ('"text"', '"text"'),
        ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": 1e999}', '{"a": 1e999}'),
        (r'{"a": "\ud800"}', r'{"a": "\ud800"}'),
        ("[" * 100_000, "[" * 100_000),
        (None, None),
    ],
)
def test_arguments_become_objects(arguments: object, expected: object) -> None:
    given = [{"role": "user", "content": "?"}, calling(arguments), {"role": "tool", "content": "rain"}]
    before = copy.deepcopy(given)
    prepared = template_messages(given)
    assert given == before
    assert prepared == [given[0], calling(expected), given[2]]


@pytest.mark.parametrize("calls", [None, "f", [3], [{"id": "x"}], [{"function": "f"}], [{"function": {}}]])
def test_odd_calls_are_left_to_the_template(calls: object) -> None:
    messages = [{"role": "assistant", "content": "", "tool_calls": calls}]
    assert template_messages(messages) == messages


def test_what_was_read_is_written_again() -> None:
    template = Tokenizer.load(models_in_box()["perch"]).chat_template
    written = '<|tool_call|>{"name": "get_weather", "arguments": {"city": "Ålesund \\"{\\"", "days": 3}}'
    (call,) = read_answer(written, FORMATS["perch"]).calls
    message = calling(call.arguments)
    rendered = template.render(
        template_messages([{"role": "user", "content": "?"}, message]), add_generation_prompt=False
    )
    assert rendered == f"<|user|>?<|end|><|assistant|>{written}<|end|>"
