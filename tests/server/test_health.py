"""Liveness tells the truth by progress: a service with work whose steps do not end is not alive."""

import asyncio
import os
from pathlib import Path

import httpx

from tests.server.scripted import scripted_service


async def healths(client: httpx.AsyncClient) -> dict[str, int]:
    return {path: (await client.get(f"/health{path}")).status_code for path in ("/live", "/ready", "")}


def test_a_stalled_engine_is_not_alive_until_it_goes_on(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    async def run() -> None:
        async with scripted_service(gate, stall_timeout=30.0) as (service, client, clock):
            clock.ahead += 1000
            assert set((await healths(client)).values()) == {200}, "nothing to do is not a stall"
            asking = asyncio.create_task(client.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 1}))
            while not service.engine.num_open:
                await asyncio.sleep(0)
            clock.ahead += 29
            assert set((await healths(client)).values()) == {200}, "a step may take its time"
            clock.ahead += 2
            assert await healths(client) == {"/live": 503, "/ready": 503, "": 503}
            told = (await client.get("/health/live")).json()
            assert (told["live"], told["ready"], told["status"]) == (False, False, "stalled")
            assert told["seconds_without_progress"] > 30
            await asyncio.to_thread(gate.write_bytes, b"go")
            assert (await asking).status_code == 200
            assert set((await healths(client)).values()) == {200}

    asyncio.run(run())
