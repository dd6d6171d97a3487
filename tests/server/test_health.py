"""Liveness follows progress: an engine that hangs is not alive, is killed, and another takes its place."""

import asyncio
import os
import signal
from pathlib import Path

import httpx

from tests.server.scripted import ScriptedService, scripted_service

ASK = {"prompt": [1, 2, 3], "max_tokens": 1}
PATIENCE = 60.0


async def healths(client: httpx.AsyncClient) -> dict[str, int]:
    return {path: (await client.get(f"/health{path}")).status_code for path in ("/live", "/ready", "")}


async def replaced(running: ScriptedService, process_id: int) -> None:
    """Returns when another engine is ready."""
    async with asyncio.timeout(PATIENCE):
        while running.service.engine.process_id in (None, process_id):
            await asyncio.sleep(0.01)
        await running.service.engine.wait_ready()


def engine_of(running: ScriptedService) -> int:
    process_id = running.service.engine.process_id
    assert process_id is not None
    return process_id


def test_a_silent_engine_is_not_alive() -> None:
    async def run() -> None:
        async with scripted_service(stall_timeout=3600.0) as (_, client, clock):
            assert set((await healths(client)).values()) == {200}
            clock.ahead += 3601
            assert await healths(client) == {"/live": 503, "/ready": 503, "": 503}
            told = (await client.get("/health/live")).json()
            assert (told["live"], told["ready"], told["status"]) == (False, False, "stalled")
            assert told["seconds_without_progress"] > 3600
            async with asyncio.timeout(PATIENCE):  # The next heartbeat of an idle engine says that it lives.
                while (await client.get("/health/live")).status_code != 200:
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_step_that_hangs_ends_its_requests_and_the_engine(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)  # Nothing is ever written to it: the first step waits for ever.

    async def run() -> None:
        async with scripted_service(gate, stall_timeout=0.5) as running:
            hung = engine_of(running)
            reply = await running.client.post("/v1/completions", json=ASK)
            assert reply.status_code == 503 and reply.json()["error"]["code"] == "engine_failed"
            assert "no progress" in reply.json()["error"]["message"]
            await replaced(running, hung)
            assert running.service.engine.num_open == 0

    asyncio.run(run())


def test_a_stopped_engine_is_replaced_though_it_has_nothing_to_do() -> None:
    async def run() -> None:
        async with scripted_service(stall_timeout=1.0) as running:
            stopped = engine_of(running)
            os.kill(stopped, signal.SIGSTOP)
            await replaced(running, stopped)
            assert (await running.client.post("/v1/completions", json=ASK)).status_code == 200

    asyncio.run(run())


def test_an_idle_engine_stays_however_long_it_is_idle() -> None:
    async def run() -> None:
        async with scripted_service(stall_timeout=0.4) as running:
            engine, first = running.service.engine, engine_of(running)
            heard, last = 0, engine.last_progress
            async with asyncio.timeout(PATIENCE):
                while heard < 20:  # Heartbeats: five times the timeout.
                    await asyncio.sleep(0.005)
                    heard, last = heard + (engine.last_progress != last), engine.last_progress
            assert engine.process_id == first and engine.num_restarts == 0

    asyncio.run(run())
