"""Fields of OpenAI's and vLLM's APIs that ask for nothing pass; those that ask for what cannot be done are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import ChatCompletionStreamOptionsParam
from openai.types.chat import completion_create_params as chat_create_params

from archerfish.api.endpoints import read_body
from archerfish.api.errors import ErrorReply
from archerfish.api.limits import JsonLimits
from archerfish.api.model import EmbeddingSizes, ServedModel, usual_tool_format
from archerfish.box import models_in_box
from archerfish.engine.input_processor import EngineInputs, InputProcessor
from archerfish.request import Best, Structured
from archerfish.tokenizer import Tokenizer

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    COMPLETIONS: {"prompt": "Hi"},
    EMBEDDINGS: {"input": "Hi"},
}
REQUIRED = {"messages", "prompt", "input", "model"}

OPENAI = {
    CHAT: chat_create_params.CompletionCreateParamsBase.__annotations__,
    COMPLETIONS: completion_create_params.CompletionCreateParamsBase.__annotations__,
    EMBEDDINGS: embedding_create_params.EmbeddingCreateParams.__annotations__,
}
"""Fields that the client knows. All but the required ones may be null."""

WRITING: dict[str, Any] = {
    **dict.fromkeys(("logit_bias", "seed", "stream_options", "temperature", "top_p", "user", "top_k", "min_p")),
    **dict.fromkeys(("repetition_penalty", "truncate_prompt_tokens", "allowed_token_ids", "prompt_logprobs")),
    **dict.fromkeys(("best_of", "response_format", "structured_outputs", "guided_json", "guided_regex")),
    **dict.fromkeys(("guided_choice", "guided_grammar", "guided_decoding_backend", "guided_whitespace_pattern")),
    **dict.fromkeys(("request_id", "logits_processors", "return_tokens_as_token_ids", "return_token_ids")),
    **dict.fromkeys(("cache_salt", "kv_transfer_params", "vllm_xargs", "repetition_detection", "max_tokens")),
    **{name: [] for name in ("stop", "stop_token_ids", "bad_words")},
    **dict.fromkeys(("stream", "use_beam_search", "early_stopping", "include_stop_str_in_output"), False),
    **dict.fromkeys(("ignore_eos", "echo"), False),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), True),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "min_tokens", "priority"), 0),
    **dict.fromkeys(("n", "length_penalty"), 1),
}
VLLM: dict[str, dict[str, Any]] = {
    CHAT: {
        **WRITING,
        **dict.fromkeys(("max_completion_tokens", "tools", "reasoning_effort", "documents", "chat_template")),
        **dict.fromkeys(("chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs", "thinking_token_budget")),
        **dict.fromkeys(("logprobs", "continue_final_message", "add_special_tokens"), False),
        **dict.fromkeys(("include_reasoning", "parallel_tool_calls", "add_generation_prompt"), True),
        "top_logprobs": 0,
        "tool_choice": "none",
    },
    COMPLETIONS: {
        **WRITING,
        **dict.fromkeys(("logprobs", "suffix", "prompt_embeds")),
        "max_tokens": 16,
        "length_penalty": 1.0,
        "add_special_tokens": True,
    },
    EMBEDDINGS: {
        **dict.fromkeys(("dimensions", "user", "truncate_prompt_tokens", "truncation_side", "request_id")),
        **dict.fromkeys(("mm_processor_kwargs", "cache_salt", "normalize", "use_activation")),
        "encoding_format": "float",
        "priority": 0,
        "add_special_tokens": True,
        "embed_dtype": "float32",
        "endianness": "native",
    },
}
"""Fields that vLLM documents, with their defaults there."""


@pytest.fixture(scope="module")
def model() -> ServedModel:
    tokenizer = Tokenizer.load(Path(models_in_box()["perch"]))
    processor = InputProcessor(tokenizer, tokenizer.vocab_size, 1024, lambda: 0.0)
    return ServedModel(("perch",), processor, {}, usual_tool_format("llama", tokenizer), embedding=EmbeddingSizes(320))


def read(model: ServedModel, endpoint: str, **fields: Any) -> EngineInputs | ErrorReply:
    body = json.dumps({**BASE[endpoint], **fields}).encode()
    outcome = read_body(model, endpoint, body, JsonLimits(10_000), ())
    if isinstance(outcome, ErrorReply):
        return outcome
    assert not isinstance(outcome, (bytes, tuple))
    return outcome.inputs


def refusal(model: ServedModel, endpoint: str, **fields: Any) -> ErrorReply:
    reply = read(model, endpoint, **fields)
    assert isinstance(reply, ErrorReply) and reply.status == 400, reply
    return reply


@pytest.mark.parametrize("endpoint", BASE)
def test_every_field_of_openai_s_client_may_be_null(model: ServedModel, endpoint: str) -> None:
    plain = read(model, endpoint)
    names = OPENAI[endpoint].keys() - REQUIRED
    assert len(names) >= 3
    for name in names:
        assert read(model, endpoint, **{name: None}) == plain, name
    assert read(model, endpoint, **dict.fromkeys(names)) == plain


@pytest.mark.parametrize("endpoint", BASE)
def test_every_field_of_vllm_may_have_its_default_or_be_null(model: ServedModel, endpoint: str) -> None:
    plain = read(model, endpoint)
    assert isinstance(plain, EngineInputs)
    for name, value in VLLM[endpoint].items():
        for given in (value, None):
            asked = read(model, endpoint, **{name: given})
            assert isinstance(asked, EngineInputs), asked
            assert (asked.prompts, asked.params) == (plain.prompts, plain.params), name
    together = read(model, endpoint, **VLLM[endpoint])
    assert isinstance(together, EngineInputs) and (together.prompts, together.params) == (plain.prompts, plain.params)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_options_of_streams_that_ask_for_nothing(model: ServedModel, endpoint: str) -> None:
    names = {*ChatCompletionStreamOptionsParam.__annotations__, "continuous_usage_stats"}
    assert len(names) == 3
    for value in (False, None):
        assert isinstance(read(model, endpoint, stream=True, stream_options=dict.fromkeys(names, value)), EngineInputs)
    reply = refusal(model, endpoint, stream=True, stream_options={"include_obfuscation": True})
    assert (reply.param, reply.code) == ("stream_options.include_obfuscation", "unsupported_field")
    assert reply.message.endswith("is not supported here: events are not padded; leave it out")


def test_options_of_structured_outputs_that_ask_for_nothing(model: ServedModel) -> None:
    idle = {"disable_any_whitespace": False, "disable_additional_properties": False, "disable_fallback": False}
    empty = {"json": None, "choice": None, "grammar": None, "json_object": None, "structural_tag": None}
    given = {"regex": "a+", "whitespace_pattern": None, **idle, **empty}
    inputs = read(model, CHAT, structured_outputs=given)
    assert isinstance(inputs, EngineInputs) and inputs.params.structured == Structured(regex="a+")


@pytest.mark.parametrize(
    ("endpoint", "name", "value", "says"),
    [
        (CHAT, "use_beam_search", True, "use n and best_of, or LLM.beam_search offline"),
        (COMPLETIONS, "length_penalty", 0.8, "use n and best_of, or LLM.beam_search offline"),
        (COMPLETIONS, "early_stopping", True, "use n and best_of, or LLM.beam_search offline"),
        (CHAT, "functions", [{"name": "f"}], "use tools in /v1/chat/completions"),
        (CHAT, "function_call", {"name": "f"}, "use tool_choice in /v1/chat/completions"),
        (CHAT, "store", True, "only responses (/v1/responses) are stored; leave it out"),
        (CHAT, "audio", {"voice": "x"}, "this model writes text only; leave it out"),
        (CHAT, "prediction", {"type": "content"}, "predictions are not used here; leave it out"),
        (CHAT, "web_search_options", {}, "there is no web search; leave it out"),
        (CHAT, "documents", [{"title": "a"}], 'use chat_template_kwargs: {"documents": [...]}'),
        (CHAT, "chat_template", "{{ messages }}", "it is given when the service starts: --chat-template"),
        (CHAT, "echo", True, "use it in /v1/completions"),
        (CHAT, "logits_processors", ["a"], "use logit_bias, allowed_token_ids, bad_words or structured_outputs"),
        (CHAT, "guided_decoding_backend", "xgrammar", "llguidance compiles every form; leave it out"),
        (COMPLETIONS, "suffix", "x", "the engine only continues prompts and fills no gaps; leave it out"),
        (COMPLETIONS, "return_token_ids", True, "replies hold text; send it to /tokenize for its token ids"),
        (EMBEDDINGS, "embed_dtype", "float16", "embeddings are float32; leave it out"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_to_use_instead(
    model: ServedModel, endpoint: str, name: str, value: object, says: str
) -> None:
    reply = refusal(model, endpoint, **{name: value})
    assert (reply.param, reply.code) == (name, "unsupported_field")
    assert reply.message == f"{name} is not supported here: {says}"


@pytest.mark.parametrize(("name", "value"), [("use_beam_search", 0), ("length_penalty", True), ("frobnicate", None)])
def test_values_that_are_only_like_neutral_ones_and_unknown_names(model: ServedModel, name: str, value: object) -> None:
    refusal(model, COMPLETIONS, **{name: value})


def test_null_is_no_value_of_a_required_field(model: ServedModel) -> None:
    assert refusal(model, CHAT, messages=None).param == "messages"
    assert refusal(model, COMPLETIONS, prompt=None).param == "prompt"


def test_documents_reach_the_template_by_the_way_that_the_refusal_names(model: ServedModel) -> None:
    assert isinstance(read(model, CHAT, chat_template_kwargs={"documents": [{"title": "a"}]}), EngineInputs)


def test_what_the_offline_engine_has_reaches_it(model: ServedModel) -> None:
    for endpoint in (CHAT, COMPLETIONS):
        inputs = read(model, endpoint, bad_words=["war"], spaces_between_special_tokens=False, best_of=3, n=2)
        assert isinstance(inputs, EngineInputs)
        assert inputs.params.bad_words_token_ids and (inputs.params.n, inputs.best) == (
            3,
            Best(2, shows_logprobs=False),
        )
        assert not inputs.params.spaces_between_special_tokens


def test_structural_tags_are_one_more_form(model: ServedModel) -> None:
    tag = {"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<f"]}
    expected = Structured(structural_tag=json.dumps({"type": "structural_tag", **tag}))
    inputs = read(model, CHAT, response_format={"type": "structural_tag", **tag})
    assert isinstance(inputs, EngineInputs) and inputs.params.structured == expected
    for given in (tag, json.dumps(tag)):
        inputs = read(model, COMPLETIONS, structured_outputs={"structural_tag": given})
        assert isinstance(inputs, EngineInputs) and inputs.params.structured == Structured(
            structural_tag=json.dumps(tag)
        )
    assert refusal(model, CHAT, response_format={"type": "structural_tag", "format": {}}).param is not None


def test_objects_of_a_schema_can_be_closed(model: ServedModel) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    inputs = read(model, CHAT, structured_outputs={"json": schema, "disable_additional_properties": True})
    assert isinstance(inputs, EngineInputs) and inputs.params.structured is not None
    assert json.loads(inputs.params.structured.json_schema or "") == {**schema, "additionalProperties": False}
    reply = refusal(model, CHAT, structured_outputs={"regex": "a", "disable_additional_properties": True})
    assert reply.param == "structured_outputs.disable_additional_properties"
