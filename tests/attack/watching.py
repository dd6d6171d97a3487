"""What an attack does to other clients, and to the process that serves them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx

from tests.attack.conftest import by
from tests.attack.memory import forget_peak, peak, resident
from tests.server.running import RunningService

LONGEST_WAIT = 0.5
"""Seconds for a small request and for /health/live, on a machine that does nothing else."""
MOST_GROWTH = 200 << 20
"""Bytes of the process that serves HTTP."""
TRIES = 4
"""The best of several counts: the machine may do other things, too."""

SMALL = {"prompt": "Once", "max_tokens": 2, "temperature": 0}


@dataclass
class Watch:
    """What happened to others during an attack."""

    longest_wait: float = 0.0
    most_of_worker: int = 0
    growth: int = 0

    @property
    def is_good(self) -> bool:
        return self.longest_wait <= LONGEST_WAIT and self.growth <= MOST_GROWTH


async def watched(service: RunningService, attack: Callable[[httpx.AsyncClient], Awaitable[None]]) -> Watch:
    """Have alice attack while bob sends small requests."""
    watch, ended = Watch(), asyncio.Event()

    async def ask_again_and_again(ask: Callable[[], Awaitable[httpx.Response]]) -> None:
        while not ended.is_set():
            started = time.monotonic()
            reply = await ask()
            watch.longest_wait = max(watch.longest_wait, time.monotonic() - started)
            assert reply.status_code == 200, reply.text

    async def look_at_workers() -> None:
        while not ended.is_set():
            workers = service.children("archerfish.server.preprocessing.worker")
            watch.most_of_worker = max([watch.most_of_worker, *map(resident, workers)])
            await asyncio.sleep(0.02)

    alice = httpx.AsyncClient(base_url=service.url, headers=by("alice"), timeout=120)
    async with httpx.AsyncClient(base_url=service.url, timeout=120) as small, alice:
        before = resident(service.process.pid)
        forget_peak(service.process.pid)
        others = asyncio.gather(
            ask_again_and_again(lambda: small.post("/v1/completions", json=SMALL, headers=by("bob"))),
            ask_again_and_again(lambda: small.get("/health/live")),
            look_at_workers(),
        )
        try:
            await attack(alice)
        finally:
            ended.set()
        await others
    watch.growth = peak(service.process.pid) - before
    return watch
