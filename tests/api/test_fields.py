"""Fields of other services' clients: what they come to, and what is said of those that cannot be kept to."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from archerfish.api.completions import CompletionsCall
from archerfish.api.endpoints import BODIES, read_body, understand_line
from archerfish.api.errors import ErrorReply
from archerfish.api.limits import JsonLimits
from archerfish.api.model import EmbeddingSizes, ServedModel, usual_tool_format
from archerfish.box import models_in_box
from archerfish.engine.input_processor import EngineInputs, InputProcessor
from archerfish.request import FinishReason, Structured, TokenEvent, TokenLogprob, TokenLogprobs
from archerfish.tokenizer import Tokenizer
from tests.api.writings import begun

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, EMBEDDINGS = "/v1/messages", "/v1/embeddings"
HI = [{"role": "user", "content": "Hi"}]
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HI},
    COMPLETIONS: {"prompt": "Hi"},
    RESPONSES: {"input": "Hi"},
    MESSAGES: {"messages": HI, "max_tokens": 8},
    EMBEDDINGS: {"input": "Hi"},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.fixture(scope="module")
def model() -> ServedModel:
    tokenizer = Tokenizer.load(Path(models_in_box()["perch"]))
    processor = InputProcessor(tokenizer, tokenizer.vocab_size, 1024, lambda: 0.0)
    return ServedModel(("perch",), processor, {}, usual_tool_format("llama", tokenizer), embedding=EmbeddingSizes(320))


def ask_of(model: ServedModel, endpoint: str, **fields: Any) -> EngineInputs:
    body = BODIES[endpoint].body.model_validate({**BASE[endpoint], **fields})
    call = BODIES[endpoint].read(model, body, ())
    assert not isinstance(call, (bytes, tuple))
    return call.inputs


def refusal(model: ServedModel, endpoint: str, **fields: Any) -> ErrorReply:
    reply = read_body(model, endpoint, json.dumps({**BASE[endpoint], **fields}).encode(), JsonLimits(10_000), ())
    assert isinstance(reply, ErrorReply) and reply.status == 400, reply
    return reply


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"structured_outputs": {"json": SCHEMA}}, "json"),
        ({"structured_outputs": {"json": '{"type": "object"}'}}, Structured(json_schema='{"type": "object"}')),
        ({"structured_outputs": {"regex": "a+"}}, Structured(regex="a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Structured(choice=("a", "b"))),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, Structured(grammar='start: "a"')),
        ({"structured_outputs": {"json_object": True}}, Structured(json_object=True)),
        ({"guided_json": SCHEMA}, "json"),
        ({"guided_json": '{"type": "object"}'}, Structured(json_schema='{"type": "object"}')),
        ({"guided_regex": "a+"}, Structured(regex="a+")),
        ({"guided_choice": ["a", "b"]}, Structured(choice=("a", "b"))),
        ({"guided_grammar": 'start: "a"'}, Structured(grammar='start: "a"')),
    ],
)
def test_forms_in_the_words_of_vllm(
    model: ServedModel, endpoint: str, fields: dict[str, Any], form: Structured | str
) -> None:
    wanted = ask_of(
        model, CHAT, response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    )
    expected = wanted.params.structured if form == "json" else form
    assert ask_of(model, endpoint, **fields).params.structured == expected


@pytest.mark.parametrize(
    ("endpoint", "fields", "message"),
    [
        (
            CHAT,
            {"structured_outputs": {"regex": "a", "json": {}}},
            "structured_outputs = .* exactly one of json, regex",
        ),
        (CHAT, {"structured_outputs": {}}, "structured_outputs = .* exactly one of"),
        (CHAT, {"structured_outputs": {"json_object": False}}, "structured_outputs = .* exactly one of"),
        (CHAT, {"structured_outputs": {"schema": {}}}, "structured_outputs.schema is not a known field"),
        (COMPLETIONS, {"structured_outputs": {"json": "{"}}, "structured_outputs.json = .* it is no JSON"),
        (COMPLETIONS, {"guided_json": "[1]"}, "guided_json = .* must be a JSON schema"),
        (
            CHAT,
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "guided_regex = .* response_format already says what the answer must be; give one of them",
        ),
        (CHAT, {"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice = .* guided_regex already says"),
        (
            RESPONSES,
            {"guided_regex": "a", "text": {"format": {"type": "regex", "regex": "a"}}},
            "guided_regex = .* text.format already says",
        ),
        (
            MESSAGES,
            {"guided_regex": "a", "output_config": {"format": {"type": "json_schema", "schema": {}}}},
            "guided_regex = .* output_config.format already says",
        ),
    ],
)
def test_forms_that_contradict_one_another(
    model: ServedModel, endpoint: str, fields: dict[str, Any], message: str
) -> None:
    reply = refusal(model, endpoint, **fields)
    assert re.match(message, reply.message), reply.message


@pytest.mark.parametrize(
    ("endpoint", "name", "remedy"),
    [
        (CHAT, "json_schema", "did you mean structured_outputs?"),
        (CHAT, "structured_output", "did you mean structured_outputs?"),
        (CHAT, "guided_schema", "leave it out"),
        (CHAT, "enable_thinking", "did you mean chat_template_kwargs?"),
        (CHAT, "max_output_tokens", "did you mean max_tokens?"),
        (RESPONSES, "max_tokens", "did you mean max_output_tokens?"),
        (RESPONSES, "reasoning_effort", "did you mean reasoning?"),
        (MESSAGES, "reasoning_effort", "did you mean thinking?"),
        (CHAT, "temprature", "did you mean temperature?"),
        (COMPLETIONS, "messages", "did you mean prompt?"),
        (EMBEDDINGS, "prompt", "did you mean input?"),
        (CHAT, "frobnicate", "leave it out"),
    ],
)
def test_an_unknown_field_names_the_nearest(model: ServedModel, endpoint: str, name: str, remedy: str) -> None:
    reply = refusal(model, endpoint, **{name: 1})
    assert (reply.code, reply.param) == ("unknown_field", name)
    assert reply.message == f"{name} is not a known field; {remedy}"


def test_a_long_unknown_field_is_named_in_few_words(model: ServedModel) -> None:
    reply = refusal(model, CHAT, **{"x" * 100_000: 1})
    assert reply.code == "unknown_field" and reply.param is not None
    assert len(reply.param) < 300 and len(reply.message) < 3000


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"a": "b"}},
        {"store": False},
        {"store": None},
        {"service_tier": "auto"},
        {"prompt_cache_key": "k"},
        {"user": "me"},
    ],
)
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, RESPONSES])
def test_what_is_harmless_is_taken(model: ServedModel, endpoint: str, fields: dict[str, Any]) -> None:
    assert ask_of(model, endpoint, **fields).params == ask_of(model, endpoint).params
    assert ask_of(model, endpoint, **fields).prompts == ask_of(model, endpoint).prompts


def test_what_is_harmless_in_a_chat(model: ServedModel) -> None:
    fields = {"modalities": ["text"], "verbosity": "medium", "reasoning_effort": "none", "parallel_tool_calls": True}
    assert ask_of(model, CHAT, **fields).params == ask_of(model, CHAT).params
    for endpoint in (CHAT, COMPLETIONS, RESPONSES):
        assert ask_of(model, endpoint, safety_identifier="me").user == "me"


@pytest.mark.parametrize(
    ("endpoint", "fields", "message"),
    [
        (CHAT, {"service_tier": "flex"}, "service_tier: "),
        (CHAT, {"metadata": {"a" * 65: "b"}}, "metadata.*at most 64 char"),
        (CHAT, {"metadata": {"a": "b" * 513}}, "metadata.a: .*at most 512 char"),
        (COMPLETIONS, {"metadata": {str(n): "" for n in range(17)}}, "metadata: .*at most 16"),
        (CHAT, {"metadata": {"a": 1}}, "metadata.a: "),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
        (CHAT, {"verbosity": "low"}, "verbosity: "),
        (CHAT, {"reasoning_effort": "high"}, "reasoning_effort = 'high' .*leave it out"),
        (RESPONSES, {"reasoning": {"effort": "high"}}, "reasoning.effort = 'high' .*leave it out"),
        (RESPONSES, {"reasoning": {"summary": "detailed"}}, "reasoning.summary: "),
        (MESSAGES, {"output_config": {"effort": "high"}}, "output_config.effort = 'high' .*leave it out"),
        (COMPLETIONS, {"best_of": 2, "n": 3}, "best_of = 2.*n = 3"),
        (COMPLETIONS, {"best_of": 2, "stream": True}, "best_of = 2 .* cannot be combined with stream"),
        (COMPLETIONS, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs = 1 .* cannot be combined with stream"),
        (CHAT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs = 1 .* cannot be combined with stream"),
        (CHAT, {"best_of": 2, "n": 3}, "best_of = 2.*n = 3"),
        (CHAT, {"best_of": 2, "stream": True}, "best_of = 2 .* cannot be combined with stream"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs: it must be from 0 to 20; "),
        (CHAT, {"prompt_logprobs": -1}, "prompt_logprobs: it must be from 0 to 20; "),
        (COMPLETIONS, {"logprobs": -1}, "logprobs: it must be from 0 to 20; "),
        (COMPLETIONS, {"prompt_logprobs": 21}, "prompt_logprobs: it must be from 0 to 20; "),
        (COMPLETIONS, {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens = 0 "),
        (CHAT, {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens: "),
        (CHAT, {"bad_words": [" "]}, "bad_words = .*every word must be"),
        (
            CHAT,
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats = True .*it needs include_usage = true",
        ),
        (EMBEDDINGS, {"dimensions": 100}, "dimensions = 100 .* have 320 numbers, .*leave it out"),
        (EMBEDDINGS, {"dimensions": 321}, "dimensions = 321 .* have 320 numbers"),
        (CHAT, {"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs.messages = "),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    model: ServedModel, endpoint: str, fields: dict[str, Any], message: str
) -> None:
    reply = refusal(model, endpoint, **fields)
    assert re.match(message, reply.message), reply.message


@pytest.mark.parametrize(
    ("endpoint", "part"),
    [
        (CHAT, {"type": "image_url", "image_url": {"url": "data:"}}),
        (CHAT, {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}),
        (CHAT, {"type": "file", "file": {"file_id": "x"}}),
        (RESPONSES, {"type": "input_image", "image_url": "x"}),
        (RESPONSES, {"type": "input_file", "file_id": "x"}),
        (MESSAGES, {"type": "image", "source": {"type": "url", "url": "x"}}),
        (MESSAGES, {"type": "document", "source": {"type": "url", "url": "x"}}),
    ],
)
def test_parts_that_are_no_text(model: ServedModel, endpoint: str, part: dict[str, Any]) -> None:
    name = "input" if endpoint == RESPONSES else "messages"
    text = {"type": "input_text" if endpoint == RESPONSES else "text", "text": "What is this?"}
    reply = refusal(model, endpoint, **{name: [{"role": "user", "content": [text, part]}]})
    said = f"this model reads text only, and this part is of type {part['type']}; leave it out"
    assert reply.message.endswith(said) and str(reply.param).startswith(f"{name}.0.content.1"), reply


def test_any_name_can_be_a_variable_of_the_template(model: ServedModel) -> None:
    for name in ("self", "message", "variables", "cls", "", "a b", "conversation"):
        assert ask_of(model, CHAT, chat_template_kwargs={name: 1}).prompts == ask_of(model, CHAT).prompts


def test_embeddings_are_cut_where_the_model_was_trained_for_it(model: ServedModel) -> None:
    def served(shorter: tuple[int, ...] | None) -> ServedModel:
        return ServedModel(("perch",), model.processor, {}, embedding=EmbeddingSizes(4, shorter))

    def embedded(of: ServedModel, **fields: Any) -> list[float]:
        call = understand_line(of, EMBEDDINGS, {"input": [5], **fields})
        assert not isinstance(call, ErrorReply), call
        writing = begun(of, call.inputs)
        event = TokenEvent(writing.request.request_id, 0, [1], prompt_embedding=[3.0, 4.0, 12.0, 84.0])
        writing.add(event, 0.0)
        values: list[float] = call.reply([writing])["data"][0]["embedding"]
        return values

    assert embedded(served(None)) == embedded(served(()), dimensions=4) == [3.0, 4.0, 12.0, 84.0]
    assert embedded(served(None), dimensions=2) == embedded(served((2, 3)), dimensions=2) == [0.6, 0.8]
    assert "give fewer" in refusal(served(None), EMBEDDINGS, dimensions=5).message
    assert "have 4 numbers, or 2, 3" in refusal(served((2, 3)), EMBEDDINGS, dimensions=1).message


def candidates(token_ids: list[int], logprob: float) -> list[TokenLogprobs]:
    top = [TokenLogprob(token, logprob - token) for token in range(3)]
    return [TokenLogprobs(token, logprob, 5, top) for token in token_ids]


def completed(model: ServedModel, answers: list[tuple[list[int], float]], **fields: Any) -> dict[str, Any]:
    """The reply where these answers, with this log-probability of each of their tokens, are written."""
    call = understand_line(model, COMPLETIONS, {"prompt": [20, 21, 22], **fields})
    assert isinstance(call, CompletionsCall), call
    writing = begun(model, call.inputs)
    assert writing.request.params.n == len(answers)
    of_prompt = candidates([21, 22], -2.0) if call.inputs.params.prompt_logprobs is not None else None
    for index, (token_ids, logprob) in enumerate(answers):
        told = candidates(token_ids, logprob) if writing.request.params.logprobs is not None else None
        writing.add_all([TokenEvent(writing.request.request_id, index, token_ids, told, of_prompt)], 1.0)
    for index in range(len(answers)):
        writing.add_all([TokenEvent(writing.request.request_id, index, [], finish_reason=FinishReason.LENGTH)], 2.0)
    return call.reply([writing])


def test_the_best_are_those_with_the_likeliest_tokens(model: ServedModel) -> None:
    answers = [([30, 31], -2.0), ([40], -3.0), ([50, 51, 52], -1.0)]
    reply = completed(model, answers, best_of=3, n=2)
    text = model.processor.tokenizer.decode  # type: ignore[union-attr]
    assert [one["text"] for one in reply["choices"]] == [text([50, 51, 52]), text([30, 31])]
    assert [one["index"] for one in reply["choices"]] == [0, 1]
    assert [one["logprobs"] for one in reply["choices"]] == [None, None]
    assert reply["usage"]["completion_tokens"] == 6  # All that was written.
    assert len(completed(model, answers, best_of=3)["choices"]) == 1
    [one] = completed(model, answers, best_of=3, logprobs=1)["choices"]
    assert one["logprobs"]["token_logprobs"] == [-1.0, -1.0, -1.0]


def test_best_of_n_is_all_of_them(model: ServedModel) -> None:
    reply = completed(model, [([30], -9.0), ([31], -1.0)], best_of=2, n=2)
    assert [one["text"] for one in reply["choices"]] == [
        model.processor.tokenizer.decode([30]),  # type: ignore[union-attr]
        model.processor.tokenizer.decode([31]),  # type: ignore[union-attr]
    ]


def test_how_likely_the_prompt_is(model: ServedModel) -> None:
    [choice] = completed(model, [([30], -1.0)], prompt_logprobs=1)["choices"]
    none, first, second = choice["prompt_logprobs"]
    assert none is None and set(first) == {"21", "0"} and set(second) == {"22", "0"}
    assert first["0"] == {"logprob": -2.0, "rank": 1, "decoded_token": "<|endoftext|>"}
    assert (first["21"]["logprob"], first["21"]["rank"]) == (-2.0, 5)
    [choice] = completed(model, [([30], -1.0)], prompt_logprobs=3, logprobs=1, echo=True)["choices"]
    assert set(choice["prompt_logprobs"][1]) == {"21", "0", "1", "2"}
    assert [len(top or ()) for top in choice["logprobs"]["top_logprobs"]] == [0, 2, 2, 2]
    assert "prompt_logprobs" not in completed(model, [([30], -1.0)])["choices"][0]


@pytest.mark.parametrize(
    ("endpoint", "name"),
    [
        (CHAT, "max_tokens"),
        (CHAT, "max_completion_tokens"),
        (RESPONSES, "max_output_tokens"),
        (MESSAGES, "max_tokens"),
        (COMPLETIONS, "max_tokens"),
    ],
)
def test_a_limit_beyond_the_context_is_refused_under_the_name_it_was_given(
    model: ServedModel, endpoint: str, name: str
) -> None:
    reply = refusal(model, endpoint, **{name: 1 << 20})
    assert reply.param == name and reply.message.startswith(f"{name} = 1048576 is not valid")
    assert "--max-model-len" in reply.message
