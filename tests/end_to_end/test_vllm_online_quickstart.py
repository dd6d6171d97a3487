"""The service started with vLLM's flags and called as in vLLM's documentation: only the names of the model differ."""

import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import httpx
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.server.running import RunningService, running_service

MODEL = "perch"
API_KEY = "token-abc123"
FLAGS = (
    *(MODEL, "--served-model-name", "small", MODEL, "--api-key", API_KEY, "--dtype", "auto"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
    *("--gpu-memory-utilization", "0.5", "--max-model-len", "512", "--max-num-seqs", "16"),
    *("--tensor-parallel-size", "1", "--pipeline-parallel-size=1", "--trust-remote-code", "--enforce-eager"),
    *("--enable-prefix-caching", "--enable-chunked-prefill", "--swap-space", "4", "--generation-config", "auto"),
    *("--disable-log-requests", "--uvicorn-log-level", "warning", "--limit-mm-per-prompt", '{"image": 0}'),
    *("--chat-template-content-format", "auto", "--no-async-scheduling", "--max-log-len", "100"),
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a given location",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "enum": ["San Francisco, CA", "Paris, France"]},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["location", "unit"],
        },
    },
}


class CarType(StrEnum):
    sedan = "sedan"
    suv = "SUV"


class CarDescription(BaseModel):
    brand: str
    car_type: CarType


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    """`vllm serve` of its documentation, under the name of this program."""
    with running_service(*FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: RunningService) -> OpenAI:
    return OpenAI(api_key=API_KEY, base_url=f"{service.url}/v1", max_retries=0)


def test_the_service_starts_with_vllms_flags_and_names_what_changes_nothing(service: RunningService) -> None:
    for flag in ("trust_remote_code", "enforce_eager", "uvicorn_log_level", "async_scheduling"):
        assert any(line.startswith(f"{flag}: ") for line in service.lines), flag
    assert httpx.get(f"{service.url}/health").status_code == 200
    assert httpx.get(f"{service.url}/v1/models").status_code == 401


def test_online_completions(client: OpenAI) -> None:
    model = client.models.list().data[0].id
    assert model == "small"
    completion = client.completions.create(model=model, prompt="San Francisco is a", max_tokens=7, temperature=0)
    assert completion.choices[0].text and completion.usage.completion_tokens == 7
    stream = client.completions.create(
        model=MODEL, prompt="San Francisco is a", max_tokens=7, temperature=0, stream=True, n=1, echo=False, logprobs=3
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == completion.choices[0].text


def test_online_chat(client: OpenAI) -> None:
    chat: dict[str, Any] = {
        "model": client.models.list().data[0].id,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "Tell me a joke."},
        ],
        "max_tokens": 12,
        "temperature": 0,
    }
    chat_response = client.chat.completions.create(**chat)
    message = chat_response.choices[0].message
    assert message.content and message.role == "assistant" and not message.tool_calls
    extra_body = {"top_k": 20, "repetition_penalty": 1.0, "chat_template_kwargs": {"enable_thinking": False}}
    stream = client.chat.completions.create(
        **chat, stream=True, stream_options={"include_usage": True}, extra_body=extra_body
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == message.content
    assert chunks[-1].usage.completion_tokens == chat_response.usage.completion_tokens


def test_online_structured_outputs(client: OpenAI) -> None:
    def ask(content: str, **options: Any) -> str:
        messages: list[Any] = [{"role": "user", "content": content}]
        completion = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=100, **options)
        return completion.choices[0].message.content or ""

    question = "Classify this sentiment: vLLM is wonderful!"
    for extra_body in (
        {"structured_outputs": {"choice": ["positive", "negative"]}},
        {"guided_choice": ["positive", "negative"]},
    ):
        assert ask(question, extra_body=extra_body) in ("positive", "negative")
    # A model this small does not end what may go on, so nothing may.
    schema = {**CarDescription.model_json_schema(), "additionalProperties": False}
    schema["properties"]["brand"]["maxLength"] = 12
    response_format = {"type": "json_schema", "json_schema": {"name": "car-description", "schema": schema}}
    text = ask("Generate a JSON with the brand and car_type of a car", response_format=response_format, seed=1)
    assert CarDescription.model_validate_json(text).car_type in CarType


@pytest.mark.parametrize("tool_choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_online_tool_calling(client: OpenAI, tool_choice: Any) -> None:
    response = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "What's the weather like in San Francisco?"}],
        tools=[WEATHER],  # type: ignore[list-item]
        tool_choice=tool_choice,
        max_tokens=120,
    )
    tool_call = response.choices[0].message.tool_calls[0].function
    arguments = json.loads(tool_call.arguments)
    assert tool_call.name == "get_weather" and arguments["unit"] in ("celsius", "fahrenheit")


def test_online_embeddings_and_responses(client: OpenAI) -> None:
    responses = client.embeddings.create(
        input=["Hello my name is", "The best thing about vLLM is that it supports many different models"],
        model=client.models.list().data[0].id,
        encoding_format="float",
    )
    assert [len(data.embedding) for data in responses.data] == [384, 384]
    response = client.responses.create(model=MODEL, input="Tell me a story.", max_output_tokens=16)
    assert response.output_text
