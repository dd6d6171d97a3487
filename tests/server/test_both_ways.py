"""The same request gives the same answer over HTTP, in a batch of the service, and in one without a service."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.api.thinking import thinking_perch
from tests.cli.running import archerfish
from tests.server.running import RunningService, running_service
from tests.server.test_batches import answers, connect, submit, wait_for

# One sequence at a time and nothing cached: numbers are then the same to the last bit, whoever came before.
PLAIN = ("--dtype", "float32", "--max-num-seqs", "1", "--no-enable-prefix-caching")
CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES = ENDPOINTS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"),
)
APRIL = [{"role": "user", "content": "What is April?"}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
TAGS = {
    "type": "structural_tag",
    "structures": [{"begin": "<city>", "schema": CITY, "end": "</city>"}],
    "triggers": ["<city"],
}
FORM = {"name": "a", "schema": CITY}
WEATHER = {"name": "GetWeather", "description": "The weather in a city", "parameters": CITY}
GREEDY: dict[str, Any] = {"model": "perch", "temperature": 0}
SEEDED: dict[str, Any] = {"temperature": 1.2, "seed": 7, "top_k": 20}
UNKEPT: dict[str, Any] = {"store": False, "max_output_tokens": 24, **GREEDY}

BODIES: dict[str, list[dict[str, Any]]] = {
    CHAT: [
        {"messages": APRIL, "max_completion_tokens": 12, "logprobs": True, "top_logprobs": 2, **GREEDY},
        {"messages": APRIL, "max_tokens": 12, "n": 2, "priority": 3, "cache_salt": "me", "metrics": True, **SEEDED},
        {"messages": APRIL, "response_format": {"type": "json_schema", "json_schema": FORM}, **SEEDED},
        {"messages": APRIL, "tools": [{"type": "function", "function": WEATHER}], "tool_choice": "required", **GREEDY},
        {"messages": [*APRIL, {"role": "assistant", "content": "April"}], "continue_final_message": True, **GREEDY},
        {"messages": APRIL, "max_tokens": 8, "best_of": 3, "bad_words": ["April"], "use_beam_search": False, **SEEDED},
        {"messages": APRIL, "max_tokens": 12, "response_format": TAGS, "truncate_prompt_tokens": 9, **GREEDY},
    ],
    COMPLETIONS: [
        {"prompt": "Once upon a time", "max_tokens": 8, "logprobs": 2, "stop": ["."], "user": "me", **GREEDY},
        {"prompt": ["The sea", [5, 6, 7]], "n": 2, "max_tokens": 5, **SEEDED},
        {"prompt": "Once upon a time", "max_tokens": 0, "echo": True, "logprobs": 1},
        {"prompt": "A", "response_format": {"type": "choice", "choice": ["red", "green"]}, **GREEDY},
        {"prompt": ["The sea", [5, 6, 7]], "truncate_prompt_tokens": 1, "echo": True, "max_tokens": 4, **GREEDY},
    ],
    EMBEDDINGS: [
        {"input": "The fox ran.", "model": "perch"},
        {"input": ["The fox ran.", [5, 6, 7]], "encoding_format": "base64"},
        {"input": "The fox ran.", "normalize": True, "truncate_prompt_tokens": 3, "dimensions": None},
    ],
    RESPONSES: [
        {"input": "What is April?", "instructions": "Be brief.", "metadata": {"who": "me"}, **UNKEPT},
        {"input": APRIL, "include": ["message.output_text.logprobs"], "top_logprobs": 1, **UNKEPT},
        {"input": "Hi", "text": {"format": {"type": "json_schema", **FORM}}, **UNKEPT},
        {"input": "Hi", "tools": [{"type": "function", **WEATHER}], "tool_choice": "required", **UNKEPT},
    ],
}
REFUSED: dict[str, list[dict[str, Any]]] = {
    # What the model or other fields make wrong shows when a line is answered, not when it is checked.
    CHAT: [
        {"messages": APRIL, "top_logprobs": 2},
        {"messages": APRIL, "model": "gpt-9"},
        {"messages": APRIL, "max_completion_tokens": 100_000},
    ],
    COMPLETIONS: [
        {"prompt": "A", "max_tokens": 0},
        {"prompt": [99_999]},
        {"prompt": "A", "max_tokens": 100_000},
    ],
    EMBEDDINGS: [{"input": "long " * 9000}],
    RESPONSES: [
        {"input": "A", "tool_choice": "required"},
        {"input": "A", "top_logprobs": 3},
        {"input": "A", "max_output_tokens": 100_000},
    ],
}
DIFFERENT = ("id", "call_id", "created", "created_at", "completed_at", "metrics")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(*PLAIN, "--data-dir", str(tmp_path_factory.mktemp("data"))) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: RunningService) -> openai.OpenAI:
    return connect(service)


def in_lines(endpoint: str, bodies: list[dict[str, Any]]) -> bytes:
    lines = (
        {"custom_id": str(number), "method": "POST", "url": endpoint, "body": body}
        for number, body in enumerate(bodies)
    )
    return b"\n".join(json.dumps(line).encode() for line in lines)


def told_alike(records: list[dict[str, Any]]) -> list[tuple[int, Any]]:
    return [(one["response"]["status_code"], alike(one["response"]["body"])) for one in records]


def alike(value: Any) -> Any:
    """Without ids and times, of which only that they are there must be the same."""
    if isinstance(value, dict):
        return {name: name if name in DIFFERENT and one else alike(one) for name, one in value.items()}
    return [alike(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_same_answers_and_the_same_refusals(
    service: RunningService, client: openai.OpenAI, tmp_path: Path, endpoint: str
) -> None:
    bodies = BODIES[endpoint] + REFUSED[endpoint]
    replies = [httpx.post(service.url + endpoint, json=body, timeout=60) for body in bodies]
    online = [(reply.status_code, alike(reply.json())) for reply in replies]
    good = len(BODIES[endpoint])
    assert [status for status, _ in online[:good]] == [200] * good and all(status >= 400 for status, _ in online[good:])

    batch = wait_for(client, submit(client, in_lines(endpoint, bodies), endpoint).id)
    assert batch.status == "completed", batch
    assert told_alike(answers(client, batch.output_file_id)) == online[:good]
    assert told_alike(answers(client, batch.error_file_id)) == online[good:]

    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(in_lines(endpoint, bodies))
    result = archerfish("batch", "-i", str(source), "-o", str(output), "--threads", "1", *PLAIN)
    assert f"{len(bodies) - good} of {len(bodies)} requests were refused" in result.stderr
    assert told_alike([json.loads(line) for line in output.read_text().splitlines()]) == online


@pytest.mark.parametrize(
    ("endpoint", "body", "name"),
    [
        (CHAT, {"messages": APRIL, "stream": True}, "stream"),
        (COMPLETIONS, {"prompt": "A", "stream": True}, "stream"),
        (RESPONSES, {"input": "A", "stream": True}, "stream"),
        (RESPONSES, {"input": "A", "background": True}, "background"),
        (EMBEDDINGS, {"input": "A", "dimensions": 0}, "dimensions"),
    ],
)
def test_what_a_line_cannot_have_is_an_error_of_that_line(
    client: openai.OpenAI, tmp_path: Path, endpoint: str, body: dict[str, Any], name: str
) -> None:
    content = in_lines(endpoint, [BODIES[endpoint][0], body])
    batch = wait_for(client, submit(client, content, endpoint).id)
    assert batch.status == "completed" and batch.request_counts.completed == 1
    [refused] = told_alike(answers(client, batch.error_file_id))
    status, told = refused
    assert status == 400 and told["error"]["param"] == name and told["error"]["message"].startswith(name)

    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(content)
    result = archerfish("batch", "-i", str(source), "-o", str(output), "--threads", "1", *PLAIN)
    assert "1 of 2 requests were refused" in result.stderr
    assert told_alike([json.loads(line) for line in output.read_text().splitlines()])[1] == refused


def test_a_kept_response_can_be_continued_by_a_line(client: openai.OpenAI, tmp_path: Path) -> None:
    first = client.responses.create(model="perch", input="What is April?", temperature=0, max_output_tokens=16)
    body = {"input": "And May?", "previous_response_id": first.id, "temperature": 0, "max_output_tokens": 16}
    batch = wait_for(client, submit(client, in_lines(RESPONSES, [body]), RESPONSES).id)
    [record] = answers(client, batch.output_file_id)
    online = client.responses.create(model="perch", **body)  # type: ignore[call-overload]
    assert alike(record["response"]["body"]) == alike(json.loads(online.to_json(exclude_unset=True)))

    # Without a service nothing is kept: neither found, nor promised.
    (tmp_path / "in.jsonl").write_bytes(in_lines(RESPONSES, [body, {"input": "A", "store": True}]))
    files = ("-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"))
    assert archerfish("batch", *files, "--threads", "1", "--max-num-seqs", "4").exit_code == 2
    records = [json.loads(line)["response"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [one["body"]["error"]["param"] for one in records] == ["previous_response_id", "store"]


def test_named_formats_of_reasoning_and_calls_hold_both_ways(tmp_path: Path) -> None:
    tools = {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "required"}
    bodies = [
        {"messages": APRIL, "max_tokens": 6, "temperature": 0},
        {"messages": APRIL, "temperature": 0, "thinking_token_budget": 4, **tools},
    ]
    # By its chat template, this model has other tags of reasoning and knows no tools.
    named = ("--reasoning-parser", "deepseek_r1", "--tool-call-format", "hermes", "--served-model-name", "thinker")
    options = ("--model", str(thinking_perch(tmp_path / "thinker")), *PLAIN, *named)
    with running_service(*options) as service:
        replies = [httpx.post(service.url + CHAT, json=body, timeout=60) for body in bodies]
    online = [(reply.status_code, alike(reply.json())) for reply in replies]
    [thinks], [calls] = (body["choices"] for _, body in online)
    assert thinks["message"]["reasoning"] and thinks["message"]["content"] is None
    assert calls["message"]["tool_calls"][0]["function"]["name"] == "GetWeather"

    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(in_lines(CHAT, bodies))
    result = archerfish("batch", "-i", str(source), "-o", str(output), "--threads", "1", *options)
    assert result.exit_code == 0, result.stderr
    assert told_alike([json.loads(line) for line in output.read_text().splitlines()]) == online
