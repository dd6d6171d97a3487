"""Bodies within the size limit that were slow or large to read once, or could be."""

import json
from collections.abc import Callable, Mapping
from typing import Any

Body = tuple[str, Callable[[], bytes]]
"""An endpoint, and what makes the body: all of them together would be gigabytes."""

_M = 1_000_000


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


def _user(content: object, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 2, **more}


def _tool(number: int) -> dict[str, Any]:
    properties = {f"p{i}": {"type": "string"} for i in range(20)}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": f"f{number}", "parameters": parameters}}


BIG_BODIES: dict[str, Body] = {
    # Many items: an error for each, an object for each, a token for each.
    "2M prompts": ("/v1/completions", lambda: b'{"prompt":[' + b'"a",' * (2 * _M) + b'"a"]}'),
    "8M prompts": ("/v1/completions", lambda: b'{"prompt":[' + b'"a",' * (8 * _M - 10) + b'"a"]}'),
    "1.5M messages": ("/v1/chat/completions", lambda: b'{"messages":[' + b"0," * 1_500_000 + b"0]}"),
    "200k messages": ("/v1/chat/completions", lambda: b'{"messages":[' + b"0," * 200_000 + b"0]}"),
    "80k empty messages": ("/v1/chat/completions", lambda: b'{"messages":[' + b"{}," * 80_000 + b"{}]}"),
    "80k items": ("/v1/responses", lambda: _json({"input": [{"role": "user", "content": "a"}] * 80_000})),
    "80k parts": ("/v1/chat/completions", lambda: _json(_user([{"type": "text", "text": "a"}] * 80_000))),
    "80k blocks": ("/v1/messages", lambda: _json(_user([{"type": "text", "text": "a"}] * 80_000))),
    "3M ids": ("/detokenize", lambda: _json({"tokens": [5] * (3 * _M)})),
    "250k ids": ("/detokenize", lambda: _json({"tokens": [5] * 250_000})),
    "1M biases": ("/v1/completions", lambda: _json({"prompt": "a", "logit_bias": {str(i): 1 for i in range(_M)}})),
    "100k biases": ("/v1/completions", lambda: _json({"prompt": "a", "logit_bias": dict.fromkeys(range(100_000), 1)})),
    "200k unknown fields": ("/v1/completions", lambda: _json({f"k{i}": 1 for i in range(200_000)})),
    "one field 2M times": ("/v1/completions", lambda: b"{" + b'"prompt":"a",' * (2 * _M) + b'"max_tokens":1}'),
    "2000 tools": ("/v1/chat/completions", lambda: _json(_user("a", tools=[_tool(i) for i in range(2000)]))),
    "40k properties": (
        "/v1/completions",
        lambda: _json(
            {
                "prompt": "a",
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"properties": {f"p{i}": {} for i in range(40_000)}}},
                },
            }
        ),
    ),
    "200k choices": (
        "/v1/completions",
        lambda: _json(
            {"prompt": "a", "response_format": {"type": "choice", "choice": [f"c{i}" for i in range(200_000)]}}
        ),
    ),
    "16M brackets": ("/v1/completions", lambda: b'{"prompt":' + b"[" * 16 * _M + b"]" * 15 * _M + b"}"),
    "3000 lists 60 deep": ("/v1/completions", lambda: b'{"x":[' + (b"[" * 60 + b"]" * 60 + b",") * 3000 + b"0]}"),
    # Long texts.
    "1.4M words": ("/tokenize", lambda: _json({"prompt": "a b c d " * 350_000})),
    "800k words and their texts": (
        "/tokenize",
        lambda: _json({"prompt": "a b c d " * 200_000, "return_token_strs": True}),
    ),
    "the longest text": ("/v1/completions", lambda: _json({"prompt": "a " * 4_990_000})),
    "32 MB of text": ("/v1/completions", lambda: _json({"prompt": "a " * 16_000_000})),
    "one word": ("/tokenize", lambda: _json({"prompt": "a" * 9_990_000})),
    "one word that has merges": ("/tokenize", lambda: _json({"prompt": "abcdefghij" * 100_000})),
    "spaces": ("/tokenize", lambda: _json({"prompt": " " * 5 * _M})),
    "marks on one letter": ("/tokenize", lambda: _json({"prompt": "a" + "\u0301" * _M})),
    "joined emoji": ("/tokenize", lambda: _json({"prompt": "\U0001f469\u200d\U0001f467\u200d\U0001f466" * 100_000})),
    "a template variable": (
        "/v1/chat/completions",
        lambda: _json(_user("a", chat_template_kwargs={"x": "y" * 30 * _M})),
    ),
    "a tool's description": (
        "/v1/chat/completions",
        lambda: _json(
            _user("a", tools=[{"type": "function", "function": {"name": "a", "description": "y" * 30 * _M}}])
        ),
    ),
    # What is wrong comes at the end, or is itself long.
    "a wrong bracket at the end": ("/v1/completions", lambda: _json({"prompt": "a " * 4_990_000})[:-1] + b"]"),
    "no bracket at the end": ("/v1/completions", lambda: b'{"prompt":[' + b'"a",' * 250_000 + b'"a"]'),
    "commas": ("/v1/completions", lambda: b"," * (32 * _M)),
    "quotes": ("/v1/completions", lambda: b'"' * (32 * _M)),
    "backslashes": ("/v1/completions", lambda: b'{"prompt":"' + b"\\\\" * (16 * _M - 10) + b'"}'),
    "escapes": ("/v1/completions", lambda: b'{"prompt":"' + b"\\u0041" * (5 * _M) + b'"}'),
    "digits": ("/v1/completions", lambda: b'{"seed":' + b"9" * (32 * _M) + b"}"),
    "a long unknown field": ("/v1/completions", lambda: b'{"prompt":"a","' + b"k" * (30 * _M) + b'":1}'),
    "a long model": ("/v1/completions", lambda: b'{"prompt":"a","model":"' + b"k" * (30 * _M) + b'"}'),
    "a long role": ("/v1/chat/completions", lambda: b'{"messages":[{"role":"' + b"k" * (30 * _M) + b'"}]}'),
    "a long salt": ("/v1/completions", lambda: _json({"prompt": "a", "max_tokens": 9, "cache_salt": "x" * 30 * _M})),
    # Bodies that are accepted, as large as that goes, and the first that are not.
    "many answers with many stops": (
        "/v1/completions",
        lambda: _json({"prompt": "a", "n": 128, "max_tokens": 1, "stop": [str(i) * 333 for i in range(100, 116)]}),
    ),
    "a long stop": ("/v1/completions", lambda: _json({"prompt": "a", "n": 128, "stop": "a" * _M})),
    "ids for each of many prompts": (
        "/v1/completions",
        lambda: _json({"prompt": ["a"] * 32, "max_tokens": 1, "logit_bias": dict.fromkeys(range(8000), 0.5)}),
    ),
    "ids for each of too many prompts": (
        "/v1/completions",
        lambda: _json({"prompt": ["a"] * 2048, "max_tokens": 1, "allowed_token_ids": list(range(8192))}),
    ),
    "2048 prompts": ("/v1/completions", lambda: _json({"prompt": ["a b"] * 2048, "max_tokens": 1})),
    "prompts with all their log-probabilities": (
        "/v1/completions",
        lambda: _json({"prompt": "a b c d " * 120, "n": 12, "max_tokens": 1, "prompt_logprobs": 20}),
    ),
    "answers with all their log-probabilities": (
        "/v1/chat/completions",
        lambda: _json(
            _user("a", n=12, logprobs=True, top_logprobs=20, ignore_eos=True, temperature=0) | {"max_tokens": 900}
        ),
    ),
    "too many log-probabilities": (
        "/v1/chat/completions",
        lambda: _json(_user("a", n=128, logprobs=True, top_logprobs=20) | {"max_tokens": 900}),
    ),
    "2048 embeddings": ("/v1/embeddings", lambda: _json({"input": ["a b c"] * 2048})),
    "an unused tool that would be repeated": (
        "/v1/responses",
        lambda: _json(
            {
                "input": "a",
                "tool_choice": "none",
                "max_output_tokens": 1,
                "tools": [{"type": "function", "name": "a", "description": "y" * 30 * _M, "parameters": None}],
            }
        ),
    ),
    "unused tools that are repeated": (
        "/v1/responses",
        lambda: _json(
            {
                "input": "a",
                "tool_choice": "none",
                "max_output_tokens": 1,
                "stream": True,
                "tools": [
                    {"type": "function", "name": f"a{i}", "description": "y" * 900, "parameters": None}
                    for i in range(1000)
                ],
            }
        ),
    ),
}

COVERED = {
    "2M prompts",
    "200k messages",
    "1M biases",
    "1.4M words",
    "32 MB of text",
    "a tool's description",
    "a wrong bracket at the end",
    "quotes",
    "a long unknown field",
    "a long salt",
}
"""Bodies that end where another one does, which is larger or takes longer: the full lane alone sends them."""
