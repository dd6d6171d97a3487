"""Engines that fail, services that take nothing: each line is answered, but one that the engine fails with alone."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from archerfish.errors import EngineStopped, StepFailed
from archerfish.jobs.lines import NotNow, RunnerSettings
from archerfish.jobs.records import BatchStatus, LineResult, RequestCounts
from archerfish.jobs.runner import BatchRunner
from archerfish.jobs.store import JobStore
from tests.jobs.working import (
    Gate,
    again,
    echo,
    ids,
    jsonl,
    line,
    lines,
    new_batch,
    no_wait,
    read,
    run_all,
    within,
)


def chosen(**settings: Any) -> RunnerSettings:
    return RunnerSettings(**{"group_seconds": 0.0, "poll_seconds": 3600.0, **settings})


class Engine:
    """Answers lines; fails with all that it has at the time when it comes to a bad one."""

    def __init__(self, *bad: str) -> None:
        self.bad = set(bad)
        self.has: dict[str, asyncio.Future[None]] = {}
        self.num_failures = 0
        self.company: list[set[str]] = []
        """Of each failure: what was in flight."""
        self.requested: list[str] = []

    async def __call__(self, endpoint: str, body: bytes, custom_id: str, tenant: str) -> LineResult:
        self.requested.append(custom_id)
        failed = self.has[custom_id] = asyncio.get_running_loop().create_future()
        try:
            for _ in range(3):  # Others come meanwhile.
                await asyncio.sleep(0)
                if failed.done():
                    failed.result()
            if custom_id in self.bad:
                self.fail()
                failed.result()
        finally:
            self.has.pop(custom_id, None)
        return await echo(endpoint, body, custom_id, tenant)

    def fail(self) -> None:
        self.num_failures += 1
        self.company.append(set(self.has))
        for failed in self.has.values():
            if not failed.done():
                failed.set_exception(StepFailed("illegal memory access"))


# -- the engine fails with lines in flight ----------------------------------------------------------------------------


def test_lines_that_were_in_flight_come_last_and_without_others(store: JobStore) -> None:
    async def work() -> None:
        gate = Gate()
        runner = BatchRunner(store, gate, settings=chosen(max_in_flight=3), wait=no_wait)
        runner.start()
        await gate.until(3)
        for custom_id in list(gate.waiting):
            gate.fail(custom_id, StepFailed("out of memory"))
        await gate.until(2)
        assert sorted(gate.waiting) == ["request-3", "request-4"], "what was not in flight goes on"
        for custom_id in list(gate.waiting):
            gate.answer(custom_id)
        # It was none of the first half, so it would be one of the second: each by itself.
        for expected in ("request-0", "request-1", "request-2"):
            await gate.until(1)
            assert list(gate.waiting) == [expected]
            gate.answer(expected)
        done = await runner.finished(batch.batch_id)
        assert (done.status, done.counts) == (BatchStatus.COMPLETED, RequestCounts(5, 5, 0))
        await runner.stop()

    batch = new_batch(store, lines(5))
    within(work)


@pytest.mark.parametrize("bad", [[], [0], [255], [77, 78], [3, 130, 299], list(range(5))])
def test_bad_lines_fail_alone_and_all_others_are_answered(store: JobStore, bad: list[int]) -> None:
    engine = Engine(*(f"request-{number}" for number in bad))
    batch = new_batch(store, lines(300))
    run_all(store, engine, settings=chosen(max_in_flight=256))
    done = again(store, batch)
    assert (done.status, done.counts) == (BatchStatus.COMPLETED, RequestCounts(300, 300 - len(bad), len(bad)))
    errors = read(store, done.error_file_id)
    assert ids(errors) == [f"request-{number}" for number in bad]
    for error in errors:
        assert error["response"] is None and error["error"]["code"] == "engine_error"
        assert "3 times" in error["error"]["message"] and "illegal memory access" in error["error"]["message"]
        assert engine.company.count({error["custom_id"]}) >= 3, "it has failed alone as often as it may"
    # One at a time, all that were in flight the first time would have been tried.
    assert engine.num_failures <= len(bad) * (2 + 9 + 2)


def test_an_engine_that_is_killed_again_and_again_costs_no_line(store: JobStore) -> None:
    rng, engine = random.Random(7), Engine()

    async def answer(endpoint: str, body: bytes, custom_id: str, tenant: str) -> LineResult:
        if rng.random() < 0.02 and len(engine.has) > 1:
            engine.fail()
        return await engine(endpoint, body, custom_id, tenant)

    batch = new_batch(store, lines(400))
    run_all(store, answer, settings=chosen(max_in_flight=64))
    assert engine.num_failures > 5
    assert again(store, batch).counts == RequestCounts(400, 400, 0)
    assert ids(read(store, again(store, batch).output_file_id)) == [f"request-{number}" for number in range(400)]


def test_batches_leave_an_engine_that_fails_time_to_come_back(store: JobStore) -> None:
    """Three deaths in a minute end a service: lines alone must not come to that."""
    now, failures = 0.0, []

    async def wait(seconds: float) -> None:
        nonlocal now
        now += seconds
        await asyncio.sleep(0)

    async def answer(endpoint: str, body: bytes, custom_id: str, tenant: str) -> LineResult:
        if custom_id == "request-2":
            failures.append(now)
            raise StepFailed("gone")
        return await echo(endpoint, body, custom_id, tenant)

    batch = new_batch(store, lines(4))
    settings = chosen(max_failures=2, failure_window=61.0, retry_seconds=1.0)
    run_all(store, answer, settings=settings, wait=wait, clock=lambda: now)
    assert len(failures) >= 4
    assert all(third - first >= 61.0 for first, third in zip(failures, failures[2:], strict=False))
    assert again(store, batch).counts == RequestCounts(4, 3, 1)


def test_failures_alone_are_remembered_over_restarts(store: JobStore) -> None:
    async def broken(*_: Any) -> LineResult:
        raise StepFailed("gone")

    def until_failures(count: int) -> None:
        async def work() -> None:
            reported = asyncio.Event()
            seen = 0

            async def wait(_: float) -> None:
                nonlocal seen
                seen += 1
                if seen == count:
                    reported.set()
                    await asyncio.get_running_loop().create_future()

            runner = BatchRunner(store, broken, settings=chosen(max_attempts=3), wait=wait)
            task = runner.start()
            await reported.wait()
            await runner.stop()
            task.result()

        within(work)

    batch = new_batch(store, lines(1))
    until_failures(1)
    assert store.work.progress(batch.batch_id).attempts == {1: 0}, "it was with others, as far as is known"
    until_failures(1)
    assert store.work.progress(batch.batch_id).attempts == {1: 1}
    until_failures(1)
    assert store.work.progress(batch.batch_id).attempts == {1: 2}
    run_all(store, broken, settings=chosen(max_attempts=3))
    assert again(store, batch).counts == RequestCounts(1, 0, 1)


def test_suspects_of_an_earlier_life_come_last(store: JobStore) -> None:
    async def first_life() -> None:
        gate = Gate()
        runner = BatchRunner(store, gate, settings=chosen(max_in_flight=2), wait=no_wait)
        runner.start()
        await gate.until(2)
        for custom_id in list(gate.waiting):
            gate.fail(custom_id, StepFailed("gone"))
        await gate.until(2)  # Two others, which are in flight when the process is killed.
        await runner.stop()

    batch = new_batch(store, lines(6))
    within(first_life)
    assert store.work.progress(batch.batch_id).attempts == {1: 0, 2: 0}, "a process that was killed makes no suspects"
    engine = Engine()
    run_all(store, engine, settings=chosen(max_in_flight=1))
    assert engine.requested == [f"request-{number}" for number in (2, 3, 4, 5, 0, 1)]
    assert again(store, batch).counts == RequestCounts(6, 6, 0)


def test_a_service_that_ends_with_its_engine_makes_no_suspects(store: JobStore) -> None:
    async def work() -> None:
        gate = Gate()
        runner = BatchRunner(store, gate, settings=chosen(), wait=no_wait)
        runner.start()
        await gate.until(3)
        stopping = asyncio.ensure_future(runner.stop(grace_seconds=30.0))
        await asyncio.sleep(0)
        for custom_id in list(gate.waiting):
            gate.fail(custom_id, EngineStopped("the service is stopping"))
        await stopping

    batch = new_batch(store, lines(3))
    within(work)
    progress = store.work.progress(batch.batch_id)
    assert (progress.answered, progress.attempts) == (set(), {})
    assert again(store, batch).status is BatchStatus.IN_PROGRESS


# -- the service takes no lines ---------------------------------------------------------------------------------------


class Refusing:
    """Takes a line when `takes` says so."""

    def __init__(self, takes: Callable[[int, int], bool], seconds: float | None = None) -> None:
        self.num_requested = 0
        self.open = 0
        self.most_open = 0
        self._takes = takes
        self._seconds = seconds

    async def __call__(self, endpoint: str, body: bytes, custom_id: str, tenant: str) -> LineResult:
        self.num_requested += 1
        if not self._takes(self.num_requested, self.open):
            raise NotNow("queue_full", self._seconds)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        return await echo(endpoint, body, custom_id, tenant)


def test_lines_that_were_not_taken_come_again_however_often(store: JobStore) -> None:
    busy = Refusing(lambda number, _: number % 50 == 0)
    batch = new_batch(store, lines(20))
    run_all(store, busy, settings=chosen(max_in_flight=16, max_attempts=1))
    done = again(store, batch)
    assert (done.status, done.counts) == (BatchStatus.COMPLETED, RequestCounts(20, 20, 0))
    assert ids(read(store, done.output_file_id)) == [f"request-{number}" for number in range(20)]
    assert busy.num_requested == 20 * 50
    assert store.work.progress(batch.batch_id).attempts == {}


def test_a_full_service_gets_one_line_at_a_time(store: JobStore) -> None:
    full = Refusing(lambda _, num_open: num_open < 4)
    batch = new_batch(store, lines(200))
    run_all(store, full, settings=chosen(max_in_flight=64))
    assert again(store, batch).counts == RequestCounts(200, 200, 0)
    assert full.most_open == 4
    assert full.num_requested < 200 + 64 + 200 / 2, "most lines come when there is a place for them"


def test_lines_come_again_when_the_service_says(store: JobStore) -> None:
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    batch = new_batch(store, lines(2))
    settings = chosen(max_in_flight=1, retry_seconds=3.0, max_retry_seconds=60.0)
    run_all(store, Refusing(lambda number, _: number in (2, 4), 12.0), settings=settings, wait=wait)
    assert waits == [12.0, 12.0]
    new_batch(store, lines(1))
    run_all(store, Refusing(lambda number, _: number > 2), settings=settings, wait=wait)
    new_batch(store, lines(1))
    run_all(store, Refusing(lambda number, _: number > 1, 4000.0), settings=settings, wait=wait)
    assert waits[2:] == [3.0, 3.0, 60.0]
    assert again(store, batch).counts == RequestCounts(2, 2, 0)


def test_a_group_that_is_not_taken_is_tried_later(store: JobStore) -> None:
    rng, engine = random.Random(3), Engine("request-9")

    async def answer(endpoint: str, body: bytes, custom_id: str, tenant: str) -> LineResult:
        if rng.random() < 0.5:
            raise NotNow("not_ready")
        return await engine(endpoint, body, custom_id, tenant)

    batch = new_batch(store, lines(40))
    run_all(store, answer, settings=chosen(max_in_flight=16))
    assert again(store, batch).counts == RequestCounts(40, 39, 1)
    assert ids(read(store, again(store, batch).error_file_id)) == ["request-9"]
    assert engine.company.count({"request-9"}) >= 3


def test_why_lines_wait_is_logged_once(store: JobStore, caplog: pytest.LogCaptureFixture) -> None:
    new_batch(store, lines(5))
    with caplog.at_level("INFO", "archerfish"):
        run_all(store, Refusing(lambda number, _: number % 7 == 0))
    assert len([entry for entry in caplog.records if "queue_full" in entry.getMessage()]) == 1


# -- several tenants --------------------------------------------------------------------------------------------------


def test_a_tenant_whose_lines_must_wait_holds_up_no_other(store: JobStore) -> None:
    async def work() -> None:
        async def answer(endpoint: str, body: bytes, custom_id: str, tenant: str) -> LineResult:
            if tenant == "slow":
                raise NotNow("rate_limit_exceeded", 60.0)
            return await echo(endpoint, body, custom_id, tenant)

        async def wait(_: float) -> None:
            await asyncio.get_running_loop().create_future()

        runner = BatchRunner(store, answer, settings=chosen(max_in_flight=4), wait=wait)
        runner.start()
        for batch in fast:
            assert (await runner.finished(batch.batch_id, tenant="fast")).counts == RequestCounts(10, 10, 0)
        await runner.stop()

    slow = new_batch(store, lines(10), tenant="slow")
    fast = [new_batch(store, lines(10), tenant="fast") for _ in range(2)]
    within(work)
    assert again(store, slow).counts == RequestCounts(10, 0, 0)
    assert again(store, slow).status is BatchStatus.IN_PROGRESS


def test_a_trial_runs_without_lines_of_other_tenants(store: JobStore) -> None:
    engine, both = Engine("bad-5"), asyncio.Event()

    async def answer(endpoint: str, body: bytes, custom_id: str, tenant: str) -> LineResult:
        if tenant == "bad":
            await both.wait()
        elif not engine.num_failures:
            both.set()
            failed = engine.has[custom_id] = asyncio.get_running_loop().create_future()
            try:
                await failed
            finally:
                del engine.has[custom_id]
        return await engine(endpoint, body, custom_id, tenant)

    batches = [
        new_batch(store, jsonl(*(line(f"{name}-{number}") for number in range(20))), tenant=name)
        for name in ("bad", "good")
    ]
    run_all(store, answer, settings=chosen(max_in_flight=64))
    assert [again(store, batch).counts for batch in batches] == [RequestCounts(20, 19, 1), RequestCounts(20, 20, 0)]
    first, *others = engine.company
    assert {name.partition("-")[0] for name in first} == {"bad", "good"}
    assert others
    for company in others:
        assert {name.partition("-")[0] for name in company} == {"bad"}
