"""/v1/chat/completions through the official client: the same answers as offline, in OpenAI's shapes."""

import json
from typing import Any

import openai
import pytest

from archerfish import LLM, SamplingParams

APRIL: list[Any] = [{"role": "user", "content": "What is April?"}]
STORY: list[Any] = [{"role": "user", "content": "Tell me a story about a fox."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def offline(llm: LLM, messages: list[Any], **params: Any) -> str:
    [output] = llm.chat(messages, SamplingParams(**params), progress=False)
    return output.outputs[0].text


def test_an_answer_is_the_offline_engine_s(client: openai.OpenAI, llm: LLM) -> None:
    reply = client.chat.completions.create(model="perch", messages=APRIL, temperature=0, max_tokens=40)
    [choice] = reply.choices
    assert choice.message.content == offline(llm, APRIL, temperature=0, max_tokens=40)
    assert choice.message.content.startswith("April is the fourth month")
    assert choice.finish_reason == "stop" and choice.message.role == "assistant"
    assert (
        reply.usage is not None
        and reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    )
    assert reply.object == "chat.completion" and reply.model == "perch"


def test_a_stream_adds_up_to_the_same_answer(client: openai.OpenAI, llm: LLM) -> None:
    params: dict[str, Any] = {"temperature": 0.9, "seed": 7, "max_tokens": 60}
    stream = client.chat.completions.create(
        model="perch", messages=STORY, stream=True, stream_options={"include_usage": True}, **params
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == offline(llm, STORY, **params)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens <= 60 and not chunks[-1].choices
    ends = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert ends in (["stop"], ["length"])
    assert len({chunk.id for chunk in chunks}) == 1


def test_each_chunk_has_the_counts_so_far_if_wanted(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    stream = client.chat.completions.create(
        model="perch", messages=STORY, stream=True, stream_options=options, max_tokens=6, n=2, temperature=0
    )
    *chunks, last = stream
    assert last.usage is not None and not last.choices
    counts: dict[int, list[int]] = {0: [], 1: []}
    for chunk in chunks:
        assert chunk.usage is not None and chunk.usage.prompt_tokens == last.usage.prompt_tokens
        assert chunk.usage.total_tokens == chunk.usage.prompt_tokens + chunk.usage.completion_tokens
        counts[chunk.choices[0].index].append(chunk.usage.completion_tokens)
    for told in counts.values():
        assert told == sorted(told) and told[0] == 0 and told[-1] == 6, "each answer is counted by itself"
    assert last.usage.completion_tokens == 12


def test_the_best_of_several_is_the_offline_engine_s(client: openai.OpenAI, llm: LLM) -> None:
    params: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 20}
    [expected] = llm.chat(STORY, SamplingParams(best_of=4, n=2, **params), progress=False)
    reply = client.chat.completions.create(model="perch", messages=STORY, n=2, extra_body={"best_of": 4}, **params)
    assert [choice.message.content for choice in reply.choices] == [one.text for one in expected.outputs]
    assert [choice.index for choice in reply.choices] == [0, 1]
    with pytest.raises(openai.BadRequestError, match=r"best_of = 4 .*cannot be combined with stream"):
        client.chat.completions.create(model="perch", messages=STORY, stream=True, extra_body={"best_of": 4})


def test_words_that_must_not_be_written(client: openai.OpenAI, llm: LLM) -> None:
    params: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
    plain = offline(llm, APRIL, **params)
    without = offline(llm, APRIL, bad_words=["April"], **params)
    assert "April" in plain and "April" not in without
    reply = client.chat.completions.create(model="perch", messages=APRIL, extra_body={"bad_words": ["April"]}, **params)
    assert reply.choices[0].message.content == without


def test_a_structural_tag_holds(client: openai.OpenAI, llm: LLM) -> None:
    tag = {"structures": [{"begin": "April", "schema": {"enum": [1, 2]}, "end": "!"}], "triggers": ["April"]}
    params: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
    expected = offline(llm, APRIL, structured_outputs={"structural_tag": tag}, **params)
    assert expected.startswith(("April1!", "April2!"))
    for fields in (
        {"response_format": {"type": "structural_tag", **tag}},
        {"structured_outputs": {"structural_tag": tag}},
    ):
        reply = client.chat.completions.create(model="perch", messages=APRIL, extra_body=fields, **params)
        assert reply.choices[0].message.content == expected


def test_several_answers_stops_and_penalties(client: openai.OpenAI, llm: LLM) -> None:
    params: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 30, "n": 3, "presence_penalty": 0.5}
    reply = client.chat.completions.create(model="perch", messages=STORY, stop=["."], **params)
    [expected] = llm.chat(STORY, SamplingParams(stop=(".",), **params), progress=False)
    assert [choice.message.content for choice in reply.choices] == [one.text for one in expected.outputs]
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    stream = client.chat.completions.create(model="perch", messages=STORY, stop=["."], stream=True, **params)
    texts = ["", "", ""]
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [one.text for one in expected.outputs]


def test_log_probabilities(client: openai.OpenAI, llm: LLM) -> None:
    reply = client.chat.completions.create(
        model="perch", messages=APRIL, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    )
    [expected] = llm.chat(APRIL, SamplingParams(temperature=0, max_tokens=8, logprobs=3), progress=False)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and expected.outputs[0].logprobs is not None
    for told, token, ours in zip(
        logprobs.content, expected.outputs[0].token_ids, expected.outputs[0].logprobs, strict=True
    ):
        assert told.logprob == ours[token].logprob
        assert [one.logprob for one in told.top_logprobs] == sorted(
            (one.logprob for one in ours.values()), reverse=True
        )
        assert told.top_logprobs[0].logprob == told.logprob  # Greedy: bit for bit the same number.


def test_extensions(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="perch",
        messages=APRIL,
        max_tokens=5,
        extra_body={
            "top_k": 5,
            "min_p": 0.01,
            "repetition_penalty": 1.1,
            "priority": -1,
            "cache_salt": "mine",
            "request_id": "my-request",
            "metrics": True,
            "slo": {"ttft_ms": 1000, "tpot_ms": 100},
            "ignore_eos": True,
            "speculation": {"method": "off"},
        },
    )
    metrics = reply.model_extra["metrics"]  # type: ignore[index]
    assert metrics["ttft_ms"] > 0 and metrics["tpot_ms"] > 0 and metrics["queue_ms"] >= 0
    assert metrics["num_drafts"] == metrics["num_draft_tokens"] == metrics["num_accepted_tokens"] == 0
    assert metrics["acceptance_length"] is None
    again = client.chat.completions.create(model="perch", messages=APRIL, max_tokens=5, extra_body={"cache_salt": "x"})
    assert again.usage is not None and again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"extra_body": {"frequency_penality": 1}}, "frequency_penality"),
        ({"extra_body": {"top_k": -7}}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 1000}, "n"),
        ({"stop": ["x"] * 50}, "stop"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "Hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"extra_body": {"chat_template_kwargs": {"tools": []}}}, "chat_template_kwargs.tools"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 7}}}}, None),
    ],
)
def test_what_is_wrong_is_named(client: openai.OpenAI, change: dict[str, Any], param: str | None) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "perch", "messages": APRIL, "max_tokens": 4, **change})
    error = caught.value.body
    assert isinstance(error, dict) and error["type"] == "invalid_request_error" and error["message"]
    if param is not None:
        assert str(error["param"]).startswith(param), error


def test_other_models_and_long_prompts_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-9'; this service serves 'perch'"):
        client.chat.completions.create(model="gpt-9", messages=APRIL)
    with pytest.raises(openai.BadRequestError, match=r"the prompt has \d+ tokens, but the context holds 1024") as long:
        client.chat.completions.create(model="perch", messages=[{"role": "user", "content": "fish " * 3000}])
    assert long.value.code == "context_length_exceeded"


def test_answers_in_a_given_form(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    formats: list[Any] = [
        {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}},
        {"type": "regex", "regex": "[0-9]{4}-[0-9]{2}"},
        {"type": "choice", "choice": ["red", "green"]},
    ]
    texts = [
        client.chat.completions.create(model="perch", messages=STORY, max_tokens=120, response_format=one, seed=1)
        .choices[0]
        .message.content
        for one in formats
    ]
    person = json.loads(texts[0] or "")
    assert set(person) == {"name", "age"} and 0 <= person["age"] <= 99
    assert texts[1] is not None and len(texts[1]) == 7 and texts[1][4] == "-"
    assert texts[2] in ("red", "green")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_required_call_is_made(client: openai.OpenAI, choice: Any) -> None:
    ask: list[Any] = [{"role": "user", "content": "What is the weather in Rome?"}]
    request: dict[str, Any] = {"model": "perch", "messages": ask, "tools": [WEATHER], "tool_choice": choice}
    request |= {"temperature": 0, "max_tokens": 80, "parallel_tool_calls": False}
    reply = client.chat.completions.create(**request)
    [call] = reply.choices[0].message.tool_calls or []
    end = "tool_calls" if choice == "required" else "stop"  # As OpenAI's API does it.
    assert reply.choices[0].finish_reason == end
    assert call.type == "function" and call.function.name == "get_weather" and call.id
    assert set(json.loads(call.function.arguments)) == {"city"}

    name, arguments, ends = "", "", []
    for chunk in client.chat.completions.create(**request, stream=True):
        for one in chunk.choices:
            ends.append(one.finish_reason)
            for piece in one.delta.tool_calls or []:
                assert piece.index == 0 and piece.function is not None
                name += piece.function.name or ""
                arguments += piece.function.arguments or ""
    assert (name, arguments, ends[-1]) == ("get_weather", call.function.arguments, end)

    back = [*ask, reply.choices[0].message.model_dump(exclude_none=True)]
    back.append({"role": "tool", "tool_call_id": call.id, "content": '{"sky": "clear"}'})
    final = client.chat.completions.create(model="perch", messages=back, tools=[WEATHER], max_tokens=30, temperature=0)
    message = final.choices[0].message
    assert message.content or message.tool_calls or (message.model_extra or {})["invalid_tool_calls"]
    assert "<|" not in (message.content or "")


def test_forms_in_the_words_of_vllm(client: openai.OpenAI) -> None:
    forms: list[dict[str, Any]] = [
        {"structured_outputs": {"choice": ["red", "green"]}},
        {"guided_choice": ["red", "green"]},
        {"structured_outputs": {"regex": "red|green"}},
        {"guided_regex": "red|green"},
        {"guided_grammar": 'start: "red" | "green"'},
        {"guided_json": {"enum": ["red", "green"]}},
    ]
    for form in forms:
        reply = client.chat.completions.create(model="perch", messages=APRIL, max_tokens=20, extra_body=form)
        assert str(reply.choices[0].message.content).strip('"') in ("red", "green"), form
    with pytest.raises(openai.BadRequestError, match="guided_choice already says what the answer must be"):
        both = {**forms[1], "guided_grammar": 'start: "a"'}
        client.chat.completions.create(model="perch", messages=APRIL, extra_body=both)
    with pytest.raises(openai.BadRequestError, match="did you mean structured_outputs"):
        client.chat.completions.create(model="perch", messages=APRIL, extra_body={"structured_output": {}})


def test_how_likely_the_prompt_is_is_the_offline_engine_s(client: openai.OpenAI, llm: LLM) -> None:
    params: dict[str, Any] = {"temperature": 0, "max_tokens": 1}
    reply = client.chat.completions.create(model="perch", messages=APRIL, **params, extra_body={"prompt_logprobs": 2})
    [expected] = llm.chat(APRIL, SamplingParams(prompt_logprobs=2, **params), progress=False)
    told = reply.model_extra["prompt_logprobs"]  # type: ignore[index]
    assert told[0] is None and expected.prompt_logprobs is not None and len(told) == len(expected.prompt_logprobs)
    for ours, theirs in zip(told[1:], expected.prompt_logprobs[1:], strict=True):
        assert theirs is not None
        assert {int(token): entry["rank"] for token, entry in ours.items()} == {t: e.rank for t, e in theirs.items()}
        for token, entry in theirs.items():
            assert ours[str(token)]["logprob"] == pytest.approx(entry.logprob, abs=1e-5)
            assert ours[str(token)]["decoded_token"] == entry.decoded_token


def test_a_call_in_another_case_is_the_function(client: openai.OpenAI) -> None:
    """Perch likes to write GetWeather."""
    ask: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    request: dict[str, Any] = {
        "model": "perch",
        "messages": ask,
        "tools": [WEATHER],
        "temperature": 0,
        "max_tokens": 60,
    }
    reply = client.chat.completions.create(**request)
    [call] = reply.choices[0].message.tool_calls or []
    assert call.type == "function" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] == "Paris" and reply.choices[0].finish_reason == "tool_calls"


def test_an_unknown_function_is_told_and_not_shown(client: openai.OpenAI) -> None:
    ask: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    tool = {"type": "function", "function": {"name": "find_zebra", "parameters": WEATHER["function"]["parameters"]}}  # type: ignore[index]
    request: dict[str, Any] = {"model": "perch", "messages": ask, "tools": [tool], "temperature": 0, "max_tokens": 60}
    reply = client.chat.completions.create(**request)
    message = reply.choices[0].message
    if not message.tool_calls:
        assert "<|" not in str(message.content)
    strict = {**tool, "function": {**tool["function"], "strict": True}}  # type: ignore[dict-item]
    reply = client.chat.completions.create(**{**request, "tools": [strict]})
    assert all(one.function.name == "find_zebra" for one in reply.choices[0].message.tool_calls or [])  # type: ignore[union-attr]
    assert "invalid_tool_calls" not in (reply.choices[0].message.model_extra or {})


def test_pictures_are_refused_in_words(client: openai.OpenAI) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    content: list[Any] = [{"type": "text", "text": "What is this?"}, picture]
    with pytest.raises(openai.BadRequestError, match="this model reads text only, and this part is of type image_url"):
        client.chat.completions.create(model="perch", messages=[{"role": "user", "content": content}])
