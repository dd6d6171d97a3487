"""Bodies of lines: what they ask of the engine, and the name of what they should not."""

from pathlib import Path
from typing import Any

import pytest

from archerfish.api.endpoints import ENDPOINTS, refuse_in_batch, understand_line
from archerfish.api.errors import ErrorReply
from archerfish.api.model import EmbeddingSizes, ServedModel, usual_tool_format
from archerfish.box import models_in_box
from archerfish.engine.input_processor import EngineInputs, InputProcessor
from archerfish.request import SLO, RequestClass, SamplingParams, Speculation, Structured
from archerfish.tokenizer import Tokenizer

CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES = ENDPOINTS
OFF_AND_MORE = "speculation.verification"
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def model() -> ServedModel:
    tokenizer = Tokenizer.load(Path(models_in_box()["perch"]))
    processor = InputProcessor(tokenizer, tokenizer.vocab_size, 1024, lambda: 7.0)
    recommended = {"temperature": 0.6, "top_p": 0.9}
    tool_format = usual_tool_format("llama", tokenizer)
    return ServedModel(("perch",), processor, recommended, tool_format, embedding=EmbeddingSizes(320))


def asked(model: ServedModel, endpoint: str, body: dict[str, Any]) -> EngineInputs:
    call = understand_line(model, endpoint, body)
    assert not isinstance(call, ErrorReply), call
    return call.inputs


def test_a_chat(model: ServedModel) -> None:
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
    inputs = asked(model, CHAT, body)
    text = model.processor.chat_text(MESSAGES, add_generation_prompt=True)
    assert [tuple(prompt) for prompt in inputs.prompts] == [model.processor.token_ids(text, add_special_tokens=False)]
    assert inputs.params == SamplingParams(
        max_tokens=7, temperature=0.5, top_p=0.9, stop=("end",), logit_bias={5: -1}, logprobs=3
    )


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("text", ["text"]),
        ([1, 2], [[1, 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", [1]], ["a", [1]]),
    ],
)
def test_prompts(model: ServedModel, prompt: Any, prompts: list[Any]) -> None:
    wanted = [model.processor.token_ids(one) for one in prompts]
    for inputs in (asked(model, COMPLETIONS, {"prompt": prompt}), asked(model, EMBEDDINGS, {"input": prompt})):
        assert [tuple(prompt) for prompt in inputs.prompts] == wanted


def test_defaults_lie_under_what_the_model_recommends_and_that_under_the_body(model: ServedModel) -> None:
    assert asked(model, CHAT, {"messages": MESSAGES, "top_p": 0.5}).params == SamplingParams(
        max_tokens=None, temperature=0.6, top_p=0.5
    )
    assert asked(model, COMPLETIONS, {"prompt": "a"}).params.max_tokens == 16
    assert asked(model, RESPONSES, {"input": "a"}).params.max_tokens is None


def test_a_response_with_a_form(model: ServedModel) -> None:
    body = {"input": "Hello", "text": {"format": {"type": "regex", "regex": "a+"}}, "max_output_tokens": 5}
    inputs = asked(model, RESPONSES, body)
    assert inputs.prompts == asked(model, CHAT, {"messages": MESSAGES}).prompts
    assert (inputs.params.structured, inputs.params.max_tokens) == (Structured(regex="a+"), 5)


def test_requests_carry_what_the_body_says_of_them(model: ServedModel) -> None:
    body = {"prompt": ["a", "b"], "priority": 2, "cache_salt": "me", "slo": {"ttft_ms": 5}}
    requests = asked(model, COMPLETIONS, body).requests(7.0, "given", request_class=RequestClass.BATCH, tenant="t")
    assert [one.external_id for one in requests] == ["given-0", "given-1"]
    for one in requests:
        assert (one.priority, one.cache_salt, one.slo, one.tenant) == (2, "me", SLO(ttft_ms=5), "t")
        assert (one.request_class, one.arrival_time) == (RequestClass.BATCH, 7.0)
    [named] = asked(model, CHAT, {"messages": MESSAGES, "request_id": "mine"}).requests(7.0, "given")
    assert named.external_id == "mine"


@pytest.mark.parametrize(
    ("endpoint", "body", "name"),
    [
        (CHAT, {}, "messages"),
        (CHAT, {"messages": "hello"}, "messages"),
        (CHAT, {"messages": MESSAGES, "temprature": 1}, "temprature"),
        (CHAT, {"messages": MESSAGES, "unknown": None}, "unknown"),
        (CHAT, {"messages": MESSAGES, "stream": True}, "stream"),
        (CHAT, {"messages": MESSAGES, "stream": 0}, "stream"),
        (CHAT, {"messages": MESSAGES, "logprobs": 2}, "logprobs"),
        (CHAT, {"messages": MESSAGES, "temperature": -1}, "temperature"),
        (COMPLETIONS, {"prompt": "", "messages": MESSAGES}, "messages"),
        (COMPLETIONS, {"prompt": 7}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": [1, "a"]}, "prompt"),
        (COMPLETIONS, {"prompt": [True]}, "prompt"),
        (COMPLETIONS, {"prompt": [[]]}, "prompt"),
        (COMPLETIONS, {"prompt": ["a"] * 2049}, "prompt"),
        (COMPLETIONS, {"prompt": "a", "stream": True}, "stream"),
        (EMBEDDINGS, {"input": "a", "dimensions": 0}, "dimensions"),
        (RESPONSES, {"input": "a", "stream": True}, "stream"),
        (RESPONSES, {"input": "a", "background": True}, "background"),
    ],
)
def test_what_no_line_can_be(model: ServedModel, endpoint: str, body: dict[str, Any], name: str) -> None:
    refusal = understand_line(model, endpoint, body)
    assert isinstance(refusal, ErrorReply) and refusal.status == 400
    assert refusal.param is not None and refusal.param.split(".")[0] == name
    if name in ("stream", "background") and body[name]:
        assert refuse_in_batch(body) == refusal
    else:
        assert refuse_in_batch(body) is None


@pytest.mark.parametrize(
    ("endpoint", "body"), [(CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": "a"}), (RESPONSES, {"input": "a"})]
)
def test_how_tokens_are_guessed_is_a_choice_of_a_body(model: ServedModel, endpoint: str, body: dict[str, Any]) -> None:
    assert asked(model, endpoint, body).params.speculation is None
    given = {"num_speculative_tokens": 3, "verification": "rejection"}
    chosen = asked(model, endpoint, {**body, "speculation": given}).params.speculation
    assert chosen == Speculation(num_speculative_tokens=3, verification="rejection")
    refused = {"methods": "off"}, {"verification": "x"}, {"num_speculative_tokens": 0}, {"method": ""}, "off"
    for wrong in refused:
        refusal = understand_line(model, endpoint, {**body, "speculation": wrong})
        assert isinstance(refusal, ErrorReply) and str(refusal.param).startswith("speculation"), wrong


@pytest.mark.parametrize(
    ("endpoint", "body", "name"),
    [
        (CHAT, {"messages": MESSAGES, "top_logprobs": 2}, "top_logprobs"),
        (COMPLETIONS, {"prompt": "a", "speculation": {"method": "off", "verification": "typical"}}, OFF_AND_MORE),
        (CHAT, {"messages": MESSAGES, "max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        (CHAT, {"messages": MESSAGES, "model": "gpt-4o"}, "model"),
        (CHAT, {"messages": MESSAGES, "tools": [{}]}, "tools[0].type"),
        (EMBEDDINGS, {"input": "a", "dimensions": 3}, "dimensions"),
        (RESPONSES, {"input": "a", "store": True}, "store"),
        (RESPONSES, {"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
    ],
)
def test_what_this_model_and_place_cannot_do(
    model: ServedModel, endpoint: str, body: dict[str, Any], name: str
) -> None:
    assert refuse_in_batch(body) is None
    refusal = understand_line(model, endpoint, body)
    assert isinstance(refusal, ErrorReply) and refusal.param == name


@pytest.mark.parametrize("body", [[1], None, "text", 0, [], {1: 2}])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_body_that_is_no_object(model: ServedModel, endpoint: str, body: object) -> None:
    refusal = understand_line(model, endpoint, body)
    assert isinstance(refusal, ErrorReply) and refusal.status == 400
