"""New forms are tried one after the other on a thread of their own; tenants take turns, and only so many wait."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from archerfish.server.errors import ApiError
from archerfish.server.trial_queue import TrialQueue


def play(story: Callable[[TrialQueue], Awaitable[None]]) -> None:
    async def run() -> None:
        queue = TrialQueue()
        try:
            await story(queue)
        finally:
            queue.close()

    asyncio.run(run())


async def held_up(queue: TrialQueue, gate: threading.Event) -> "asyncio.Task[bool]":
    """Work that keeps the thread until the gate is opened."""
    begun = threading.Event()

    def work() -> bool:
        begun.set()
        return gate.wait(30)

    task = asyncio.create_task(queue.run("first", work))
    await asyncio.to_thread(begun.wait, 30)
    return task


def test_tenants_take_turns() -> None:
    async def story(queue: TrialQueue) -> None:
        gate, order = threading.Event(), list[str]()
        first = await held_up(queue, gate)
        names = ["alice"] * 5 + ["bob"] * 2 + ["carol"]
        tasks = [asyncio.create_task(queue.run(name, lambda name=name: order.append(name))) for name in names]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, *tasks)
        assert order == ["alice", "bob", "carol", "alice", "bob", "alice", "alice", "alice"]

    play(story)


def test_one_tenant_fills_only_its_own_share_and_all_together_have_a_limit() -> None:
    async def story(queue: TrialQueue) -> None:
        gate = threading.Event()
        tasks = [await held_up(queue, gate)]
        refused = []
        for number in range(320):
            tasks.append(asyncio.create_task(queue.run(f"tenant {number // 35}", lambda: True)))
            await asyncio.sleep(0)
            if tasks[-1].done():
                refused.append(tasks.pop())
        errors = [task.exception() for task in refused]
        assert all(isinstance(error, ApiError) and error.headers for error in errors)
        statuses = [error.status_code for error in errors if isinstance(error, ApiError)]
        assert statuses == [429] * 24 + [503] * 40, "32 of each of eight tenants wait"
        unbounded = asyncio.create_task(queue.run("tenant 0", lambda: True, is_bounded=False))
        gate.set()
        assert all(await asyncio.gather(*tasks, unbounded))

    play(story)


def test_what_is_cancelled_gives_its_turn_to_the_next() -> None:
    async def story(queue: TrialQueue) -> None:
        gate = threading.Event()
        first = await held_up(queue, gate)
        waiting, last = (asyncio.create_task(queue.run(name, lambda: True)) for name in ("a", "b"))
        await asyncio.sleep(0)
        waiting.cancel()
        gate.set()
        assert await first and await last
        with pytest.raises(asyncio.CancelledError):
            await waiting
        chosen = asyncio.create_task(queue.run("a", lambda: "never"))
        await asyncio.sleep(0)
        chosen.cancel()
        assert await queue.run("b", lambda: "next") == "next"

    play(story)


def test_an_error_of_the_work_reaches_its_request_alone() -> None:
    async def story(queue: TrialQueue) -> None:
        with pytest.raises(ZeroDivisionError):
            await queue.run("a", lambda: 1 / 0)
        assert await queue.run("a", lambda: 1) == 1

    play(story)
