"""/v1/responses through the official client: the answers of the offline engine, every event in its place."""

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import httpx
import msgspec
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from archerfish import LLM, SamplingParams
from archerfish.server.response_store import ConversationHistory, ResponseStore, StoredResponse
from tests.server.running import RunningService, running_service

APRIL = "What is April?"
STORY = "Tell me a story about a fox."
LONG: dict[str, Any] = {"model": "perch", "input": STORY, "max_output_tokens": 900, "extra_body": {"ignore_eos": True}}
WEATHER: Any = {
    "type": "function",
    "name": "GetWeather",
    "description": "The weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def offline(llm: LLM, messages: list[Any], **params: Any) -> str:
    [output] = llm.chat(messages, SamplingParams(**params), progress=False)
    return output.outputs[0].text


def wait_idle(service: RunningService) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for line in httpx.get(f"{service.url}/metrics").text.splitlines():
            if line.startswith("archerfish:num_requests_running") and float(line.rsplit(" ", 1)[1]) == 0:
                return
        time.sleep(0.02)
    raise AssertionError("requests are still running")


def test_an_answer_is_the_offline_engine_s(client: openai.OpenAI, llm: LLM) -> None:
    reply = client.responses.create(
        model="perch", input=APRIL, temperature=0, max_output_tokens=40, metadata={"who": "me"}
    )
    expected = offline(llm, [{"role": "user", "content": APRIL}], temperature=0, max_tokens=40)
    assert reply.output_text == expected and expected.startswith("April is the fourth month")
    assert reply.status == "completed" and reply.object == "response" and reply.model == "perch"
    assert reply.id.startswith("resp_") and reply.metadata == {"who": "me"}
    [message] = reply.output
    assert message.type == "message" and message.status == "completed" and message.id.startswith("msg_")
    assert reply.usage is not None and reply.usage.output_tokens > 0
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens
    Response.model_validate(reply.model_dump())  # The client itself checks nothing.


def test_items_instructions_and_roles(client: openai.OpenAI, llm: LLM) -> None:
    turns: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "What is "}, {"type": "input_text", "text": "A?"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A letter."}]},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": APRIL},
    ]
    reply = client.responses.create(
        model="perch", input=turns, instructions="You are a teacher.", temperature=0, max_output_tokens=20
    )
    messages = [
        {"role": "system", "content": "You are a teacher."},
        {"role": "user", "content": "What is A?"},
        {"role": "assistant", "content": "A letter."},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": APRIL},
    ]
    assert reply.output_text == offline(llm, messages, temperature=0, max_tokens=20)
    assert reply.instructions == "You are a teacher."


def check_events(events: list[ResponseStreamEvent]) -> Response:
    """Every event is valid and in its place; the response at the end, which is what the events add up to."""
    for one in events:
        type(one).model_validate(one.model_dump())
    assert [one.sequence_number for one in events] == list(range(len(events)))
    first, second, *middle, last = events
    assert first.type == "response.created" and second.type == "response.in_progress"
    assert first.response.status == "in_progress" and first.response.output == []
    assert last.type in ("response.completed", "response.incomplete")
    output: list[Any] = last.response.output
    at = -1
    text = ""
    for one in middle:
        assert not isinstance(one, BaseModel) or getattr(one, "output_index", at) in (at, at + 1)
        match one.type:
            case "response.output_item.added":
                at, text = at + 1, ""
                assert one.item.id == output[at].id and getattr(one.item, "status", None) == "in_progress"
            case "response.content_part.added":
                assert one.part.type == "output_text" and one.part.text == ""
            case "response.output_text.delta" | "response.function_call_arguments.delta":
                assert one.item_id == output[at].id
                text += one.delta
            case "response.output_text.done":
                assert one.text == text
            case "response.function_call_arguments.done":
                assert one.arguments == text == output[at].arguments
            case "response.content_part.done":
                assert one.part.type == "output_text" and one.part.text == text == output[at].content[0].text
            case "response.output_item.done":
                assert one.item.model_dump() == output[at].model_dump()
            case other:
                raise AssertionError(f"unexpected {other}")
    assert at == len(output) - 1
    return last.response


def test_a_stream_adds_up_to_the_same_answer(client: openai.OpenAI, llm: LLM) -> None:
    params: dict[str, Any] = {"temperature": 0.9, "top_p": 0.8}
    events = list(
        client.responses.create(
            model="perch", input=STORY, stream=True, max_output_tokens=50, extra_body={"seed": 7}, **params
        )
    )
    response = check_events(events)
    expected = offline(llm, [{"role": "user", "content": STORY}], max_tokens=50, seed=7, **params)
    assert response.output_text == expected
    kinds = [one.type for one in events]
    assert [kind for kind in kinds if kind != "response.output_text.delta"] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed" if response.status == "completed" else "response.incomplete",
    ]
    with client.responses.stream(model="perch", input=APRIL, temperature=0, max_output_tokens=30) as stream:
        text = "".join(one.delta for one in stream if one.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text


def test_an_answer_that_is_cut_short_is_incomplete(client: openai.OpenAI) -> None:
    reply = client.responses.create(model="perch", input=STORY, max_output_tokens=3, extra_body={"ignore_eos": True})
    assert reply.status == "incomplete" and reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"
    assert reply.output[0].type == "message" and reply.output[0].status == "incomplete"
    assert reply.usage is not None and reply.usage.output_tokens == 3


def test_a_kept_conversation_is_continued(client: openai.OpenAI, llm: LLM) -> None:
    params: dict[str, Any] = {"model": "perch", "temperature": 0, "max_output_tokens": 40}
    first = client.responses.create(input=APRIL, instructions="Be brief.", **params)
    second = client.responses.create(input="And May?", previous_response_id=first.id, **params)
    messages = [
        {"role": "user", "content": APRIL},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And May?"},
    ]
    assert second.output_text == offline(llm, messages, temperature=0, max_tokens=40)  # Without the instructions.
    assert second.previous_response_id == first.id
    third = client.responses.create(input="And June?", previous_response_id=second.id, **params)
    messages += [{"role": "assistant", "content": second.output_text}, {"role": "user", "content": "And June?"}]
    assert third.output_text == offline(llm, messages, temperature=0, max_tokens=40)
    assert client.responses.retrieve(second.id).model_dump() == second.model_dump()
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    again = client.responses.create(input="And June?", previous_response_id=second.id, **params)
    assert again.output_text == third.output_text  # Its own history is not lost with an earlier response.
    assert again.usage is not None and again.usage.input_tokens_details.cached_tokens > 0


def test_what_is_not_to_be_kept_is_not(client: openai.OpenAI) -> None:
    reply = client.responses.create(model="perch", input=APRIL, max_output_tokens=4, store=False)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="there is no response"):
            call(reply.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="perch", input="And May?", previous_response_id=reply.id)
    assert caught.value.code == "previous_response_not_found" and caught.value.param == "previous_response_id"


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "name": "GetWeather"}])
def test_a_call_is_made_and_answered(client: openai.OpenAI, choice: Any) -> None:
    ask: list[Any] = [{"role": "user", "content": "What is the weather in Rome?"}]
    request: dict[str, Any] = {"model": "perch", "tools": [WEATHER], "temperature": 0, "max_output_tokens": 80}
    required: dict[str, Any] = {"tool_choice": choice, "parallel_tool_calls": False}
    reply = client.responses.create(input=ask, **request, **required)
    [call] = reply.output
    assert call.type == "function_call" and call.name == "GetWeather" and call.status == "completed"
    assert "city" in json.loads(call.arguments) and reply.status == "completed"
    # What must be a call is held to the tool's schema; a call of its own accord is the model's own.
    assert choice == "auto" or set(json.loads(call.arguments)) == {"city"}

    streamed = check_events(list(client.responses.create(input=ask, stream=True, **request, **required)))
    [same] = streamed.output
    assert same.type == "function_call" and same.arguments == call.arguments

    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": '{"sky": "clear"}'}
    continued = client.responses.create(input=[result], previous_response_id=reply.id, **request)
    sent = client.responses.create(input=[*ask, *reply.output, result], **request)
    assert continued.output_text == sent.output_text and (sent.output_text or sent.output)
    chat = client.chat.completions.create(
        model="perch",
        messages=[
            *ask,
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": call.call_id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": call.call_id, "content": '{"sky": "clear"}'},
        ],
        tools=[
            {"type": "function", "function": {name: WEATHER[name] for name in ("name", "description", "parameters")}}
        ],
        temperature=0,
        max_tokens=80,
    )
    assert (chat.choices[0].message.content or "") == sent.output_text


class Fish(BaseModel):
    colour: Literal["red", "green"]
    is_big: bool


def test_answers_in_a_given_form(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    wanted: Any = {"format": {"type": "json_schema", "name": "person", "schema": schema, "strict": True}}
    reply = client.responses.create(
        model="perch", input=STORY, text=wanted, max_output_tokens=120, extra_body={"seed": 1}
    )
    assert set(json.loads(reply.output_text)) == {"name", "age"}
    assert reply.text is not None and reply.text.format is not None and reply.text.format.type == "json_schema"
    fish = client.responses.parse(model="perch", input=STORY, text_format=Fish, max_output_tokens=40).output_parsed
    assert isinstance(fish, Fish)
    choice: Any = {"format": {"type": "choice", "choice": ["red", "green"]}}
    reply = client.responses.create(model="perch", input=STORY, text=choice, max_output_tokens=20)
    assert reply.output_text in ("red", "green")


def test_log_probabilities(client: openai.OpenAI, llm: LLM) -> None:
    request: dict[str, Any] = {"model": "perch", "input": APRIL, "temperature": 0, "max_output_tokens": 8}
    request |= {"include": ["message.output_text.logprobs"], "top_logprobs": 3}
    reply = client.responses.create(**request)
    [expected] = llm.chat(
        [{"role": "user", "content": APRIL}], SamplingParams(temperature=0, max_tokens=8, logprobs=3), progress=False
    )
    [message] = reply.output
    assert message.type == "message" and message.content[0].type == "output_text"
    told = message.content[0].logprobs
    assert told is not None and expected.outputs[0].logprobs is not None
    ours = [one[token] for token, one in zip(expected.outputs[0].token_ids, expected.outputs[0].logprobs, strict=True)]
    assert [one.logprob for one in told] == [one.logprob for one in ours]
    assert all(len(one.top_logprobs) == 3 for one in told)
    events = list(client.responses.create(stream=True, **request))
    streamed = [p.logprob for one in events if one.type == "response.output_text.delta" for p in one.logprobs]
    assert streamed == [one.logprob for one in told]


def test_in_the_background(client: openai.OpenAI, service: RunningService) -> None:
    started = client.responses.create(background=True, **LONG)
    assert started.status == "in_progress" and started.background
    with pytest.raises(openai.BadRequestError, match="still being written"):
        client.responses.create(model="perch", input="And?", previous_response_id=started.id)
    cancelled = client.responses.cancel(started.id)
    assert cancelled.status == "cancelled" and cancelled.id == started.id
    wait_idle(service)
    assert client.responses.retrieve(started.id).model_dump() == cancelled.model_dump()
    assert client.responses.cancel(started.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="it was not finished: cancelled"):
        client.responses.create(model="perch", input="And?", previous_response_id=started.id)

    started = client.responses.create(model="perch", input=APRIL, temperature=0, max_output_tokens=30, background=True)
    end = time.monotonic() + 20
    while (reply := client.responses.retrieve(started.id)).status == "in_progress" and time.monotonic() < end:
        time.sleep(0.02)
    assert reply.status == "completed" and reply.output_text.startswith("April is")
    assert client.responses.cancel(started.id).status == "completed"  # Too late.


def test_a_background_stream_can_be_left_and_followed_again(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "perch", "input": STORY, "max_output_tokens": 60}
    stream = client.responses.create(stream=True, background=True, **request)
    seen = [next(stream) for _ in range(8)]
    stream.close()
    assert seen[0].type == "response.created"
    rest = list(client.responses.retrieve(seen[0].response.id, stream=True, starting_after=7))
    response = check_events([*seen, *rest])
    assert check_events(list(client.responses.retrieve(response.id, stream=True))).output_text == response.output_text
    plain = client.responses.create(**request)
    with pytest.raises(openai.BadRequestError, match="background and stream"):
        list(client.responses.retrieve(plain.id, stream=True))


def test_a_stream_that_is_cancelled_ends(client: openai.OpenAI, service: RunningService) -> None:
    stream = client.responses.create(stream=True, **LONG)
    first = next(stream)
    assert first.type == "response.created"
    for _ in range(5):
        next(stream)
    assert client.responses.retrieve(first.response.id).status == "in_progress"
    client.responses.cancel(first.response.id)
    *_, last = stream
    assert last.type == "response.incomplete" and last.response.status == "cancelled"
    assert last.response.output[0].type == "message" and last.response.output[0].status == "incomplete"
    wait_idle(service)


def test_a_stream_that_is_left_is_cancelled(client: openai.OpenAI, service: RunningService) -> None:
    stream = client.responses.create(stream=True, **LONG)
    first = next(stream)
    assert first.type == "response.created"
    stream.close()
    wait_idle(service)
    assert client.responses.retrieve(first.response.id).status == "cancelled"


def test_one_that_runs_can_be_deleted(client: openai.OpenAI, service: RunningService) -> None:
    started = client.responses.create(background=True, **LONG)
    client.responses.delete(started.id)
    wait_idle(service)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(started.id)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": [{"role": "king", "content": "Hi"}]}, "input.0"),
        ({"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]}]}, "input.0"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input.0",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"], "tools": [WEATHER]}, "include"),
        ({"background": True, "store": False}, "store"),
        ({"extra_body": {"n": 2}}, "n"),
        ({"extra_body": {"inputs": "x"}}, "inputs"),
    ],
)
def test_what_is_wrong_is_named(client: openai.OpenAI, change: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": "perch", "input": APRIL, "max_output_tokens": 4, **change})
    assert caught.value.type == "invalid_request_error"
    assert str(caught.value.param).startswith(param), caught.value.body


def test_other_models_are_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-9'"):
        client.responses.create(model="gpt-9", input=APRIL)
    with pytest.raises(openai.BadRequestError, match=r"the prompt has \d+ tokens"):
        client.responses.create(model="perch", input="fish " * 3000)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service of its own, for Ann and Bob; its engine may be killed."""
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text('[[key]]\nname = "ann"\nkey = "ann-key"\n[[key]]\nname = "bob"\nkey = "bob-key"\n')
    with running_service("--key-file", str(file)) as running:
        yield running


def test_nobody_finds_what_another_has_asked_for(keyed: RunningService) -> None:
    ann, bob = (openai.OpenAI(base_url=f"{keyed.url}/v1", api_key=f"{name}-key") for name in ("ann", "bob"))
    reply = ann.responses.create(model="perch", input=APRIL, max_output_tokens=4)
    running = ann.responses.create(background=True, **LONG)
    for response_id in (reply.id, running.id):
        for call in (bob.responses.retrieve, bob.responses.delete, bob.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                call(response_id)
        with pytest.raises(openai.BadRequestError) as caught:
            bob.responses.create(model="perch", input="And May?", previous_response_id=response_id)
        assert caught.value.code == "previous_response_not_found"
    assert ann.responses.cancel(running.id).status == "cancelled"
    assert ann.responses.retrieve(reply.id).id == reply.id
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="eve-key").responses.retrieve(reply.id)


def test_when_the_engine_dies_responses_fail(keyed: RunningService) -> None:
    ann = openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="ann-key", max_retries=0)
    claude = anthropic.Anthropic(base_url=keyed.url, api_key="ann-key", max_retries=0)
    background = ann.responses.create(background=True, **LONG)
    stream = ann.responses.create(stream=True, **LONG)
    message = claude.messages.create(
        model="perch",
        messages=[{"role": "user", "content": STORY}],
        max_tokens=900,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for told in (stream, message):
        assert [next(iter(told)) for _ in range(4)]
    os.kill(keyed.engine, signal.SIGKILL)
    *_, last = stream
    assert last.type == "response.failed" and last.response.status == "failed"
    assert last.response.error is not None and "SIGKILL" in last.response.error.message
    assert last.response.output[0].type == "message" and last.response.output[0].status == "incomplete"
    with pytest.raises(anthropic.APIStatusError, match="SIGKILL") as caught:
        list(message)
    assert isinstance(caught.value.body, dict) and caught.value.body["error"]["type"] == "overloaded_error"
    failed = ann.responses.retrieve(background.id)
    assert failed.status == "failed" and failed.error is not None and failed.error.code == "server_error"
    with pytest.raises(openai.BadRequestError, match="it was not finished: failed"):
        ann.responses.create(model="perch", input="And?", previous_response_id=failed.id)
    keyed.wait_ready()
    assert ann.responses.create(model="perch", input=APRIL, max_output_tokens=4).output_text


def stored(text: str, before: ConversationHistory | None = None) -> StoredResponse:
    return StoredResponse(text.encode(), "completed", ConversationHistory([{"role": "user", "content": text}], before))


class FakeRun:
    def __init__(self, response_id: str) -> None:
        self.response_id = response_id
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


def keep(store: ResponseStore, tenant: str, response_id: str, one: StoredResponse) -> None:
    run: Any = FakeRun(response_id)
    store.begin(tenant, run)
    assert store.running(tenant, response_id) is run
    store.end(tenant, response_id, one)
    assert store.running(tenant, response_id) is None


def test_the_store_keeps_what_was_asked_for_last() -> None:
    store = ResponseStore(max_responses=2, max_bytes=stored("x" * 400).size)
    keep(store, "ann", "a", stored("one"))
    keep(store, "ann", "b", stored("two"))
    keep(store, "bob", "a", stored("other"))
    assert store.find("ann", "a") is not None
    keep(store, "ann", "c", stored("three"))
    assert store.find("ann", "b") is None
    assert store.find("ann", "a") is not None and store.find("ann", "c") is not None
    other = store.find("bob", "a")
    assert other is not None and other.response == b"other" and store.find("eve", "a") is None
    keep(store, "ann", "d", stored("x" * 400))
    assert store.find("ann", "a") is None and store.find("ann", "c") is None and store.find("ann", "d") is not None
    keep(store, "ann", "e", stored("x" * 2000))
    assert store.find("ann", "e") is None and store.find("ann", "d") is not None  # Too large, so nothing must go.
    assert store.delete("ann", "d") and not store.delete("ann", "d")
    keep(store, "ann", "f", stored("y" * 400))
    assert store.find("ann", "f") is not None


def test_a_history_of_many_turns() -> None:
    history: ConversationHistory | None = None
    for number in range(5000):
        history = ConversationHistory(msgspec.json.encode([str(number)]), history)
    assert history is not None
    assert [msgspec.json.decode(turn) for turn in history.turns] == [[str(number)] for number in range(5000)]


def test_forgetting_one_that_runs_cancels_it_for_good() -> None:
    store = ResponseStore()
    run: Any = FakeRun("a")
    store.begin("ann", run)
    assert not store.delete("bob", "a") and store.delete("ann", "a") and run.is_cancelled
    store.end("ann", "a", stored("one"))
    assert store.find("ann", "a") is None
