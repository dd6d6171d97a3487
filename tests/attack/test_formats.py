"""Response formats that are slow to compile: other tenants, files and ordinary requests do not wait for them."""

import asyncio
import json
from typing import Any

import httpx

from tests.attack.books import check_books_empty
from tests.attack.conftest import by
from tests.server.running import RunningService

NUM_SLOW = 24


def slow(number: int, size: int = 1200) -> dict[str, Any]:
    """With the usual size it takes most of the second that a trial may take; no number's format is another's."""
    pattern = {"type": "string", "pattern": "[a-z]{1,40}"}
    schema = {"type": "object", "properties": {f"p{number}_{i}": pattern for i in range(size)}}
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


def ask(response_format: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"prompt": "Once", "max_tokens": 2, "temperature": 0, "response_format": response_format}


def test_slow_formats_of_one_tenant_delay_nothing_else(service: RunningService) -> None:
    """What others ask for meanwhile is answered while most of the slow ones still wait."""

    async def attack() -> int:
        async with httpx.AsyncClient(base_url=service.url, timeout=300) as client:
            slow_ones = [
                asyncio.create_task(client.post("/v1/completions", json=ask(slow(i)), headers=by("alice")))
                for i in range(NUM_SLOW)
            ]
            await asyncio.wait(slow_ones, return_when=asyncio.FIRST_COMPLETED)
            for number in range(3):
                form = {"type": "regex", "regex": f"[a-z]{{{number + 2}}}"}
                upload = {"file": ("a.jsonl", b"{}"), "purpose": (None, "batch")}
                for reply in await asyncio.gather(
                    client.post("/v1/completions", json=ask(form), headers=by("bob")),
                    client.post("/v1/completions", json=ask(), headers=by("bob")),
                    client.post("/v1/files", files=upload, headers=by("bob")),
                    client.get("/v1/files", headers=by("bob")),
                    client.get("/health/live"),
                ):
                    assert reply.status_code == 200, reply.text
            num_waiting = sum(not task.done() for task in slow_ones)
            statuses = {reply.status_code for reply in await asyncio.gather(*slow_ones)}
            assert statuses <= {200, 400}, statuses
            return num_waiting

    assert asyncio.run(attack()) >= NUM_SLOW / 2
    check_books_empty(service, by("alice"))


def test_too_many_new_formats_are_refused_until_there_is_capacity(service: RunningService) -> None:
    async def attack() -> None:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=service.url, timeout=300, limits=limits) as client:
            replies = await asyncio.gather(
                *(
                    client.post("/v1/completions", json=ask(slow(1000 + i, size=400)), headers=by("alice"))
                    for i in range(48)
                )
            )
            refused = [reply for reply in replies if reply.status_code == 429]
            assert refused and len(refused) < 48
            for reply in refused:
                assert reply.json()["error"]["code"] == "too_many_formats" and reply.headers["Retry-After"]
            known = await client.post("/v1/completions", json=ask(), headers=by("alice"))
            assert known.status_code == 200

    asyncio.run(attack())
    check_books_empty(service, by("alice"))


def test_copies_of_a_format_that_is_refused_are_refused_together(service: RunningService) -> None:
    """Each alone would take all the time that a trial may have."""
    hostile = {"allOf": [{"type": "string", "pattern": f"a.*{i}"} for i in range(24)]}
    body = ask({"type": "json_schema", "json_schema": {"name": "a", "schema": hostile}})

    async def attack() -> set[str]:
        async with httpx.AsyncClient(base_url=service.url, timeout=120) as client:
            replies = await asyncio.gather(
                *(client.post("/v1/completions", json=body, headers=by("alice")) for _ in range(20))
            )
            assert {reply.status_code for reply in replies} == {400}
            return {json.dumps(reply.json()) for reply in replies}

    assert len(asyncio.run(attack())) == 1
