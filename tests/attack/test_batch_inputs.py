"""Hostile inputs of batches: meanwhile others are served, the service does not grow, and it can be stopped."""

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from archerfish.jobs.records import BatchStatus
from archerfish.jobs.store import JobStore
from tests.attack.books import check_books_empty
from tests.attack.conftest import by
from tests.attack.watching import TRIES, Watch, watched
from tests.server.running import RunningService, running_service
from tests.server.scripted_process import COMMAND

URL = "/v1/completions"
_OPEN = ("validating", "in_progress", "finalizing", "cancelling")
_M = 1_000_000
NUM_LINES = 4

BODIES: dict[str, Callable[[], bytes]] = {
    "empty arrays": lambda: b'{"prompt":[' + b"[]," * _M + b"[]]}",
    "numbers": lambda: b'{"prompt":[' + b"5," * (7 * _M) + b"5]}",
    "text": lambda: b'{"prompt":"' + b"a " * (7 * _M) + b'"}',
    "half characters": lambda: b'{"prompt":"' + b"\\ud800 " * 9000 + b"a" * (14 * _M) + b'"}',
}


def line(custom_id: str, body: bytes) -> bytes:
    head = {"custom_id": custom_id, "method": "POST", "url": URL}
    return json.dumps(head).encode()[:-1] + b', "body": ' + body + b"}\n"


@pytest.fixture(scope="module", autouse=True)
def books(service: RunningService) -> Iterator[None]:
    yield
    check_books_empty(service, by("alice"))


def upload(client: httpx.Client, content: bytes) -> str:
    file = {"file": ("in.jsonl", content)}
    return str(client.post("/v1/files", files=file, data={"purpose": "batch"}).json()["id"])


async def run_batch(client: httpx.AsyncClient, file_id: str) -> dict[str, Any]:
    reply = await client.post("/v1/batches", json={"input_file_id": file_id, "endpoint": URL})
    assert reply.status_code == 200, reply.text
    batch: dict[str, Any] = reply.json()
    while batch["status"] in _OPEN:
        await asyncio.sleep(0.05)
        batch = (await client.get(f"/v1/batches/{batch['id']}")).json()
    return batch


async def errors_of(client: httpx.AsyncClient, batch: dict[str, Any]) -> list[dict[str, Any]]:
    text = (await client.get(f"/v1/files/{batch['error_file_id']}/content")).text
    return [json.loads(one)["response"] for one in text.splitlines()]


@pytest.mark.parametrize("name", BODIES)
def test_hostile_lines_hold_up_no_other_client(service: RunningService, name: str) -> None:
    """Each is an error of its own, as the same body is in a request."""
    body = BODIES[name]()
    with httpx.Client(base_url=service.url, headers=by("alice"), timeout=60) as client:
        file_id = upload(client, b"".join(line(str(number), body) for number in range(NUM_LINES)))
        alone = client.post(URL, content=body, headers={"Content-Type": "application/json"})

    async def attack(alice: httpx.AsyncClient) -> None:
        batch = await run_batch(alice, file_id)
        assert (batch["status"], batch["request_counts"]["failed"]) == ("completed", NUM_LINES)
        responses = await errors_of(alice, batch)
        assert [response["status_code"] for response in responses] == [400] * NUM_LINES
        if name != "half characters":  # They come in other bytes.
            assert all(response["body"] == alone.json() for response in responses)

    tries: list[Watch] = []
    for _ in range(TRIES):
        tries.append(asyncio.run(watched(service, attack)))
        if tries[-1].is_good:
            return
    raise AssertionError(tries)


def test_a_service_stops_while_it_validates_and_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    body = b'{"prompt":[' + b"[]," * (5 * _M) + b"[]]}"
    with JobStore(tmp_path) as store:
        content = (line(str(number), body) for number in range(14))
        file = store.files.upload("in.jsonl", "batch", content)
        batch_id = store.batches.create(file.file_id, URL).batch_id
    options = ("--data-dir", str(tmp_path), "--served-model-name", "scripted")
    with running_service(*options, wait=False, command=COMMAND) as service:
        time.sleep(0.2)
        started = time.monotonic()
        assert service.stop(signal.SIGTERM) == 0
        assert time.monotonic() - started < 5.0
    with JobStore(tmp_path) as store:
        assert store.batches.get(batch_id).status is BatchStatus.VALIDATING
    with running_service(*options, command=COMMAND) as service, httpx.Client(base_url=service.url) as client:
        end = time.monotonic() + 120
        while (batch := client.get(f"/v1/batches/{batch_id}").json())["status"] in _OPEN:
            assert time.monotonic() < end
            time.sleep(0.1)
        counts = {"total": 14, "completed": 0, "failed": 14}
        assert (batch["status"], batch["request_counts"]) == ("completed", counts)
