"""Bodies that hold too much JSON, or would cause too much work or too large a reply, are refused in time."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from archerfish.api import limits as limits_module
from archerfish.api.endpoints import read_body
from archerfish.api.errors import ErrorReply
from archerfish.api.limits import JsonLimits
from archerfish.api.model import EmbeddingSizes, ServedModel, usual_tool_format
from archerfish.box import models_in_box
from archerfish.engine.input_processor import InputProcessor
from archerfish.errors import RequestError
from archerfish.tokenizer import Tokenizer

LIMITS = JsonLimits(10_000)
USER = [{"role": "user", "content": "Hello"}]

_TEXTS = st.text(alphabet=st.sampled_from('ab"\\,[]{}:\n é🐟'), max_size=12)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_TEXTS, inner, max_size=5),
    max_leaves=30,
)


@pytest.fixture(scope="module")
def model() -> ServedModel:
    tokenizer = Tokenizer.load(Path(models_in_box()["perch"]))
    processor = InputProcessor(tokenizer, tokenizer.vocab_size, 1024, lambda: 7.0)
    tool_format = usual_tool_format("llama", tokenizer)
    return ServedModel(("perch",), processor, {}, tool_format, embedding=EmbeddingSizes(1_000_000))


def refusal(model: ServedModel, endpoint: str, body: dict[str, Any]) -> str | None:
    """Return the message a body is refused with; None if it is accepted."""
    outcome = read_body(model, endpoint, json.dumps(body).encode(), LIMITS)
    if not isinstance(outcome, ErrorReply):
        return None
    assert outcome.status == 400
    return outcome.message


@pytest.mark.parametrize(
    ("endpoint", "fits", "exceeds"),
    [
        # 10 answers of 100 tokens with 9 alternatives and the chosen token: 10,000 entries.
        (
            "/v1/chat/completions",
            {"messages": USER, "n": 10, "max_tokens": 100, "logprobs": True, "top_logprobs": 9},
            {"messages": USER, "n": 10, "max_tokens": 100, "logprobs": True, "top_logprobs": 10},
        ),
        # Without max_tokens a single answer is bounded by the context alone.
        (
            "/v1/chat/completions",
            {"messages": USER, "logprobs": True, "top_logprobs": 20},
            {"messages": USER, "logprobs": True, "top_logprobs": 20, "n": 2},
        ),
        # Each choice repeats those of the prompt.
        (
            "/v1/completions",
            {"prompt": [5] * 500, "max_tokens": 1, "prompt_logprobs": 1, "n": 10},
            {"prompt": [5] * 500, "max_tokens": 1, "prompt_logprobs": 1, "n": 11},
        ),
        # Of several prompts all count, and best_of counts the answers that are written.
        (
            "/v1/completions",
            {"prompt": [[5], [6]], "max_tokens": 500, "logprobs": 0, "best_of": 10},
            {"prompt": [[5], [6]], "max_tokens": 500, "logprobs": 0, "best_of": 11},
        ),
        ("/v1/embeddings", {"input": ["a"] * 4}, {"input": ["a"] * 5}),
        (
            "/v1/completions",
            {"prompt": "a", "allowed_token_ids": list(range(8000))},
            {"prompt": ["a"] * 1000, "allowed_token_ids": list(range(8000))},
        ),
    ],
)
def test_a_body_costs_no_more_than_it_may(
    model: ServedModel, endpoint: str, fits: dict[str, Any], exceeds: dict[str, Any]
) -> None:
    assert refusal(model, endpoint, fits) is None
    message = refusal(model, endpoint, exceeds)
    assert message is not None and ("send" in message or "ask for fewer" in message)


def test_stops_have_a_longest_length(model: ServedModel) -> None:
    assert refusal(model, "/v1/completions", {"prompt": "a", "stop": ["a" * 1000] * 16}) is None
    message = refusal(model, "/v1/completions", {"prompt": "a", "stop": "a" * 1001})
    assert message is not None and "1,000 characters" in message


def num_items(value: Any) -> int:
    """As the limits count: one for the whole, one for each container, and one for each further element in it."""
    return 1 + _inside(value)


def _inside(value: Any) -> int:
    if not isinstance(value, (list, dict)):
        return 0
    elements = list(value.values() if isinstance(value, dict) else value)
    return 1 + max(0, len(elements) - 1) + sum(map(_inside, elements))


def depth(value: Any) -> int:
    if not isinstance(value, (list, dict)):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


def passes(text: bytes, *, max_items: int = 10**9, max_depth: int = 10**9) -> bool:
    try:
        JsonLimits(max_items, max_depth).check(text)
    except RequestError:
        return False
    return True


@given(_VALUES, st.booleans(), st.sampled_from([7, 64, 1 << 16]))
@example('"\\', False, 7)
def test_what_is_counted_is_what_is_there(value: Any, is_ascii: bool, window: int) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits_module, "_WINDOW", window)
        assert passes(text, max_items=num_items(value)) and not passes(text, max_items=num_items(value) - 1)
        assert passes(text, max_depth=depth(value))
        assert depth(value) == 0 or not passes(text, max_depth=depth(value) - 1)


@given(st.binary(max_size=200))
def test_any_bytes_pass_or_are_refused(text: bytes) -> None:
    passes(text, max_items=3, max_depth=2)


def test_the_limits_are_named() -> None:
    with pytest.raises(RequestError, match="more than 2 JSON items; send less, or start with --max-body-items"):
        JsonLimits(2).check(b"[1, 2, 3]")
    with pytest.raises(RequestError, match="nests arrays and objects more than 64 levels deep"):
        JsonLimits(1000).check(b"[" * 65 + b"]" * 65)
