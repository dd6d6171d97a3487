"""Reasoning over HTTP: a model whose tags are tokens, made to end its reasoning by a budget."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.api.thinking import DEEPSEEK, thinking_perch
from tests.cli.running import archerfish
from tests.server.running import RunningService, running_service

HI: list[Any] = [{"role": "user", "content": "What is April?"}]
BUDGET = {"thinking_token_budget": 6}
COLOURS = ["red", "green"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinking_perch(tmp_path_factory.mktemp("model") / "thinker", "{{ raise_exception('not this one') }}")


@pytest.fixture(scope="module")
def service(checkpoint: Path) -> Iterator[RunningService]:
    template = checkpoint / "deepseek.jinja"
    template.write_text(DEEPSEEK)
    options = ("--dtype", "float32", "--max-num-seqs", "4", "--served-model-name", "thinker")
    arguments = ("--chat-template", str(template), "--reasoning-parser", "deepseek_r1")
    with running_service(str(checkpoint), *options, *arguments) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: RunningService) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)


def test_a_chat_reasons_within_its_budget_and_answers_in_its_form(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "thinker", "messages": HI, "temperature": 0, "max_tokens": 60}
    request["extra_body"] = {**BUDGET, "guided_choice": COLOURS, "metrics": True}
    reply = client.chat.completions.create(**request)
    message, usage = reply.choices[0].message, reply.usage
    assert message.content in COLOURS
    reasoning = message.model_extra["reasoning"]  # type: ignore[index]
    assert reasoning and "<" not in reasoning and message.model_extra["reasoning_content"] == reasoning  # type: ignore[index]
    assert usage is not None and usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 7  # With the end tag.
    times = reply.model_extra["metrics"]  # type: ignore[index]
    assert times["visible_ttft_ms"] > times["ttft_ms"] and times["reasoning_ms"] > 0

    told = {"content": "", "reasoning": "", "reasoning_content": ""}
    request["stream_options"] = {"include_usage": True}
    for chunk in client.chat.completions.create(**request, stream=True):
        for choice in chunk.choices:
            for name in told:
                told[name] += getattr(choice.delta, name, None) or ""
        last = chunk
    assert told == {"content": message.content, "reasoning": reasoning, "reasoning_content": reasoning}
    assert last.usage is not None and last.usage.completion_tokens_details == usage.completion_tokens_details


def test_reasoning_that_is_cut_off_leaves_no_content(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="thinker", messages=HI, temperature=0, max_tokens=5)
    message = reply.choices[0].message
    assert message.content is None and message.model_extra["reasoning"]  # type: ignore[index]
    assert reply.choices[0].finish_reason == "length"


def test_a_response_has_an_item_of_reasoning(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "thinker", "input": "What is April?", "temperature": 0}
    request["extra_body"] = {**BUDGET, "structured_outputs": {"choice": COLOURS}}
    response = client.responses.create(**request)
    reasoning, message = response.output
    assert reasoning.type == "reasoning" and reasoning.content and reasoning.content[0].text
    assert message.type == "message" and response.output_text in COLOURS
    assert response.usage is not None and response.usage.output_tokens_details.reasoning_tokens == 7

    with client.responses.stream(**request) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.reasoning_text.delta" in kinds and "response.reasoning_text.done" in kinds
    assert final.output_text == response.output_text
    again = client.responses.create(
        model="thinker", input="And May?", previous_response_id=response.id, max_output_tokens=4
    )
    assert again.status == "incomplete"


def test_a_message_has_a_block_of_thinking(service: RunningService) -> None:
    client = anthropic.Anthropic(base_url=service.url, api_key="none", max_retries=0)
    request: dict[str, Any] = {"model": "thinker", "messages": HI, "max_tokens": 40}
    request["thinking"] = {"type": "enabled", "budget_tokens": 6}
    request["extra_body"] = {"guided_choice": COLOURS, "temperature": 0}
    message = client.messages.create(**request)
    thinking, text = message.content
    assert thinking.type == "thinking" and thinking.thinking
    assert text.type == "text" and text.text in COLOURS
    with client.messages.stream(**request) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text"]
    back = [*HI, {"role": "assistant", "content": [block.model_dump() for block in message.content]}, *HI]
    assert client.messages.create(**{**request, "messages": back}).content


def test_the_time_to_the_first_visible_token_is_counted(service: RunningService, client: openai.OpenAI) -> None:
    def count() -> float:
        lines = httpx.get(f"{service.url}/metrics").text.splitlines()
        [line] = [one for one in lines if one.startswith("archerfish:time_to_first_visible_token_seconds_count")]
        return float(line.split()[-1])

    before = count()
    form = {**BUDGET, "guided_choice": COLOURS}
    client.chat.completions.create(model="thinker", messages=HI, extra_body=form)
    client.chat.completions.create(model="thinker", messages=HI, max_tokens=3)  # It never comes to an answer.
    assert count() == before + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--chat-template", "{% if x %}"), "the chat template of --chat-template cannot be parsed (line 1: "),
        (("--chat-template", "missing.jinja"), "--chat-template: cannot read missing.jinja: No such file"),
        (("--reasoning-parser", "o1"), "there is no reasoning parser 'o1': choose one of think"),
    ],
)
def test_what_cannot_be_started_with_is_said_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = archerfish("serve", "--port", "0", *arguments)
    assert result.exit_code == 2
    [line] = [one for one in result.stderr.splitlines() if one.strip()]
    assert message in line


def test_offline_chats_and_batches_take_the_template(checkpoint: Path, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text(DEEPSEEK)
    body = {"messages": HI, "max_tokens": 40, "temperature": 0, **BUDGET, "guided_choice": COLOURS}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (tmp_path / "in.jsonl").write_text(json.dumps(line))
    files = ("-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"))
    common = ("--model", str(checkpoint), "--chat-template", str(template), "--threads", "1", "--max-num-seqs", "4")
    result = archerfish("batch", *files, *common)
    assert result.exit_code == 0, result.stderr
    [choice] = json.loads((tmp_path / "out.jsonl").read_text())["response"]["body"]["choices"]
    assert choice["message"]["content"] in COLOURS and choice["message"]["reasoning"]
