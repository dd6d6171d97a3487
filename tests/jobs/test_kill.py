"""Killed at any moment and started again, a batch has each of its lines answered exactly once."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from archerfish.jobs.lines import RunnerSettings
from archerfish.jobs.records import BatchStatus, LineResult
from archerfish.jobs.runner import BatchRunner
from archerfish.jobs.store import JobStore
from tests.jobs.working import Clock, contents, echo, ids, lines, new_batch, no_wait, read, within
from tests.lanes import examples

Place = Literal["before", "inside", "after"]


class Killed(BaseException):
    """Nothing in the package may catch this, as nothing can catch a SIGKILL."""


class Life(NamedTuple):
    """One process: how many transactions it lives, where in the last one it dies, and what happens meanwhile."""

    num_transactions: int
    place: Place
    event: Literal["nothing", "cancel", "expire"]


LIVES = st.builds(
    Life,
    st.integers(1, 14),
    st.sampled_from(["before", "inside", "after"]),
    st.sampled_from(["nothing", "nothing", "nothing", "cancel", "expire"]),
)


@contextmanager
def mortal(store: JobStore, life: Life) -> Iterator[None]:
    """From its death on, a store writes nothing any more."""
    original = store._database.transaction
    left = life.num_transactions

    @contextmanager
    def transaction() -> Iterator[sqlite3.Connection]:
        nonlocal left
        left -= 1
        if left < 0 or (left == 0 and life.place == "before"):
            raise Killed
        with original() as connection:
            yield connection
            if left == 0 and life.place == "inside":
                raise Killed
        if left == 0 and life.place == "after":
            raise Killed

    store._database.transaction = transaction  # type: ignore[method-assign]
    yield


def live(
    directory: Path, clock: Clock, batch_id: str, life: Life | None, chosen: RunnerSettings, done: set[str]
) -> None:
    """One process from its start to its end. Lines that had a result before must not run again."""
    store = JobStore(directory, clock)
    requested: list[str] = []

    async def answer(endpoint: str, body: bytes, custom_id: str, tenant: str) -> LineResult:
        requested.append(custom_id)
        if life is not None and life.event == "expire" and len(requested) == 3:
            clock.now += 86400
            runner.wake()
        if life is not None and life.event == "cancel" and len(requested) == 3:
            with store._database.reading() as connection:
                connection.execute(
                    "UPDATE batches SET status = 'cancelling', cancelling_at = 1 WHERE status = 'in_progress'"
                )
            runner.wake()
        return await echo(endpoint, body, custom_id, tenant)

    async def work() -> None:
        nonlocal runner
        runner = BatchRunner(store, answer, settings=chosen, wait=no_wait)
        task = runner.start()
        end = asyncio.ensure_future(runner.finished(batch_id))
        await asyncio.wait([task, end], return_when=asyncio.FIRST_COMPLETED)
        await runner.stop()
        assert life is not None or task.exception() is None
        assert isinstance(task.exception(), Killed | None)
        end.cancel()

    runner: BatchRunner
    if life is None:
        within(work)
    else:
        with mortal(store, life):
            within(work)
    assert not done & set(requested)


@examples(40)
@given(
    count=st.integers(1, 40),
    lives=st.lists(LIVES, max_size=5),
    in_flight=st.integers(1, 8),
    group_size=st.integers(1, 8),
)
@example(
    count=20,
    lives=[Life(n, place, "nothing") for n in (2, 3) for place in ("inside", "after")],
    in_flight=4,
    group_size=2,
)  # type: ignore[arg-type]
def test_each_line_is_answered_once_whenever_it_dies(
    count: int, lives: list[Life], in_flight: int, group_size: int
) -> None:
    chosen = RunnerSettings(max_in_flight=in_flight, group_size=group_size, group_seconds=0.0, poll_seconds=3600.0)
    clock = Clock()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with JobStore(directory, clock) as store:
            batch_id = new_batch(store, lines(count)).batch_id
        for life in [*lives, None]:
            with JobStore(directory, clock) as store:
                if not store.batches.get(batch_id).status.is_open:
                    break
                done = {f"request-{number - 1}" for number in store.work.progress(batch_id).answered}
            live(directory, clock, batch_id, life, chosen, done)
        with JobStore(directory, clock) as store:
            check_end(store, batch_id, count, {life.event for life in lives})


def check_end(store: JobStore, batch_id: str, count: int, events: set[str]) -> None:
    batch = store.batches.get(batch_id)
    expected = [f"request-{number}" for number in range(count)]
    output, errors = ids(read(store, batch.output_file_id)), ids(read(store, batch.error_file_id))
    if batch.status is BatchStatus.CANCELLED and batch.in_progress_at is None:
        expected = []
    assert not batch.status.is_open
    assert sorted([*output, *errors], key=lambda name: int(name.partition("-")[2])) == expected
    assert output == [name for name in expected if name in set(output)]
    assert errors == [name for name in expected if name in set(errors)]
    assert batch.counts == (len(expected), len(output), len(errors))
    if not events & {"cancel", "expire"}:
        assert (batch.status, errors) == (BatchStatus.COMPLETED, [])
    files = [batch.input_file_id, batch.output_file_id, batch.error_file_id]
    assert contents(store.directory) == sorted(file_id for file_id in files if file_id is not None)


def run_process(directory: Path, moment: str, number: int) -> int:
    command = [sys.executable, "-m", "tests.jobs.killed", str(directory), moment, str(number)]
    return subprocess.run(command, cwd=Path(__file__).parents[2], timeout=120, check=False).returncode


def test_a_process_that_is_really_killed(tmp_path: Path) -> None:
    with JobStore(tmp_path) as store:
        batch_id = new_batch(store, lines(200)).batch_id
    so_far = 0
    for moment, number in (("answered", 80), ("recorded", 4)):
        assert run_process(tmp_path, moment, number) == -signal.SIGKILL
        with JobStore(tmp_path) as store:
            num_answered = len(store.work.progress(batch_id).answered)
            assert so_far < num_answered < 200
            assert store.batches.get(batch_id).counts.completed == num_answered
            so_far = num_answered
    # Once more where the output has its path but no row yet.
    assert run_process(tmp_path, "published", 1) == -signal.SIGKILL
    with JobStore(tmp_path) as store:
        assert store.batches.get(batch_id).status is BatchStatus.FINALIZING
        assert len(store.files.page().items) == 1
    assert run_process(tmp_path, "never", 0) == 0
    with JobStore(tmp_path) as store:
        batch = store.batches.get(batch_id)
        assert (batch.status, batch.counts) == (BatchStatus.COMPLETED, (200, 200, 0))
        assert ids(read(store, batch.output_file_id)) == [f"request-{number}" for number in range(200)]
        assert set(contents(tmp_path)) >= {batch.input_file_id, batch.output_file_id}
        assert len(list((tmp_path / "files").iterdir())) == 2
