"""/v1/files and /v1/batches through the official client, and what survives a kill."""

import io
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from archerfish import LLM, SamplingParams
from tests.server.conftest import SETTINGS
from tests.server.running import RunningService, running_service

_OPEN = ("validating", "in_progress", "finalizing", "cancelling")


def lines(count: int, num_tokens: int = 4) -> bytes:
    return b"\n".join(
        json.dumps(
            {
                "custom_id": f"line-{number}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {"prompt": f"Number {number} is", "max_tokens": num_tokens, "temperature": 0},
            }
        ).encode()
        for number in range(count)
    )


def connect(service: RunningService) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)


def wait_for(client: openai.OpenAI, batch_id: str) -> Any:
    end = time.monotonic() + 120
    while (batch := client.batches.retrieve(batch_id)).status in _OPEN:
        assert time.monotonic() < end, batch
        time.sleep(0.05)
    return batch


def submit(client: openai.OpenAI, content: bytes, endpoint: Any = "/v1/completions") -> Any:
    file = client.files.create(file=("in.jsonl", io.BytesIO(content)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


def answers(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def test_every_line_is_answered_as_by_the_offline_engine(tmp_path: Path, llm: LLM) -> None:
    with running_service(*SETTINGS, "--data-dir", str(tmp_path)) as service:
        client = connect(service)
        bad = {"custom_id": "odd", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 4}}
        batch = wait_for(client, submit(client, lines(20) + b"\n" + json.dumps(bad).encode()).id)
        assert batch.status == "completed"
        assert (batch.request_counts.total, batch.request_counts.completed) == (21, 21)
        found = {
            one["custom_id"]: one["response"]["body"]["choices"][0]["text"]
            for one in answers(client, batch.output_file_id)
        }
        params = SamplingParams(temperature=0, max_tokens=4)
        for output in llm.generate([f"Number {number} is" for number in range(20)], params, progress=False):
            number = int(str(output.prompt).split()[1])
            assert found[f"line-{number}"] == output.outputs[0].text
        listed = client.files.list().data
        assert {file.purpose for file in listed} == {"batch", "batch_output"}
        assert client.files.delete(batch.input_file_id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(batch.input_file_id)


def test_what_is_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    with running_service(*SETTINGS, "--data-dir", str(tmp_path)) as service:
        client = connect(service)
        twice = lines(2) + b"\n" + lines(1)
        batch = wait_for(client, submit(client, twice).id)
        assert batch.status == "failed" and batch.errors is not None
        [error] = batch.errors.data
        assert error.line == 3 and "line-0" in error.message
        unknown = (
            b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "warmth": 1}}'
        )
        batch = wait_for(client, submit(client, lines(2) + b"\n" + unknown).id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 2, 1)
        [refused] = answers(client, batch.error_file_id)
        assert (refused["custom_id"], refused["response"]["status_code"], refused["error"]) == ("a", 400, None)
        assert "warmth" in refused["response"]["body"]["error"]["message"]
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve("batch_of_somebody")
        with pytest.raises(openai.BadRequestError, match="endpoint"):
            submit(client, lines(1), "/v1/nowhere")
        long = submit(client, lines(400, 200))
        assert wait_for(client, client.batches.cancel(long.id).id).status == "cancelled"


def test_killed_in_the_middle_twice_every_line_is_answered_once(tmp_path: Path) -> None:
    options = ("--max-num-seqs", "16", "--data-dir", str(tmp_path))
    batch_id = ""
    for attempt in range(3):
        with running_service(*options) as service:
            client = connect(service)
            if not attempt:
                batch_id = submit(client, lines(300, 8)).id
            if attempt < 2:
                wanted = 60 * (attempt + 1)
                end = time.monotonic() + 60
                while client.batches.retrieve(batch_id).request_counts.completed < wanted:  # type: ignore[union-attr]
                    assert time.monotonic() < end
                os.kill(service.process.pid, signal.SIGKILL)
                service.process.wait()
                continue
            batch = wait_for(client, batch_id)
            assert batch.status == "completed"
            found = [one["custom_id"] for one in answers(client, batch.output_file_id)]
            assert found == [f"line-{number}" for number in range(300)]


def test_without_a_directory_there_are_no_batches(service: RunningService) -> None:
    reply = httpx.get(f"{service.url}/v1/batches")
    assert reply.status_code == 400 and "--data-dir" in reply.json()["error"]["message"]
