"""Where a call is demanded, the grammar takes right calls in the model's format and nothing else."""

import json
import random
from typing import Any

import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer

from archerfish.api.tools import FORMATS, ToolChoicePolicy, ToolFormat, check_tools, grammar_for, read_answer
from archerfish.box import models_in_box

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "...",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "unit": {"$ref": "#/$defs/unit"},
                    "days": {"type": "integer", "minimum": 1},
                },
                "required": ["city"],
                "$defs": {"unit": {"enum": ["celsius", "kelvin"]}},
            },
        },
    },
    {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "now"}},
]

every_format = pytest.mark.parametrize("tool_format", FORMATS.values(), ids=list(FORMATS))


class Vocabulary:
    """Perch's tokenizer, with markers of a format as further tokens."""

    def __init__(self, markers: tuple[str, ...] = (), *, special: bool = True) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(models_in_box()["perch"] / "tokenizer.json"))
        self._tokenizer.add_tokens([tokenizers.AddedToken(text, special=special, normalized=False) for text in markers])
        self.token_ids = {token.content: at for at, token in self._tokenizer.get_added_tokens_decoder().items()}
        self.size = self._tokenizer.get_vocab_size()
        self.closing = [token_id for text in ('"', "}", "]", '"}', "]}") for token_id in self.encode(text)]
        self.end = self.token_ids["<|end|>"]
        self.for_grammars = LLTokenizer(self._tokenizer.to_str(), eos_token=self.end)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids


PERCH = Vocabulary()


def grammar(
    tool_format: ToolFormat,
    tool_choice: object = "required",
    *,
    tools: list[dict[str, Any]] = TOOLS,
    parallel: bool = True,
    vocabulary: Vocabulary = PERCH,
) -> str:
    written = grammar_for(tool_format, tools, check_tools(tools, tool_choice), parallel, vocabulary.token_ids)
    assert written is not None
    return written


def takes(written: str, text: str, vocabulary: Vocabulary = PERCH) -> bool:
    """Whether an answer of this text may be written and then end."""
    error = LLMatcher.validate_grammar(written, vocabulary.for_grammars)
    assert not error, error
    matcher = LLMatcher(vocabulary.for_grammars, written)
    token_ids = vocabulary.encode(text)
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


def write(tool_format: ToolFormat, *calls: tuple[str, str], opening: int = 0) -> str:
    written = [tool_format.call.replace("$name", name).replace("$arguments", arguments) for name, arguments in calls]
    return tool_format.openings[opening] + tool_format.between.join(written) + tool_format.ending


RIGHT = [
    ("get_weather", '{"city": "Bergen"}'),
    ("get_weather", '{"city":"Ålesund {\\"好\\\\ 🇳🇴","unit":"kelvin","days":3}'),
    ("get", "{}"),
    ("get", '{"a": [1, {"b": null}], "c": "}"}'),
    ("now", "{}"),
]
WRONG = [
    ("get_weather", "{}"),
    ("get_weather", '{"city": 3}'),
    ("get_weather", '{"city": "Bergen", "unit": "miles"}'),
    ("get_weather", '{"city": "Bergen", "days": 0}'),
    ("get_weather", '{"city": "Bergen", "other": 1}'),
    ("get_weather", '{"city": "Bergen"'),
    ("get_weather", '{"city": "Bergen",    "days": 1}'),
    ("get", "[]"),
    ("now", '{"a": 1}'),
    ("delete_all", "{}"),
    ("ge", "{}"),
]


@every_format
def test_only_right_calls_are_taken(tool_format: ToolFormat) -> None:
    written = grammar(tool_format)
    for call in RIGHT:
        assert takes(written, write(tool_format, call)), call
    for call in WRONG:
        assert not takes(written, write(tool_format, call)), call
    for text in ("", "Hello", "Hello" + write(tool_format, RIGHT[0]), write(tool_format, RIGHT[0]) + "."):
        assert not takes(written, text), text


@every_format
def test_what_may_be_written_can_be_read(tool_format: ToolFormat) -> None:
    """One call after the other, and each way to begin."""
    written = grammar(tool_format)
    for opening in range(len(tool_format.openings)):
        text = write(tool_format, *RIGHT, opening=opening)
        assert takes(written, text)
        answer = read_answer(text, tool_format, known=("get_weather", "get", "now"))
        assert answer.content == ""
        assert [(call.name, call.arguments) for call in answer.calls] == RIGHT


@every_format
@pytest.mark.parametrize("seed", range(4))
def test_whatever_may_be_drawn_can_be_read(tool_format: ToolFormat, seed: int) -> None:
    """Tokens drawn at random, out of those that are allowed, are calls whose arguments are right."""
    vocabulary = Vocabulary(tool_format.markers)
    matcher = LLMatcher(vocabulary.for_grammars, grammar(tool_format, vocabulary=vocabulary))
    draw = random.Random(seed)
    token_ids: list[int] = []
    while not matcher.is_stopped() and not (matcher.is_accepting() and draw.random() < 0.2):
        allowed = [token_id for token_id in vocabulary.closing if matcher.validate_tokens([token_id])]
        if not allowed or draw.random() < 0.7:
            mask = matcher.compute_bitmask()
            allowed = [at for at in range(vocabulary.size) if mask[at // 8] >> at % 8 & 1 and at != vocabulary.end]
        token_ids.append(draw.choice(allowed))
        assert matcher.consume_token(token_ids[-1])
        assert len(token_ids) < 2000
    text = vocabulary.for_grammars.decode_str(token_ids)
    answer = read_answer(text, tool_format)
    assert answer.content == ""
    assert answer.calls
    for call in answer.calls:
        assert isinstance(json.loads(call.arguments), dict)
        if call.name == "get_weather":
            assert isinstance(json.loads(call.arguments)["city"], str)


@every_format
def test_one_call_where_they_must_not_be_parallel(tool_format: ToolFormat) -> None:
    written = grammar(tool_format, parallel=False)
    assert takes(written, write(tool_format, RIGHT[0]))
    assert not takes(written, write(tool_format, RIGHT[0], RIGHT[4]))


@every_format
def test_named_function_is_called_once(tool_format: ToolFormat) -> None:
    written = grammar(tool_format, {"type": "function", "function": {"name": "get"}})
    assert takes(written, write(tool_format, ("get", '{"a": 1}')))
    assert not takes(written, write(tool_format, ("now", "{}")))
    assert not takes(written, write(tool_format, ("get_weather", '{"city": "Bergen"}')))
    assert not takes(written, write(tool_format, ("get", "{}"), ("get", "{}")))


@every_format
@pytest.mark.parametrize("special", [True, False])
def test_markers_that_are_tokens(tool_format: ToolFormat, special: bool) -> None:
    """Written as one token each, never as the same letters in several."""
    vocabulary = Vocabulary(tool_format.markers, special=special)
    written = grammar(tool_format, vocabulary=vocabulary)
    text = write(tool_format, *RIGHT)
    assert takes(written, text, vocabulary)
    if tool_format.start in text:
        token_ids = vocabulary.encode(text)
        assert token_ids[0] == vocabulary.token_ids[tool_format.start]
        in_letters = [token_id for letter in tool_format.start for token_id in vocabulary.encode(letter)]
        matcher = LLMatcher(vocabulary.for_grammars, written)
        assert matcher.try_consume_tokens([*in_letters, *token_ids[1:]]) == 0


def test_perch_is_forced_up_to_the_name() -> None:
    matcher = LLMatcher(PERCH.for_grammars, grammar(FORMATS["perch"]))
    forced = matcher.compute_ff_tokens()
    assert forced[0] == PERCH.token_ids["<|tool_call|>"]
    assert PERCH.for_grammars.decode_str(forced).startswith('<|tool_call|>{"name')


def test_some_of_the_functions() -> None:
    tool_choice = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": name}} for name in ("now", "get")],
        },
    }
    written = grammar(FORMATS["perch"], tool_choice)
    assert takes(written, write(FORMATS["perch"], ("now", "{}"), ("get", "{}")))
    assert not takes(written, write(FORMATS["perch"], ("get_weather", '{"city": "Bergen"}')))


def test_no_grammar_where_nothing_may_be_called() -> None:
    assert grammar_for(FORMATS["perch"], TOOLS, ToolChoicePolicy("none", ("now",)), True, PERCH.token_ids) is None


def test_calls_that_are_not_required_look_the_same() -> None:
    choices = [ToolChoicePolicy(mode, ("now",)) for mode in ("auto", "required")]
    auto, required = (grammar_for(FORMATS["perch"], TOOLS, choice, True, PERCH.token_ids) for choice in choices)
    assert auto == required is not None


def one_function(parameters: object, **more: object) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "parameters": parameters, **more}}]


def test_further_arguments_are_taken_where_a_schema_asks_for_them() -> None:
    perch = FORMATS["perch"]
    properties = {"a": {"type": "integer"}}
    for schema in (
        {"type": "object", "properties": properties, "additionalProperties": True},
        {"type": "object", "properties": properties, "required": ["a", "b"]},
        {"type": "object", "properties": properties, "allOf": [{"properties": {"b": {"const": 2}}}]},
    ):
        assert takes(grammar(perch, tools=one_function(schema)), write(perch, ("f", '{"a": 1, "b": 2}'))), schema


def test_what_a_strict_function_asks_for_is_not_left_out() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "int32"}}, "required": ["a"]}
    assert takes(grammar(FORMATS["perch"], tools=one_function(schema)), write(FORMATS["perch"], ("f", '{"a": "x"}')))
    written = grammar(FORMATS["perch"], tools=one_function(schema, strict=True))
    assert "Unknown format: int32" in LLMatcher.validate_grammar(written, PERCH.for_grammars)


def test_tools_are_not_changed() -> None:
    before = json.dumps(TOOLS)
    grammar(FORMATS["hermes"])
    assert json.dumps(TOOLS) == before
