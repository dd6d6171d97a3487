"""Reasoning in the replies of every endpoint, at once and in events: told apart, counted and timed."""

from pathlib import Path
from typing import Any

import pytest

from archerfish.api.bodies.chat import ChatBody
from archerfish.api.bodies.messages import MessagesBody
from archerfish.api.bodies.responses import ResponsesBody
from archerfish.api.chat import ChatCall
from archerfish.api.messages import MessagesCall
from archerfish.api.model import ServedModel
from archerfish.api.reasoning import FORMATS
from archerfish.api.responses import ResponsesCall
from archerfish.errors import InvalidParameter
from archerfish.request import FinishReason
from tests.api.thinking import DEEPSEEK, EFFORT, thinking_model
from tests.api.writings import begun, grown, prompt_text

HI = {"role": "user", "content": "Hi"}
TEXT = "<think>\nTwo and two.\n</think>\n\nFour."
SIZES = [(), (1,) * 40, (2, 3, 1, 4)]


@pytest.fixture(scope="module", params=[False, True], ids=["plain tags", "special tags"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return thinking_model(tmp_path_factory.mktemp("think"), special=request.param)


def encode(model: ServedModel, text: str) -> list[int]:
    tokenizer = model.processor.tokenizer
    assert tokenizer is not None
    return tokenizer.encode(text, add_special_tokens=False)


def chat(model: ServedModel, **fields: Any) -> ChatCall:
    return ChatCall(model, ChatBody.model_validate({"messages": [HI], "metrics": True, **fields}))


def joined_deltas(chunks: list[dict[str, Any]]) -> dict[str, str]:
    told: dict[str, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            for name, text in choice["delta"].items():
                told[name] = told.get(name, "") + text
    return told


@pytest.mark.parametrize("sizes", SIZES)
def test_a_chat(model: ServedModel, sizes: tuple[int, ...]) -> None:
    token_ids = encode(model, TEXT)
    num_reasoning = len(encode(model, "<think>\nTwo and two.\n</think>"))
    whole = chat(model)
    writing = begun(model, whole.inputs)
    grown(writing, token_ids, sizes)
    reply = whole.reply([writing])
    [choice] = reply["choices"]
    words = {"reasoning": "Two and two.", "reasoning_content": "Two and two."}
    assert choice["message"] == {"role": "assistant", "content": "Four.", **words}
    assert choice["finish_reason"] == "stop"
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": num_reasoning}
    assert reply["usage"]["completion_tokens"] == len(token_ids) + 1

    streamed = chat(model, stream=True, stream_options={"include_usage": True})
    writing = begun(model, streamed.inputs)
    pieces = grown(writing, token_ids, sizes)
    chunks = [*streamed.begin([writing]), *(one for piece in pieces for one in streamed.add(0, piece)), *streamed.end()]
    assert joined_deltas(chunks) == choice["message"]
    assert chunks[-1]["usage"] == reply["usage"] and chunks[-1]["metrics"] == reply["metrics"]


def test_the_first_visible_token_has_its_time(model: ServedModel) -> None:
    token_ids = encode(model, TEXT)
    num_reasoning = len(encode(model, "<think>\nTwo and two.\n</think>"))
    one = chat(model)
    writing = begun(model, one.inputs)
    grown(writing, token_ids, (1,) * 40)
    times = one.reply([writing])["metrics"]
    assert times["ttft_ms"] == 1000.0  # A token a second.
    assert times["visible_ttft_ms"] == 1000.0 * (num_reasoning + 1)
    assert times["reasoning_ms"] == 1000.0 * num_reasoning


def test_without_reasoning_the_first_token_is_visible(model: ServedModel) -> None:
    one = chat(model)
    writing = begun(model, one.inputs)
    grown(writing, encode(model, "Four."), (1,) * 9)
    reply = one.reply([writing])
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": "Four."}
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert reply["metrics"]["visible_ttft_ms"] == reply["metrics"]["ttft_ms"]


def test_an_answer_that_ends_while_it_reasons(model: ServedModel) -> None:
    token_ids = encode(model, "<think>Two and")
    one = chat(model)
    writing = begun(model, one.inputs)
    grown(writing, token_ids, reason=FinishReason.LENGTH)
    reply = one.reply([writing])
    message = reply["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == (None, "Two and")
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": len(token_ids)}
    assert reply["metrics"]["visible_ttft_ms"] is None


def test_reasoning_that_is_not_to_be_told_is_counted(model: ServedModel) -> None:
    one = chat(model, include_reasoning=False, stream=True)
    writing = begun(model, one.inputs)
    chunks = [chunk for piece in grown(writing, encode(model, TEXT)) for chunk in one.add(0, piece)]
    assert joined_deltas(chunks) == {"content": "Four."}
    whole = chat(model, include_reasoning=False)
    reply = whole.reply([writing])
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": "Four."}
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


def test_without_a_parser_tags_are_words(model: ServedModel) -> None:
    plain = ServedModel(("perch",), model.processor, {})
    one = chat(plain, skip_special_tokens=False)
    writing = begun(plain, one.inputs)
    grown(writing, encode(plain, TEXT))
    reply = one.reply([writing])
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": TEXT}
    assert "completion_tokens_details" not in reply["usage"]


def test_a_template_that_opens_the_reasoning(tmp_path: Path) -> None:
    model = thinking_model(tmp_path, DEEPSEEK)
    one = chat(model)
    writing = begun(model, one.inputs)
    grown(writing, encode(model, "Two.</think>Four."))
    message = one.reply([writing])["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("Four.", "Two.")


def test_an_untagged_beginning_is_reasoning_where_the_format_says_so(model: ServedModel) -> None:
    untagged = ServedModel(("perch",), model.processor, {}, None, FORMATS["deepseek_r1"])
    for text in ("Two.</think>Four.", "<think>Two.</think>Four."):
        one = chat(untagged)
        writing = begun(untagged, one.inputs)
        grown(writing, encode(untagged, text))
        message = one.reply([writing])["choices"][0]["message"]
        assert (message["content"], message["reasoning"]) == ("Four.", "Two.")


def test_reasoning_can_be_switched_off(model: ServedModel) -> None:
    one = chat(model, chat_template_kwargs={"enable_thinking": False})
    assert prompt_text(model, one.inputs).endswith("<think>\n\n</think>\n\n")
    assert chat(model, reasoning_effort="none").inputs.prompts == one.inputs.prompts
    writing = begun(model, one.inputs)
    grown(writing, encode(model, "Four."))
    reply = one.reply([writing])
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": "Four."}
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_the_effort_reaches_a_template_that_knows_it(tmp_path: Path) -> None:
    model = thinking_model(tmp_path / "effort", EFFORT)
    assert "<|system|>low<|end|>" in prompt_text(model, chat(model, reasoning_effort="low").inputs)
    fixed = thinking_model(tmp_path / "fixed", DEEPSEEK)
    for effort in ("none", "high"):
        with pytest.raises(InvalidParameter, match=r"reasoning_effort = .*no setting for the reasoning effort"):
            chat(fixed, reasoning_effort=effort)


def test_a_continued_answer_goes_on_where_it_was(model: ServedModel) -> None:
    fields: dict[str, Any] = {"continue_final_message": True}
    begin = [HI, {"role": "assistant", "content": "<think>Two and"}]
    one = chat(model, messages=begin, **fields)
    writing = begun(model, one.inputs)
    grown(writing, encode(model, " two.</think>Four."))
    message = one.reply([writing])["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("Four.", "two.")
    begin = [HI, {"role": "assistant", "content": "<think>Two.</think>Four"}]
    one = chat(model, messages=begin, **fields)
    writing = begun(model, one.inputs)
    grown(writing, encode(model, " it is."))
    assert one.reply([writing])["choices"][0]["message"] == {"role": "assistant", "content": " it is."}


def test_told_reasoning_can_be_sent_back(model: ServedModel) -> None:
    said = {"role": "assistant", "content": "Four.", "reasoning": "Two.", "reasoning_content": "Two."}
    prompt = prompt_text(model, chat(model, messages=[HI, said, HI]).inputs)
    assert "<think>Two.</think>Four." in prompt


@pytest.mark.parametrize("sizes", SIZES)
def test_a_response(model: ServedModel, sizes: tuple[int, ...]) -> None:
    turn = ResponsesCall(model, ResponsesBody.model_validate({"input": "Hi"}), is_stored=False)
    token_ids = encode(model, TEXT)
    writing = begun(model, turn.inputs)
    pieces = grown(writing, token_ids, sizes)
    assert [one["type"] for one in turn.begin([writing])] == ["response.created", "response.in_progress"]
    events = [dict(one) for piece in pieces for one in turn.add(0, piece)]
    events += list(turn.end())
    response = turn.response
    reasoning, message = response["output"]
    assert reasoning["type"] == "reasoning" and reasoning["summary"] == [] and reasoning["status"] == "completed"
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Two and two."}]
    assert message["content"][0]["text"] == "Four."
    num_reasoning = len(encode(model, "<think>\nTwo and two.\n</think>"))
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": num_reasoning}
    kinds = [one["type"].removeprefix("response.") for one in events]
    order = ["output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"]
    order += ["content_part.done", "output_item.done", "output_item.added", "content_part.added", "output_text.delta"]
    order += ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [kind for number, kind in enumerate(kinds) if not number or kinds[number - 1] != kind] == order
    deltas = "".join(one["delta"] for one in events if one["type"] == "response.reasoning_text.delta")
    assert deltas == "Two and two."
    # And back again.
    again = ResponsesBody.model_validate({"input": [*response["output"], {"role": "user", "content": "Hi"}]})
    assert again.messages[0] == {"role": "assistant", "content": "Four.", "reasoning_content": "Two and two."}


def test_reasoning_alone_is_a_turn_of_the_assistant() -> None:
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}], "summary": []}
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    body = ResponsesBody.model_validate({"input": [thought, {"role": "user", "content": "Hi"}, thought, call]})
    alone = {"role": "assistant", "content": "", "reasoning_content": "Hm."}
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert body.messages == [alone, HI, {**alone, "tool_calls": calls}]


def message(model: ServedModel, **fields: Any) -> MessagesCall:
    return MessagesCall(model, MessagesBody.model_validate({"messages": [HI], "max_tokens": 99, **fields}))


@pytest.mark.parametrize("sizes", SIZES)
def test_a_message(model: ServedModel, sizes: tuple[int, ...]) -> None:
    one = message(model, thinking={"type": "enabled", "budget_tokens": 50})
    writing = begun(model, one.inputs)
    pieces = grown(writing, encode(model, TEXT), sizes)
    thinking = {"type": "thinking", "thinking": "Two and two.", "signature": ""}
    text = {"type": "text", "text": "Four.", "citations": None}
    assert one.reply([writing])["content"] == [thinking, text]
    assert not list(one.begin([writing]))
    events = [dict(event) for piece in pieces for event in one.add(0, piece)]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == "Two and two."
    assert "".join(delta.get("text", "") for delta in deltas) == "Four."
    back = message(model, messages=[HI, {"role": "assistant", "content": [thinking, text]}, HI])
    assert "<think>Two and two.</think>Four." in prompt_text(model, back.inputs)


def test_a_message_without_thinking(model: ServedModel) -> None:
    prompt = prompt_text(model, message(model, thinking={"type": "disabled"}).inputs)
    assert prompt.endswith("<think>\n\n</think>\n\n")
    assert not prompt_text(model, message(model, thinking={"type": "adaptive"}).inputs).endswith("</think>\n\n")


def test_a_budget_is_kept_to_or_refused(model: ServedModel) -> None:
    assert message(model, thinking={"type": "enabled", "budget_tokens": 50}).inputs.params.structured is not None
    with pytest.raises(InvalidParameter, match=r"thinking.budget_tokens = 99 .* less than max_tokens = 99"):
        message(model, thinking={"type": "enabled", "budget_tokens": 99})
    plain = ServedModel(("perch",), model.processor, {})
    with pytest.raises(InvalidParameter, match=r"thinking.budget_tokens = 5 .*shows no reasoning"):
        message(plain, thinking={"type": "enabled", "budget_tokens": 5})
    with pytest.raises(InvalidParameter, match=r"thinking_token_budget = 5 .*shows no reasoning"):
        chat(plain, thinking_token_budget=5)
