"""/v1/messages through Anthropic's own client: the same answers as offline, in its shapes."""

import json
from typing import Any

import anthropic
import httpx
import pytest

from archerfish import LLM, SamplingParams
from tests.server.running import RunningService
from tests.server.test_responses import Fish, wait_idle

APRIL: list[Any] = [{"role": "user", "content": "What is April?"}]
STORY: list[Any] = [{"role": "user", "content": "Tell me a story about a fox."}]
ROME: list[Any] = [{"role": "user", "content": "What is the weather in Rome?"}]
GREEDY: dict[str, Any] = {"model": "perch", "extra_body": {"temperature": 0}}
WEATHER: Any = {
    "name": "GetWeather",
    "description": "The weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def claude(service: RunningService) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=service.url, api_key="none", max_retries=0)


def offline(llm: LLM, messages: list[Any], **params: Any) -> str:
    [output] = llm.chat(messages, SamplingParams(**params), progress=False)
    return output.outputs[0].text


def text_of(message: anthropic.types.Message) -> str:
    [block] = message.content
    assert block.type == "text"
    return block.text


def test_an_answer_is_the_offline_engine_s(claude: anthropic.Anthropic, llm: LLM) -> None:
    message = claude.messages.create(messages=APRIL, max_tokens=40, **GREEDY)
    assert text_of(message) == offline(llm, APRIL, temperature=0, max_tokens=40)
    assert message.type == "message" and message.role == "assistant" and message.model == "perch"
    assert message.id.startswith("msg_")
    assert message.stop_reason == "end_turn" and message.stop_sequence is None
    count = claude.messages.count_tokens(model="perch", messages=APRIL)
    cached = message.usage.cache_read_input_tokens
    assert cached is not None and message.usage.input_tokens + cached == count.input_tokens > 0
    anthropic.types.Message.model_validate(message.model_dump())  # The client itself checks nothing.


def test_system_blocks_and_turns(claude: anthropic.Anthropic, llm: LLM) -> None:
    turns: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "What is A?", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A letter."}]},
        *APRIL,
    ]
    system: Any = [{"type": "text", "text": "You are a teacher. "}, {"type": "text", "text": "Be brief."}]
    message = claude.messages.create(system=system, messages=turns, max_tokens=20, **GREEDY)
    expected: list[Any] = [
        {"role": "system", "content": "You are a teacher. Be brief."},
        {"role": "user", "content": "What is A?"},
        {"role": "assistant", "content": "A letter."},
        *APRIL,
    ]
    assert text_of(message) == offline(llm, expected, temperature=0, max_tokens=20)
    same = claude.messages.create(
        system="You are a teacher. Be brief.",
        messages=expected[1:],
        max_tokens=20,
        metadata={"user_id": "me"},
        **GREEDY,
    )
    assert text_of(same) == text_of(message)


def test_a_last_message_of_the_assistant_is_continued(claude: anthropic.Anthropic) -> None:
    whole = text_of(claude.messages.create(messages=APRIL, max_tokens=40, **GREEDY))
    begun: list[Any] = [*APRIL, {"role": "assistant", "content": whole[:8]}]
    message = claude.messages.create(messages=begun, max_tokens=40, **GREEDY)
    assert whole[:8] + text_of(message) == whole


def test_a_stream_adds_up_to_the_same_answer(claude: anthropic.Anthropic, llm: LLM) -> None:
    params: dict[str, Any] = {"temperature": 0.9, "top_p": 0.9, "top_k": 20, "seed": 7}
    events = list(claude.messages.create(model="perch", messages=STORY, max_tokens=50, stream=True, extra_body=params))
    for one in events:
        type(one).model_validate(one.model_dump())
    first, start, *deltas, stop, delta, last = events
    assert first.type == "message_start" and first.message.content == [] and first.message.stop_reason is None
    assert start.type == "content_block_start" and start.index == 0 and start.content_block.type == "text"
    text = ""
    for one in deltas:
        assert one.type == "content_block_delta" and one.index == 0 and one.delta.type == "text_delta"
        text += one.delta.text
    assert text == offline(llm, STORY, max_tokens=50, **params)
    assert stop.type == "content_block_stop" and stop.index == 0
    assert delta.type == "message_delta" and delta.delta.stop_reason in ("end_turn", "max_tokens")
    assert delta.usage.output_tokens <= 50 and last.type == "message_stop"
    with claude.messages.stream(model="perch", messages=APRIL, max_tokens=30, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text_of(message) == text == offline(llm, APRIL, temperature=0, max_tokens=30)
    assert message.usage.output_tokens > 1


def test_a_stream_has_pings(service: RunningService) -> None:
    body = {"messages": APRIL, "max_tokens": 4, "stream": True}
    with httpx.stream("POST", f"{service.url}/v1/messages", json=body) as reply:
        names = [line.removeprefix("event: ") for line in reply.iter_lines() if line.startswith("event: ")]
    assert names[0] == "message_start" and names[1] == "ping" and names[-1] == "message_stop"


def test_why_an_answer_ended(claude: anthropic.Anthropic) -> None:
    whole = text_of(claude.messages.create(messages=APRIL, max_tokens=40, **GREEDY))
    message = claude.messages.create(messages=APRIL, max_tokens=3, **GREEDY)
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 3
    message = claude.messages.create(messages=APRIL, max_tokens=40, stop_sequences=["fourth"], **GREEDY)
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == "fourth"
    assert text_of(message) == whole[: whole.index("fourth")]


@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "GetWeather"}])
def test_a_call_is_made_and_answered(claude: anthropic.Anthropic, choice: Any) -> None:
    required: dict[str, Any] = {"tools": [WEATHER], "tool_choice": {**choice, "disable_parallel_tool_use": True}}
    message = claude.messages.create(messages=ROME, max_tokens=80, **required, **GREEDY)
    [call] = message.content
    assert call.type == "tool_use" and call.name == "GetWeather" and "city" in call.input
    # What must be a call is held to the tool's schema; a call of its own accord is the model's own.
    assert choice["type"] == "auto" or set(call.input) == {"city"}
    assert message.stop_reason == "tool_use"

    events = list(claude.messages.create(messages=ROME, max_tokens=80, stream=True, **required, **GREEDY))
    [start] = [one for one in events if one.type == "content_block_start"]
    assert start.content_block.type == "tool_use" and start.content_block.name == "GetWeather"
    deltas = [one.delta for one in events if one.type == "content_block_delta"]
    assert json.loads("".join(one.partial_json for one in deltas if one.type == "input_json_delta")) == call.input
    [end] = [one for one in events if one.type == "message_delta"]
    assert end.delta.stop_reason == "tool_use"

    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": '{"sky": "clear"}'}
    turns: list[Any] = [*ROME, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    final = claude.messages.create(messages=turns, max_tokens=30, tools=[WEATHER], **GREEDY)
    assert final.content
    result["is_error"] = True
    told = claude.messages.count_tokens(model="perch", messages=turns, tools=[WEATHER]).input_tokens
    result["is_error"] = False
    assert told > claude.messages.count_tokens(model="perch", messages=turns, tools=[WEATHER]).input_tokens
    with pytest.raises(anthropic.BadRequestError, match="tool_result must follow"):
        claude.messages.create(messages=turns[:-1], max_tokens=30, tools=[WEATHER], **GREEDY)


def test_tools_that_may_not_be_called(claude: anthropic.Anthropic) -> None:
    none = claude.messages.create(
        messages=APRIL, max_tokens=20, tools=[WEATHER], tool_choice={"type": "none"}, **GREEDY
    )
    plain = claude.messages.create(messages=APRIL, max_tokens=20, tools=[], **GREEDY)
    assert text_of(none) == text_of(plain)
    shown = claude.messages.count_tokens(model="perch", messages=APRIL, tools=[WEATHER])
    assert shown.input_tokens > claude.messages.count_tokens(model="perch", messages=APRIL).input_tokens


def test_answers_in_a_given_form(claude: anthropic.Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    message = claude.messages.create(
        messages=STORY,
        max_tokens=120,
        output_config={"format": {"type": "json_schema", "schema": schema}},
        **GREEDY,
    )
    assert set(json.loads(text_of(message))) == {"name", "age"}
    parsed = claude.messages.parse(model="perch", messages=STORY, max_tokens=40, output_format=Fish)
    assert isinstance(parsed.parsed_output, Fish)


def test_a_stream_that_is_left_is_cancelled(claude: anthropic.Anthropic, service: RunningService) -> None:
    more = {"ignore_eos": True}
    stream = claude.messages.create(model="perch", messages=STORY, max_tokens=900, stream=True, extra_body=more)
    next(iter(stream))
    stream.close()
    wait_idle(service)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "Hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [WEATHER]}]}, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "x", "name": "x", "input": {}}]}]},
            "a tool_use block belongs in a message of the assistant",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"output_config": {"effort": "low"}}, "output_config.effort"),
        ({"extra_body": {"temperature": -1}}, "temperature"),
        ({"extra_body": {"top_q": 1}}, "top_q is not a known field"),
        ({"extra_body": {"stop": ["x"]}}, "stop"),
        ({"messages": [{"role": "user", "content": "fish " * 3000}]}, "the context holds 1024"),
    ],
)
def test_what_is_wrong_is_named(claude: anthropic.Anthropic, change: dict[str, Any], named: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(**{"model": "perch", "messages": APRIL, "max_tokens": 4, **change})
    body = caught.value.body
    assert isinstance(body, dict) and body["type"] == "error" and set(body["error"]) == {"type", "message"}
    assert body["error"]["type"] == "invalid_request_error" and named in body["error"]["message"], body


def test_errors_in_the_shape_of_this_api(claude: anthropic.Anthropic, service: RunningService) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.create(model="claude-9", messages=APRIL, max_tokens=4)
    assert isinstance(caught.value.body, dict) and caught.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.count_tokens(model="claude-9", messages=APRIL)
    reply = httpx.post(f"{service.url}/v1/messages", json={"messages": APRIL})
    assert reply.status_code == 400
    assert reply.json() == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "max_tokens: Field required"},
    }
    reply = httpx.post(f"{service.url}/v1/messages", content=b"{", headers={"Content-Type": "application/json"})
    assert reply.status_code == 400 and reply.json()["error"]["type"] == "invalid_request_error"
