"""Batches as clients see them: creating, reading, listing, cancelling; and never another tenant's."""

import pytest

from archerfish.api.endpoints import ENDPOINTS
from archerfish.errors import InvalidParameter, NotFound, WrongState
from archerfish.jobs.batches import window_seconds
from archerfish.jobs.records import BatchStatus
from archerfish.jobs.store import JobStore
from tests.jobs.working import CHAT, Clock, again, echo, lines, new_batch, read, run_all, upload


def test_a_new_batch(store: JobStore, clock: Clock) -> None:
    file_id = upload(store, lines(1))
    batch = store.batches.create(file_id, CHAT, "24h", metadata={"night": "ü"})
    assert batch.as_object() == {
        "id": batch.batch_id,
        "object": "batch",
        "endpoint": CHAT,
        "errors": None,
        "input_file_id": file_id,
        "completion_window": "24h",
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": int(clock.now),
        "in_progress_at": None,
        "expires_at": int(clock.now) + 24 * 3600,
        "finalizing_at": None,
        "completed_at": None,
        "failed_at": None,
        "expired_at": None,
        "cancelling_at": None,
        "cancelled_at": None,
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "metadata": {"night": "ü"},
    }
    assert again(store, batch) == batch


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_endpoints(store: JobStore, endpoint: str) -> None:
    assert store.batches.create(upload(store, b"x"), endpoint).endpoint == endpoint


@pytest.mark.parametrize(("text", "seconds"), [("24h", 86400), ("1m", 60), ("90m", 5400), ("720h", 2_592_000)])
def test_windows(text: str, seconds: int) -> None:
    assert window_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0h", "24", "h", "24d", "-1h", "1.5h", "721h", "99999h", "24h ", "٢h", "24h\n"])
def test_windows_that_are_none(text: str) -> None:
    with pytest.raises(InvalidParameter, match="completion_window"):
        window_seconds(text)


@pytest.mark.parametrize(
    "metadata",
    [
        {str(number): "x" for number in range(17)},
        {"k" * 65: "x"},
        {"k": "v" * 513},
        {"k": 1},
        {"k": None},
        ["k"],
        "k",
    ],
)
def test_metadata_that_is_refused(store: JobStore, metadata: object) -> None:
    with pytest.raises(InvalidParameter, match="metadata"):
        store.batches.create(upload(store, b"x"), CHAT, metadata=metadata)  # type: ignore[arg-type]


def test_what_cannot_be_an_input(store: JobStore) -> None:
    batch = new_batch(store, lines(1))
    run_all(store, echo)
    output = again(store, batch).output_file_id
    assert output is not None
    for file_id, says in ((output, "purpose is batch_output"), ("file-none", "no such file"), ("\ud800", "no such")):
        with pytest.raises(InvalidParameter, match=says) as refusal:
            store.batches.create(file_id, CHAT)
        assert refusal.value.name == "input_file_id"
    with pytest.raises(InvalidParameter, match="endpoint"):
        store.batches.create(batch.input_file_id, "/v1/images")


def test_lists_show_the_newest_first(store: JobStore) -> None:
    made = [new_batch(store, b"x").batch_id for _ in range(5)]
    first = store.batches.page(limit=3)
    second = store.batches.page(limit=3, after=first.items[-1].batch_id)
    assert [batch.batch_id for page in (first, second) for batch in page.items] == made[::-1]
    assert (first.has_more, second.has_more) == (True, False)
    for options in ({"limit": 0}, {"limit": 101}, {"after": "batch_none"}):
        with pytest.raises(InvalidParameter, match=next(iter(options))):
            store.batches.page(**options)  # type: ignore[arg-type]


def test_tenants_see_only_their_own_batches(store: JobStore) -> None:
    mine, theirs = new_batch(store, lines(2), tenant="me"), new_batch(store, lines(3), tenant="them")
    for call in (store.batches.get, store.batches.cancel):
        with pytest.raises(NotFound):
            call(theirs.batch_id, tenant="me")
        with pytest.raises(NotFound):
            call(mine.batch_id)
    with pytest.raises(InvalidParameter, match="input_file_id"):
        store.batches.create(theirs.input_file_id, CHAT, tenant="me")
    run_all(store, echo)
    done = again(store, mine)
    assert [batch.batch_id for batch in store.batches.page(tenant="me").items] == [mine.batch_id]
    assert {record["response"]["body"]["tenant"] for record in read(store, done.output_file_id, "me")} == {"me"}
    with pytest.raises(NotFound):
        store.files.get(done.output_file_id or "", tenant="them")


def test_cancelling_twice_is_cancelling_once(store: JobStore, clock: Clock) -> None:
    batch = new_batch(store, lines(1))
    cancelled_batch = store.batches.cancel(batch.batch_id)
    assert (cancelled_batch.status, cancelled_batch.cancelling_at) == (BatchStatus.CANCELLING, int(clock.now))
    clock.now += 10
    assert store.batches.cancel(batch.batch_id) == cancelled_batch


def test_what_has_ended_cannot_be_cancelled(store: JobStore) -> None:
    batch = new_batch(store, lines(1))
    run_all(store, echo)
    with pytest.raises(WrongState, match="completed"):
        store.batches.cancel(batch.batch_id)
