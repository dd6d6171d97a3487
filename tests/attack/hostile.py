"""Valid bodies of every endpoint, and what a hostile client makes of them. Seeded: one seed, the same bodies."""

import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

_TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_WRITING: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.1,
    "n": 2,
    "stop": ["zzz", "\n"],
    "stop_token_ids": [7],
    "seed": 3,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1.5, "6": -100},
    "min_tokens": 1,
    "ignore_eos": False,
    "include_stop_str_in_output": True,
    "skip_special_tokens": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "priority": 1,
    "cache_salt": "salt",
    "request_id": "mine",
    "slo": {"ttft_ms": 100, "tpot_ms": 10},
    "speculation": {"method": "off"},
    "metrics": True,
    "user": "me",
}
_CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hello"}]}]

VALID: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": ["Once", "April"], "max_tokens": 4, "logprobs": 2, **_WRITING}),
    ("/v1/completions", {"prompt": [[5, 6, 7]], "max_tokens": 0, "echo": True, "add_special_tokens": True}),
    ("/v1/completions", {"prompt": "A", "max_tokens": 4, "allowed_token_ids": [5, 6], "speculation": None}),
    ("/v1/completions", {"prompt": "A", "max_tokens": 4, "response_format": {"type": "regex", "regex": "[ab]{3}"}}),
    ("/v1/completions", {"prompt": "A", "max_tokens": 4, "response_format": {"type": "choice", "choice": ["a"]}}),
    (
        "/v1/completions",
        {"prompt": "A", "max_tokens": 4, "response_format": {"type": "grammar", "grammar": 'root ::= "a"'}},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": _CHAT,
            "max_completion_tokens": 4,
            "logprobs": True,
            "top_logprobs": 2,
            "tools": [_TOOL],
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "chat_template_kwargs": {"x": 1},
            **_WRITING,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                *_CHAT,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": "seen"},
            ],
            "max_tokens": 4,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}},
        },
    ),
    (
        "/v1/responses",
        {
            "input": [
                {"role": "user", "content": "Hello"},
                {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "seen"},
            ],
            "instructions": "Be brief.",
            "max_output_tokens": 4,
            "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
            "text": {"format": {"type": "text"}},
            "metadata": {"a": "b"},
            "store": True,
            "temperature": 0.5,
        },
    ),
    ("/v1/responses", {"input": "Hello", "previous_response_id": "resp_no", "max_output_tokens": 4, "stream": True}),
    (
        "/v1/messages",
        {
            "messages": [
                {"role": "user", "content": "Hello"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {"a": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "seen"}]},
            ],
            "max_tokens": 4,
            "system": [{"type": "text", "text": "Be brief."}],
            "tools": [{"name": "look", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto"},
            "stop_sequences": ["zzz"],
            "metadata": {"user_id": "me"},
            "top_k": 5,
            "stream": True,
        },
    ),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hello"}], "system": "Be brief."}),
    ("/v1/embeddings", {"input": ["one", "two"], "encoding_format": "float"}),
    ("/tokenize", {"prompt": "Hello", "add_special_tokens": True, "return_token_strs": True}),
    ("/tokenize", {"messages": _CHAT, "add_generation_prompt": True}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
    ("/v1/batches", {"input_file_id": "file-no", "endpoint": "/v1/completions", "metadata": {"a": "b"}}),
)

HOSTILE_VALUES = (
    *("null", "true", "false", "0", "-0", "-1", "1", "7", "0.5", "-0.0", "1e-320", "1e308", "1e999", "-1e999"),
    *("NaN", "Infinity", "-Infinity", "2147483648", "-2147483649", "9223372036854775808", "18446744073709551616"),
    *("1" * 4000, "-" + "9" * 4299, "0." + "0" * 4000 + "1"),
    *('""', '" "', '"a"', '"\\u0000"', '"\\ud800"', '"\\udfff\\ud800"', '"\\ud83d\\ude00"', '"\\u202e\\u200b\\ufeff"'),
    *('"1"', '"NaN"', '"' + "9" * 5000 + '"', '"' + "a" * 20_000 + '"', '"' + "\\u0301" * 3000 + '"', '"<|im_end|>"'),
    *(
        '"../../../etc/passwd"',
        '"{{ 7 * 7 }}"',
        '"{% for i in range(10**9) %}x{% endfor %}"',
        '"\\r\\nSet-Cookie: a=b"',
    ),
    *("[]", "{}", "[[]]", "[{}]", "[null]", '[""]', '{"": ""}', '{"type": "text"}', '{"self": 1, "messages": 2}'),
    *("[" * 63 + "]" * 63, "[" * 70 + "]" * 70, '{"a":' * 60 + "1" + "}" * 60, "[0" + ", 0" * 3000 + "]"),
    *('{"__class__": "x", "__proto__": {"a": 1}}', '{"$ref": "#"}', '{"allOf": [{"$ref": "#"}, {"$ref": "#"}]}'),
)
"""JSON texts, some of them no JSON."""

_UNKNOWN_FIELDS = ("nothing", "", "__init__", "\ud800", "a" * 3000, "self", "model_config", "max_tokens ")


class _Raw(NamedTuple):
    """Stands in a body for a JSON text."""

    text: str


class HostileBody(NamedTuple):
    path: str
    content: bytes


def hostile_bodies(seed: int, count: int) -> Iterator[HostileBody]:
    """Valid bodies with one to three things wrong in them, or nothing."""
    rng = random.Random(seed)
    for number in range(count):
        path, body = VALID[number % len(VALID)]
        changed = json.loads(json.dumps(body))
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            changed = _mutated(rng, changed)
        text = _as_text(changed)
        if rng.random() < 0.03:
            text = text[: rng.randrange(len(text) + 1)]
        yield HostileBody(path, text.encode("utf-8", "surrogatepass"))


def each_field_with_each_value() -> Iterator[HostileBody]:
    """Every top-level field of every valid body with every hostile value: thousands."""
    for path, body in VALID:
        for name in body:
            for value in HOSTILE_VALUES:
                yield HostileBody(path, _as_text({**body, name: _Raw(value)}).encode())


def _mutated(rng: random.Random, value: Any) -> Any:
    """One change somewhere inside."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.8:
        place = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        kind = rng.random()
        if kind < 0.7:
            value[place] = _mutated(rng, value[place])
        elif kind < 0.8:
            del value[place]
        elif isinstance(value, list):
            value += [value[place]] * rng.choice((1, 3, 50))
        else:
            value[rng.choice(_UNKNOWN_FIELDS)] = value[place]
        return value
    return _Raw(rng.choice(HOSTILE_VALUES))


def _as_text(value: Any) -> str:
    if isinstance(value, _Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {_as_text(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_as_text, value)) + "]"
    return json.dumps(value)
