"""A client's id for a request is a label: whatever was asked under it before, the answer is the request's own."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.attack.conftest import by
from tests.server.running import RunningService

NUM_TRIES = 20
LONG: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}
SHORT: dict[str, Any] = {"prompt": "April is the fourth month", "max_tokens": 12, "temperature": 0}


def labelled(body: dict[str, Any], name: str, request_id: str, where: str) -> dict[str, Any]:
    if where == "body":
        return {"json": {**body, "request_id": request_id}, "headers": by(name)}
    return {"json": body, "headers": {**by(name), "X-Request-Id": request_id}}


async def hang_up(client: httpx.AsyncClient, options: dict[str, Any]) -> None:
    """Read the first tokens of a stream and close the connection."""
    async with client.stream("POST", "/v1/completions", **options) as reply:
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            if line:
                return


@pytest.mark.parametrize("where", ["body", "header"])
def test_tokens_of_a_cancelled_request_reach_nobody_else(service: RunningService, where: str) -> None:
    async def attack() -> None:
        async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
            alone = (await client.post("/v1/completions", json=SHORT, headers=by("bob"))).json()
            for number in range(NUM_TRIES):
                request_id = f"{where}-{number}"
                await hang_up(client, labelled(LONG, "alice", request_id, where))
                reply = await client.post("/v1/completions", **labelled(SHORT, "bob", request_id, where))
                assert reply.status_code == 200, reply.text
                assert reply.json()["choices"][0]["text"] == alone["choices"][0]["text"]

    asyncio.run(attack())


def test_an_open_id_is_free_to_others(service: RunningService) -> None:
    async def attack() -> None:
        async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
            options = labelled(LONG, "alice", "mine", "body")
            async with client.stream("POST", "/v1/completions", **options) as held:
                assert held.status_code == 200
                reply = await client.post("/v1/completions", **labelled(SHORT, "bob", "mine", "body"))
                assert reply.status_code == 200

    asyncio.run(attack())
