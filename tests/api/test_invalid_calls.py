"""Calls that the model got wrong: never shown as text with markers, and told by a field in every endpoint."""

from pathlib import Path
from typing import Any

import pytest

from archerfish.api.bodies.chat import ChatBody
from archerfish.api.bodies.messages import MessagesBody
from archerfish.api.bodies.responses import ResponsesBody
from archerfish.api.chat import ChatCall
from archerfish.api.messages import MessagesCall
from archerfish.api.model import ServedModel, usual_tool_format
from archerfish.api.responses import ResponsesCall
from archerfish.box import models_in_box
from archerfish.engine.input_processor import InputProcessor
from archerfish.request import FinishReason
from archerfish.tokenizer import Tokenizer
from tests.api.writings import begun, grown, prompt_text

HI = {"role": "user", "content": "Hi"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "get_weather", "parameters": PARAMETERS}
CHAT_TOOLS = [{"type": "function", "function": WEATHER}]
RIGHT = '<|tool_call|>{"name": "GetWeather", "arguments": {"city": "Paris"}}'
UNKNOWN = 'I see. <|tool_call|>{"name": "FlyToMoon", "arguments": {"speed": 7}}'
TOLD = [
    {
        "name": "FlyToMoon",
        "arguments": '{"speed": 7}',
        "error": "there is no function 'FlyToMoon'; there are get_weather",
        "text": '{"name": "FlyToMoon", "arguments": {"speed": 7}}',
    }
]
BROKEN = {
    '{"name": "get_weather", "arguments": [1]}': ("get_weather", "the arguments are not a JSON object"),
    '{"name": "get_weather", "input": {}}': ("get_weather", "a call has no field 'input'; it has name and arguments"),
    '{"name": "get_weather", "argum': ("get_weather", "the call was cut off before its arguments"),
    '{"na': ("", "the call was cut off before its name"),
}
"""Calls that cannot be read; the name and the error of each."""
MALFORMED, (NAME, ERROR) = next(iter(BROKEN.items()))
CASES = [
    (RIGHT, None),
    (UNKNOWN, TOLD),
    (f"I see. <|tool_call|>{MALFORMED}", [{"name": NAME, "arguments": "", "error": ERROR, "text": MALFORMED}]),
]
"""Answers, and what is told of their invalid calls."""
SIZES = [(), (1,) * 60, (3, 1, 4, 1, 5)]
every_size = pytest.mark.parametrize("sizes", SIZES)


@pytest.fixture(scope="module")
def model() -> ServedModel:
    tokenizer = Tokenizer.load(Path(models_in_box()["perch"]))
    processor = InputProcessor(tokenizer, tokenizer.vocab_size, 1024, lambda: 0.0)
    return ServedModel(("perch",), processor, {}, usual_tool_format("llama", tokenizer))


def encode(model: ServedModel, text: str) -> list[int]:
    assert model.processor.tokenizer is not None
    return model.processor.tokenizer.encode(text, add_special_tokens=False)


def chats(
    model: ServedModel, text: str, sizes: tuple[int, ...], end: FinishReason = FinishReason.STOP, **fields: Any
) -> list[tuple[dict[str, Any], tuple[str, Any]]]:
    """The message and the reasons for its end: of the whole reply, and put together from events."""
    body = ChatBody.model_validate({"messages": [HI], "tools": CHAT_TOOLS, **fields})
    whole = ChatCall(model, body)
    writing = begun(model, whole.inputs)
    grown(writing, encode(model, text), sizes, end)
    [choice] = whole.reply([writing])["choices"]
    streamed = ChatCall(model, body.model_copy(update={"stream": True}))
    writing = begun(model, streamed.inputs)
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    reasons: tuple[str, Any] = ("", None)
    for chunk in (one for piece in grown(writing, encode(model, text), sizes, end) for one in streamed.add(0, piece)):
        delta = chunk["choices"][0]["delta"]
        assert "<|" not in str(delta) or fields.get("skip_special_tokens") is False
        message["content"] += delta.pop("content", "")
        for call in delta.pop("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if "id" in call:
                calls.append({**call, "function": dict(call["function"])})
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        message |= delta
        if chunk["choices"][0]["finish_reason"]:
            reasons = (chunk["choices"][0]["finish_reason"], chunk["choices"][0]["stop_reason"])
    return [(choice["message"], (choice["finish_reason"], choice["stop_reason"])), (message, reasons)]


@every_size
def test_a_name_in_another_case_is_the_function(model: ServedModel, sizes: tuple[int, ...]) -> None:
    for message, reasons in chats(model, RIGHT, sizes):
        [call] = message["tool_calls"]
        assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
        assert reasons == ("tool_calls", None) and not message["content"]


@every_size
def test_an_unknown_function_in_a_chat(model: ServedModel, sizes: tuple[int, ...]) -> None:
    for message, reasons in chats(model, UNKNOWN, sizes):
        assert message == {"role": "assistant", "content": "I see.", "invalid_tool_calls": TOLD}
        assert reasons == ("stop", "invalid_tool_call")


@every_size
@pytest.mark.parametrize("end", [FinishReason.STOP, FinishReason.LENGTH])
@pytest.mark.parametrize("call", BROKEN)
def test_a_malformed_call_in_a_chat(model: ServedModel, sizes: tuple[int, ...], end: FinishReason, call: str) -> None:
    for message, reasons in chats(model, f"<|tool_call|>{call}", sizes, end):
        name, error = BROKEN[call]
        told = [{"name": name, "arguments": "", "error": error, "text": call}]
        assert message == {"role": "assistant", "content": "", "invalid_tool_calls": told}
        assert reasons == (end.value, "invalid_tool_call")


@every_size
@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<|tool_call|>Oh!<|tool_result|>", "Oh!"),
        ("<|tool_call|><|tool_call|>Oh {", "Oh {"),
        ("A <|system|>b<|tool_call|>?", "A b?"),
    ],
)
def test_what_is_no_call_has_no_markers(model: ServedModel, sizes: tuple[int, ...], text: str, content: str) -> None:
    for message, reasons in chats(model, text, sizes):
        assert (message, reasons) == ({"role": "assistant", "content": content}, ("stop", None))
    for message, _ in chats(model, text, sizes, skip_special_tokens=False):
        assert message["content"] == text


def test_a_told_invalid_call_can_be_sent_back(model: ServedModel) -> None:
    said = {"role": "assistant", "content": "I see.", "invalid_tool_calls": TOLD}
    chat = ChatCall(model, ChatBody.model_validate({"messages": [HI, said, HI]}))
    prompt = prompt_text(model, chat.inputs)
    assert "I see.<|end|>" in prompt and "Moon" not in prompt


@every_size
def test_invalid_calls_in_a_response(model: ServedModel, sizes: tuple[int, ...]) -> None:
    body = ResponsesBody.model_validate({"input": "Hi", "tools": [{"type": "function", **WEATHER}]})
    for text, invalid in CASES:
        turn = ResponsesCall(model, body, is_stored=False)
        writing = begun(model, turn.inputs)
        pieces = grown(writing, encode(model, text), sizes)
        for response in (turn.reply([writing]), streamed_response(turn, pieces, writing)):
            assert response.get("invalid_tool_calls") == invalid and response["status"] == "completed"
            [item] = response["output"]
            told = item["content"][0]["text"] if invalid else item["name"]
            assert told == ("I see." if invalid else "get_weather")


def streamed_response(turn: ResponsesCall, pieces: Any, writing: Any) -> dict[str, Any]:
    events = [dict(one) for one in turn.begin([writing])]
    events += [dict(one) for piece in pieces for one in turn.add(0, piece)] + list(turn.end())
    assert not any("<|" in str(event) for event in events[2:])
    return turn.response


@every_size
def test_invalid_calls_in_a_message(model: ServedModel, sizes: tuple[int, ...]) -> None:
    tools = [{"name": "get_weather", "input_schema": PARAMETERS}]
    body = MessagesBody.model_validate({"messages": [HI], "max_tokens": 99, "tools": tools})
    for text, invalid in CASES:
        message = MessagesCall(model, body)
        writing = begun(model, message.inputs)
        pieces = grown(writing, encode(model, text), sizes)
        events = [*message.begin([writing]), *(dict(one) for piece in pieces for one in message.add(0, piece))]
        assert not any("<|" in str(event) for event in events)
        for told in (message.reply([writing]), message.message):
            [block] = told["content"]
            assert told.get("invalid_tool_calls") == invalid
            assert told["stop_reason"] == ("end_turn" if invalid else "tool_use")
            assert (block.get("text"), block.get("name")) == (("I see.", None) if invalid else (None, "get_weather"))
