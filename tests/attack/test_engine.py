"""An engine that hangs: its requests are told, it is replaced, and the next ones are answered."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.attack.books import check_books_empty
from tests.server.running import RunningService, running_service

LONG: dict[str, Any] = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
SHORT: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}


@pytest.fixture
def hurt() -> Iterator[RunningService]:
    with running_service("--stall-timeout", "4", "--max-num-seqs", "8") as running:
        yield running


async def until_replaced(client: httpx.AsyncClient, num_restarts: int) -> None:
    async with asyncio.timeout(60):
        while True:
            health = (await client.get("/health")).json()
            if health["engine_restarts"] == num_restarts and health["ready"]:
                return
            await asyncio.sleep(0.05)


def test_streams_of_an_engine_that_hangs_end_with_an_error_and_the_next_are_answered(hurt: RunningService) -> None:
    async def attack() -> None:
        async with httpx.AsyncClient(base_url=hurt.url, timeout=60) as client:
            expected = (await client.post("/v1/completions", json=SHORT)).json()["choices"][0]["text"]
            begun = [asyncio.Event() for _ in range(6)]

            async def follow(first: asyncio.Event) -> str:
                last = ""
                async with client.stream("POST", "/v1/completions", json=LONG) as reply:
                    async for line in reply.aiter_lines():
                        last = line or last
                        first.set()
                return last

            streams = [asyncio.create_task(follow(first)) for first in begun]
            await asyncio.gather(*(first.wait() for first in begun))
            os.kill(hurt.engine, signal.SIGSTOP)
            waiting = await client.post("/v1/completions", json=SHORT)
            assert waiting.status_code in (200, 503)
            for last in await asyncio.gather(*streams):
                assert '"error"' in last and "no progress" in last, last
            await until_replaced(client, 1)
            reply = await client.post("/v1/completions", json=SHORT)
            assert reply.json()["choices"][0]["text"] == expected
            # Once more, while there is nothing to do.
            os.kill(hurt.engine, signal.SIGSTOP)
            await until_replaced(client, 2)
            assert (await client.post("/v1/completions", json=SHORT)).json()["choices"][0]["text"] == expected

    asyncio.run(attack())
    check_books_empty(hurt, {})
    assert hurt.stop(signal.SIGTERM) == 0
