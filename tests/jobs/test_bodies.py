"""Bodies of lines: what they ask of the engine, and the name of what they should not."""

from typing import Any

import pytest

from archerfish.errors import InvalidParameter, RequestError
from archerfish.jobs.bodies import CHAT, COMPLETIONS, read_body
from archerfish.request import SamplingParams

MESSAGES = [{"role": "user", "content": "Hello"}]


def test_a_chat() -> None:
    body = {
        "model": "perch",
        "messages": MESSAGES,
        "max_completion_tokens": 7,
        "temperature": 0.5,
        "stop": "end",
        "logit_bias": {"5": -1},
        "logprobs": True,
        "top_logprobs": 3,
        "seed": None,
        "stream": False,
    }
    asked = read_body(CHAT, body, model="perch")
    assert (asked.messages, asked.prompts) == (MESSAGES, ())
    assert asked.params == SamplingParams(max_tokens=7, temperature=0.5, stop=("end",), logit_bias={5: -1}, logprobs=3)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("text", ("text",)),
        ([1, 2], ([1, 2],)),
        (["a", "b"], ("a", "b")),
        ([[1], [2, 3]], ([1], [2, 3])),
        (["a", [1]], ("a", [1])),
    ],
)
def test_completions(prompt: Any, prompts: tuple[Any, ...]) -> None:
    asked = read_body(COMPLETIONS, {"prompt": prompt, "logprobs": 2, "echo": False, "suffix": None})
    assert (asked.messages, asked.prompts) == (None, prompts)
    assert asked.params == SamplingParams(max_tokens=16, logprobs=2)


def test_defaults_lie_under_what_the_model_recommends_and_that_under_the_body() -> None:
    recommended = {"temperature": 0.6, "top_p": 0.9}
    asked = read_body(CHAT, {"messages": MESSAGES, "top_p": 0.5}, recommended=recommended)
    assert asked.params == SamplingParams(max_tokens=None, temperature=0.6, top_p=0.5)
    assert read_body(CHAT, {"messages": MESSAGES, "logprobs": True}).params.logprobs == 0
    assert read_body(COMPLETIONS, {"prompt": "a"}, recommended={"max_tokens": 5}).params.max_tokens == 5


@pytest.mark.parametrize(
    ("endpoint", "body", "name"),
    [
        (CHAT, {}, "messages"),
        (CHAT, {"messages": "hello"}, "messages"),
        (CHAT, {"messages": MESSAGES, "temprature": 1}, "temprature"),
        (CHAT, {"messages": MESSAGES, "tools": []}, "tools"),
        (CHAT, {"messages": MESSAGES, "prompt_logprobs": 1}, "prompt_logprobs"),
        (CHAT, {"messages": MESSAGES, "unknown": None}, "unknown"),
        (CHAT, {"messages": MESSAGES, "stream": True}, "stream"),
        (CHAT, {"messages": MESSAGES, "stream": 0}, "stream"),
        (CHAT, {"messages": MESSAGES, "logprobs": 2}, "logprobs"),
        (CHAT, {"messages": MESSAGES, "top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"messages": MESSAGES, "max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
        (CHAT, {"messages": MESSAGES, "temperature": -1}, "temperature"),
        (CHAT, {"messages": MESSAGES, "model": "gpt-4o"}, "model"),
        (COMPLETIONS, {"prompt": ""} | {"messages": MESSAGES}, "messages"),
        (COMPLETIONS, {"prompt": 7}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": [1, "a"]}, "prompt"),
        (COMPLETIONS, {"prompt": [True]}, "prompt"),
        (COMPLETIONS, {"prompt": [[]]}, "prompt"),
        (COMPLETIONS, {"prompt": ["a"] * 1025}, "prompt"),
        (COMPLETIONS, {"prompt": "a", "echo": True}, "echo"),
        (COMPLETIONS, {"prompt": "a", "best_of": 2}, "best_of"),
    ],
)
def test_what_is_wrong_is_named(endpoint: str, body: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidParameter) as refusal:
        read_body(endpoint, body, model="perch")
    assert refusal.value.name == name


@pytest.mark.parametrize("endpoint", ["/v1/embeddings", "/v1/responses"])
def test_endpoints_that_need_more_than_an_engine(endpoint: str) -> None:
    with pytest.raises(RequestError, match=endpoint):
        read_body(endpoint, {"input": "a"})
