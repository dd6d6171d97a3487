"""A clock that is set back or forward: times of a batch stay in their order, and what has ended has ended."""

import pytest

from archerfish.jobs.records import Batch, BatchStatus, LineResult
from archerfish.jobs.store import JobStore
from tests.jobs.working import Clock, again, echo, lines, new_batch, read, run_all, upload

HOUR, DAY = 3600, 86_400


def moments(batch: Batch) -> list[int]:
    """In the order in which they came."""
    ends = (batch.completed_at, batch.failed_at, batch.expired_at, batch.cancelled_at)
    found = (batch.created_at, batch.in_progress_at, batch.cancelling_at, batch.finalizing_at, *ends)
    return [moment for moment in found if moment is not None]


@pytest.mark.parametrize("jump", [-HOUR, -DAY, HOUR])
@pytest.mark.parametrize("at", [0, 3, 9])
def test_a_jump_while_lines_are_answered_loses_none(store: JobStore, clock: Clock, jump: int, at: int) -> None:
    seen = 0

    async def answer(endpoint: str, body: bytes, custom_id: str, tenant: str) -> LineResult:
        nonlocal seen
        if seen == at:
            clock.now += jump
        seen += 1
        return await echo(endpoint, body, custom_id, tenant)

    batch = new_batch(store, lines(10))
    run_all(store, answer)
    done = again(store, batch)
    assert (done.status, done.counts.completed, seen) == (BatchStatus.COMPLETED, 10, 10)
    assert moments(done) == sorted(moments(done)) and done.expires_at == done.created_at + DAY


def test_a_clock_that_is_set_back_ends_no_window_early(store: JobStore, clock: Clock) -> None:
    batch = new_batch(store, lines(2), window="1h")
    clock.now -= HOUR
    run_all(store, echo)
    assert again(store, batch).status is BatchStatus.COMPLETED


def test_a_day_forward_ends_windows_once_and_for_all(store: JobStore, clock: Clock) -> None:
    batch, long = new_batch(store, lines(2)), new_batch(store, lines(2), window="720h")
    clock.now += DAY
    run_all(store, echo)
    expired = again(store, batch)
    assert (expired.status, again(store, long).status) == (BatchStatus.EXPIRED, BatchStatus.COMPLETED)
    assert len(read(store, expired.error_file_id)) == 2
    clock.now -= DAY
    run_all(store, echo)
    assert again(store, batch) == expired, "it is not taken up again"


def test_lists_keep_their_order(store: JobStore, clock: Clock) -> None:
    made = []
    for jump in (0, -HOUR, DAY, -2 * DAY):
        clock.now += jump
        made.append(new_batch(store, lines(1)))
    assert [batch.batch_id for batch in store.batches.page().items] == [batch.batch_id for batch in made[::-1]]
    listed = [file.file_id for file in store.files.page(order="asc").items]
    assert listed == [batch.input_file_id for batch in made]


def test_a_batch_cancelled_by_a_clock_that_was_set_back(store: JobStore, clock: Clock) -> None:
    batch = new_batch(store, lines(1))
    clock.now -= HOUR
    store.batches.cancel(batch.batch_id)
    run_all(store, echo)
    done = again(store, batch)
    assert done.status is BatchStatus.CANCELLED and moments(done) == sorted(moments(done))


def test_uploads_survive_a_jump(store: JobStore, clock: Clock) -> None:
    with store.files.begin_upload() as going_on:
        clock.now += DAY
        with JobStore(store.directory, clock):  # It sweeps.
            going_on.write(b"x")
            assert going_on.finish("a", "batch").created_at == int(clock.now)
    assert upload(store, b"y")
