"""Batches under attack: refused, starved, limited and killed at any moment, each line is answered exactly once."""

import asyncio
import io
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from archerfish.server.batches import new_runner
from tests.attack.conftest import by
from tests.attack.failing_engine import BAD_TOKEN
from tests.server.running import RunningService, running_service
from tests.server.scripted import ScriptedService, scripted_service
from tests.server.scripted_process import COMMAND

URL = "/v1/completions"
_OPEN = ("validating", "in_progress", "finalizing", "cancelling")


def line(custom_id: str, **changes: Any) -> dict[str, Any]:
    body = {"prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": True}
    return {"custom_id": custom_id, "method": "POST", "url": URL, "body": {**body, **changes}}


def jsonl(*records: dict[str, Any]) -> bytes:
    return b"\n".join(json.dumps(record).encode() for record in records)


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 120))


async def submit(client: httpx.AsyncClient, *records: dict[str, Any]) -> str:
    file = {"file": ("in.jsonl", jsonl(*records))}
    uploaded = (await client.post("/v1/files", files=file, data={"purpose": "batch"})).json()
    reply = await client.post("/v1/batches", json={"input_file_id": uploaded["id"], "endpoint": URL})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


async def batch_now(client: httpx.AsyncClient, batch_id: str) -> dict[str, Any]:
    batch: dict[str, Any] = (await client.get(f"/v1/batches/{batch_id}")).json()
    return batch


async def end_of(client: httpx.AsyncClient, batch_id: str) -> dict[str, Any]:
    while (batch := await batch_now(client, batch_id))["status"] in _OPEN:
        await asyncio.sleep(0.01)
    return batch


async def records_of(client: httpx.AsyncClient, file_id: str | None) -> dict[str, Any]:
    """The responses of an output or error file, by custom_id; each is there once."""
    if file_id is None:
        return {}
    text = (await client.get(f"/v1/files/{file_id}/content")).text
    records = [json.loads(one) for one in text.splitlines()]
    assert len({record["custom_id"] for record in records}) == len(records)
    assert all(record["error"] is None for record in records)
    return {record["custom_id"]: record["response"] for record in records}


# -- bodies -----------------------------------------------------------------------------------------------------------


def test_a_bad_body_is_an_error_of_its_line_alone(tmp_path: Path) -> None:
    bad: dict[str, Any] = {
        "unknown field": {"prompt": [5], "warmth": 1},
        "streamed": {"prompt": [5], "stream": True},
        "no prompt": {},
        "list": [1, 2],
        "null": None,
        "lone surrogate": {"prompt": "\ud800"},
        "huge number": {"prompt": [5], "max_tokens": 10**4000},
        "other model": {"prompt": [5], "model": "gpt-4o"},
        "too long": {"prompt": [5] * 5000},
        "priority": {"prompt": [5], "priority": 2**64},
    }

    async def story() -> None:
        async with scripted_service(data_dir=str(tmp_path)) as (_, client, _):
            good = [line(f"good {number}") for number in range(5)]
            odd = [{**line(name), "body": body} for name, body in bad.items()]
            batch = await end_of(client, await submit(client, *odd[:5], *good, *odd[5:]))
            counts = {"total": 15, "completed": 5, "failed": 10}
            assert (batch["status"], batch["errors"], batch["request_counts"]) == ("completed", None, counts)
            assert set(await records_of(client, batch["output_file_id"])) == {one["custom_id"] for one in good}
            errors = await records_of(client, batch["error_file_id"])
            statuses = {name: response["status_code"] for name, response in errors.items()}
            assert statuses == {**dict.fromkeys(bad, 400), "other model": 404}
            for response in errors.values():
                assert response["body"]["error"]["type"] and response["body"]["error"]["message"]

    play(story)


@pytest.mark.parametrize(
    "wrong",
    [
        b"{",
        jsonl(line("good 0")),
        jsonl({**line("a"), "url": "/v1/embeddings"}),
        jsonl({name: value for name, value in line("a").items() if name != "method"}),
    ],
)
def test_a_line_that_is_no_request_fails_the_batch(tmp_path: Path, wrong: bytes) -> None:
    async def story() -> None:
        async with scripted_service(data_dir=str(tmp_path)) as (_, client, _):
            file = {"file": ("in.jsonl", jsonl(line("good 0")) + b"\n" + wrong)}
            uploaded = (await client.post("/v1/files", files=file, data={"purpose": "batch"})).json()
            reply = await client.post("/v1/batches", json={"input_file_id": uploaded["id"], "endpoint": URL})
            batch = await end_of(client, reply.json()["id"])
            assert (batch["status"], batch["request_counts"]["completed"]) == ("failed", 0)
            assert [error["line"] for error in batch["errors"]["data"]] == [2]

    play(story)


# -- a service that takes no lines ------------------------------------------------------------------------------------


async def use_wait(running: ScriptedService) -> list[float]:
    """Have the service's batches move its clock instead of waiting; the seconds that they would have waited.

    They are not started.
    """
    service, _, clock = running
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)
        clock.ahead += seconds
        await asyncio.sleep(0.001)

    assert service.jobs is not None and service.runner is not None
    await service.runner.stop()
    service.runner = new_runner(service.jobs, service, wait)
    return waited


def test_lines_wait_until_the_model_is_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with scripted_service(data_dir=str(tmp_path)) as (service, client, _):
            model, service._model = service._model, None
            service._ready.clear()
            batch_id = await submit(client, *(line(str(number)) for number in range(300)))
            assert service.runner is not None
            while not service.runner._active:
                await asyncio.sleep(0)
            refused = await client.post(URL, json=line("x")["body"])
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "not_ready"
            assert (await batch_now(client, batch_id))["request_counts"]["failed"] == 0
            service._model = model
            service._ready.set()
            batch = await end_of(client, batch_id)
            assert batch["request_counts"] == {"total": 300, "completed": 300, "failed": 0}

    play(story)


def test_lines_wait_while_the_queue_is_full(tmp_path: Path) -> None:
    async def story() -> None:
        async with scripted_service(data_dir=str(tmp_path), max_queued_requests=6) as running:
            service, client, _ = running
            waited, most = await use_wait(running), 0
            service.runner.start()
            enter = service._admission.enter

            def note(*arguments: Any, **shares: Any) -> bool:
                nonlocal most
                entered = enter(*arguments, **shares)
                most = max(most, service._admission.num_sequences)
                return entered

            service._admission.enter = note  # type: ignore[method-assign]
            batch = await end_of(client, await submit(client, *(line(str(number)) for number in range(100))))
            assert batch["request_counts"] == {"total": 100, "completed": 100, "failed": 0}
            assert waited, "they were turned away"
            assert most <= 3, "half of the queue is for those who wait for their answers"

    play(story)


def test_lines_keep_to_rates_of_their_own(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(
        '[[key]]\nname = "alice"\nkey = "alice-secret"\nrequests_per_minute = 5\n'
        '[[key]]\nname = "bob"\nkey = "bob-secret"\nrequests_per_minute = 5\nbatch_requests_per_minute = 60\n'
        '[[key]]\nname = "carol"\nkey = "carol-secret"\ntokens_per_minute = 60\n'
    )
    keys.chmod(0o600)

    async def story() -> None:
        async with scripted_service(data_dir=str(tmp_path / "jobs"), key_file=str(keys)) as running:
            service, client, clock = running
            waited = await use_wait(running)
            started: dict[str, list[float]] = {"alice": [], "bob": [], "carol": []}
            request_started = service.metrics.request_started

            def note(request: Any) -> None:
                started[request.tenant].append(clock.ahead)
                request_started(request)

            service.metrics.request_started = note  # type: ignore[method-assign]
            batch_ids = {}
            for name in started:
                client.headers.update(by(name))
                batch_ids[name] = await submit(client, *(line(str(number)) for number in range(20)))
            assert service.runner is not None
            service.runner.start()
            for name, batch_id in batch_ids.items():
                client.headers.update(by(name))
                batch = await end_of(client, batch_id)
                assert batch["request_counts"] == {"total": 20, "completed": 20, "failed": 0}, name
            # So many at once, then evenly; real time passes as well, which is little.
            for name, a_minute, burst in (("alice", 5, 5), ("bob", 60, 60), ("carol", 10, 10)):
                times = started[name]
                for number, at in enumerate(times[burst:]):
                    assert at - times[0] >= (number + 1) * 60 / a_minute - 15, (name, times)
            assert waited and max(waited) <= 60
            # What batches used is not missing online, and the other way round.
            client.headers.update(by("alice"))
            statuses = [(await client.post(URL, json=line("x")["body"])).status_code for _ in range(6)]
            assert statuses == [200] * 5 + [429]

    play(story)


# -- engines that fail ------------------------------------------------------------------------------------------------


def test_a_step_that_fails_is_not_the_end_of_all_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHERFISH_TEST_FAILED", str(tmp_path / "failed"))  # Its process has it, too.

    async def story() -> None:
        builder = "tests.attack.failing_engine:build_failing_once"
        async with scripted_service(builder=builder, data_dir=str(tmp_path / "jobs")) as (service, client, _):
            batch = await end_of(client, await submit(client, *(line(str(number)) for number in range(40))))
            assert batch["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
            assert set(await records_of(client, batch["output_file_id"])) == {str(number) for number in range(40)}
            assert service.engine.num_restarts == 1 and (tmp_path / "failed").exists()

    play(story)


def test_a_line_that_the_engine_fails_with_costs_no_other_line_and_not_the_service(tmp_path: Path) -> None:
    async def story() -> None:
        builder = "tests.attack.failing_engine:build_failing_with"
        async with scripted_service(builder=builder, data_dir=str(tmp_path), stall_timeout=1e6) as running:
            service, client, _ = running
            await use_wait(running)
            assert service.runner is not None
            service.runner.start()
            good = [line(str(number)) for number in range(30)]
            bad = line("bad", prompt=[5, BAD_TOKEN])
            batch = await end_of(client, await submit(client, *good[:11], bad, *good[11:]))
            assert batch["request_counts"] == {"total": 31, "completed": 30, "failed": 1}
            text = (await client.get(f"/v1/files/{batch['error_file_id']}/content")).text
            error = json.loads(text)
            assert (error["custom_id"], error["response"], error["error"]["code"]) == ("bad", None, "engine_error")
            assert "3 times" in error["error"]["message"] and "illegal memory access" in error["error"]["message"]
            assert service.engine.num_restarts <= 1 + 5 + 3
            await service.wait_ready()  # It would raise if the engine had died too often in a minute.

    play(story)


# -- processes that are killed ----------------------------------------------------------------------------------------


class Killing:
    """A batch in a directory, and the services that are killed over it."""

    def __init__(self, directory: Path, num_lines: int) -> None:
        self.options = ("--data-dir", str(directory), "--served-model-name", "scripted")
        self.num_lines = num_lines
        self.batch_id = ""

    def service(self, stack: ExitStack) -> RunningService:
        service = stack.enter_context(running_service(*self.options, wait=False, command=COMMAND))
        if not self.batch_id:
            client = self.client(service)
            content = jsonl(*(line(str(number)) for number in range(self.num_lines)))
            file = client.files.create(file=("in.jsonl", io.BytesIO(content)), purpose="batch")
            self.batch_id = client.batches.create(
                input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
            ).id
        return service

    def client(self, service: RunningService) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)

    def num_completed(self, service: RunningService) -> int:
        counts = self.client(service).batches.retrieve(self.batch_id).request_counts
        assert counts is not None and counts.failed == 0
        return counts.completed

    def wait_for(self, service: RunningService, num_completed: int) -> None:
        end = time.monotonic() + 90
        while self.num_completed(service) < num_completed:
            assert time.monotonic() < end and service.process.poll() is None, "".join(service.lines)
            time.sleep(0.01)

    def check_end(self, service: RunningService) -> None:
        self.wait_for(service, self.num_lines)
        client = self.client(service)
        end = time.monotonic() + 30
        while (batch := client.batches.retrieve(self.batch_id)).status in _OPEN:
            assert time.monotonic() < end
        assert (batch.status, batch.error_file_id) == ("completed", None)
        assert batch.output_file_id is not None
        records = [json.loads(one) for one in client.files.content(batch.output_file_id).text.splitlines()]
        assert [record["custom_id"] for record in records] == [str(number) for number in range(self.num_lines)]
        assert all(len(record["response"]["body"]["choices"]) == 1 for record in records)
        assert len({record["id"] for record in records}) == self.num_lines


def kill(service: RunningService, *processes: int) -> None:
    for process in processes:
        os.kill(process, signal.SIGKILL)
    if service.process.pid in processes:
        service.process.wait()


def engines(service: RunningService) -> list[int]:
    try:
        return service.children("archerfish.engine.process")
    except (FileNotFoundError, ProcessLookupError):
        return []


@pytest.mark.full
def test_a_storm_of_kills_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Of the service, of its engine, of both at once; while it loads and while it answers."""
    rng = random.Random(11)
    storm = Killing(tmp_path, 2000)
    with ExitStack() as stack:
        service = storm.service(stack)
        answered = 0
        for how in ("service", "loading", "both", "engine", "loading", "service", "engine", "both", "loading", "both"):
            if how == "loading":
                time.sleep(rng.random())
            else:
                answered = max(answered, storm.num_completed(service)) + rng.randrange(1, 100)
                storm.wait_for(service, min(answered, storm.num_lines - 1))
            targets = engines(service) if how in ("engine", "both") else []
            if how != "engine":
                targets.append(service.process.pid)
            rng.shuffle(targets)
            kill(service, *targets)
            if how != "engine":
                service = storm.service(stack)
        storm.check_end(service)
        drafts = list((tmp_path / "drafts").iterdir())
        assert drafts == [] and len(list((tmp_path / "files").iterdir())) == 2


def test_of_two_services_on_one_directory_one_runs_batches_and_the_other_takes_over(tmp_path: Path) -> None:
    pair = Killing(tmp_path, 1500)
    with ExitStack() as stack:
        first = pair.service(stack)
        # Both load at the same time; the second finds the first at work.
        second = pair.service(stack)
        second.wait_for_line("another process runs the batches")
        pair.wait_for(first, 100)
        threading.Thread(target=second.wait_ready).start()
        assert pair.num_completed(second) >= 100, "it tells of what the first does"
        assert pair.client(second).batches.list().data[0].id == pair.batch_id
        kill(first, first.process.pid, *engines(first))
        pair.check_end(second)
