"""One soak: first everything at once while nothing is killed and memory is watched, then with kills."""

import asyncio
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.attack.soak.batches import Batches
from tests.attack.soak.expected import Expected
from tests.attack.soak.ledger import Ledger
from tests.attack.soak.victim import Victim
from tests.attack.soak.visitors import Visitors, wait_for

NUM_VISITORS = 16
WARM_UP = 0.1
"""Share of the time after which memory is watched."""
CALM = 0.5
"""Share of the time in which nothing is killed: processes that are killed have no memory to be watched."""
LONGEST_END = 300.0
"""Seconds that starting, the last batches and stopping may take together."""
_NUM_SAMPLES = 100
_NUM_KILLS_A_MINUTE = 4
_SHORTEST_PAUSE = 2.0

OnProgress = Callable[[float, Ledger], None]


async def soak(seconds: float, expected: Expected, seed: int = 0, on_progress: OnProgress | None = None) -> Ledger:
    """Soak a service for so long; what was found. All processes have ended when it returns or raises."""
    ledger = Ledger()
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        victim = Victim(Path(directory), ledger)
        try:
            async with asyncio.timeout(seconds + LONGEST_END):
                await victim.start()
                await _play(victim, seconds, expected, seed, on_progress)
                await victim.stop()
        except TimeoutError:
            ledger.lost.append(f"it had not ended {LONGEST_END:.0f} seconds after its time")
        finally:
            victim.kill()
    return ledger


async def _play(victim: Victim, seconds: float, expected: Expected, seed: int, on_progress: OnProgress | None) -> None:
    ledger, started = victim.ledger, time.monotonic()
    visitors, batches = Visitors(victim, expected, ledger), Batches(victim, expected, ledger)

    def elapsed() -> float:
        return time.monotonic() - started

    def ended() -> bool:
        return elapsed() >= seconds

    tasks = [asyncio.create_task(visitors.visit_until(seed * 1000 + number, ended)) for number in range(NUM_VISITORS)]
    tasks += [asyncio.create_task(batches.run_until(seed * 1000 + number, ended)) for number in range(2)]
    tasks.append(asyncio.create_task(_watch_memory(victim, seconds, elapsed)))
    tasks.append(asyncio.create_task(_hurt(victim, seconds, elapsed, random.Random(seed))))
    reporting = asyncio.create_task(_report(ledger, elapsed, on_progress))
    try:
        await wait_for(tasks)
    finally:
        reporting.cancel()


async def _watch_memory(victim: Victim, seconds: float, elapsed: Callable[[], float]) -> None:
    await asyncio.sleep(WARM_UP * seconds - elapsed())
    while elapsed() < CALM * seconds:
        memory = victim.memory()
        memory["all together"] = sum(memory.values())
        for process, megabytes in memory.items():
            victim.ledger.memory.setdefault(process, []).append(megabytes)
        await asyncio.sleep((CALM - WARM_UP) * seconds / _NUM_SAMPLES)


async def _hurt(victim: Victim, seconds: float, elapsed: Callable[[], float], rng: random.Random) -> None:
    """Each kind of kill in turn, at random moments; the last early enough that something comes after it."""
    kinds = (signal.SIGKILL, None, signal.SIGSTOP, None)
    await asyncio.sleep(max(0.0, CALM * seconds - elapsed()))
    number = 0
    while elapsed() < 0.95 * seconds:
        kind = kinds[number % len(kinds)]
        number += 1
        if kind is None or not victim.may_lose_engine:
            await victim.kill_service()
        else:
            await victim.hurt_engine(kind)
        await asyncio.sleep(max(_SHORTEST_PAUSE, rng.expovariate(_NUM_KILLS_A_MINUTE / 60)))


async def _report(ledger: Ledger, elapsed: Callable[[], float], on_progress: OnProgress | None) -> None:
    while on_progress is not None:
        on_progress(elapsed(), ledger)
        await asyncio.sleep(0.5)
