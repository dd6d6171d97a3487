"""Bodies whose parameters, retained fields or replies are too large are refused when they are read."""

import json
from pathlib import Path
from typing import Any

import pytest

from archerfish.api.endpoints import read_body
from archerfish.api.errors import ErrorReply
from archerfish.api.json_limits import JsonLimits
from archerfish.api.model import EmbeddingSizes, ServedModel, usual_tool_format
from archerfish.box import models_in_box
from archerfish.engine.input_processor import InputProcessor
from archerfish.tokenizer import Tokenizer

LIMITS = JsonLimits(10_000)
USER = [{"role": "user", "content": "Hello"}]


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
