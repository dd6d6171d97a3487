"""What one tenant may keep, and how many batches it may have open; others are not concerned."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from archerfish.api.errors import error_reply
from archerfish.errors import QuotaExceeded, TooManyBatches
from archerfish.jobs.quota import Quota
from archerfish.jobs.store import JobStore
from tests.jobs.working import CHAT, again, contents, echo, lines, new_batch, run_all, upload


@pytest.fixture
def small(tmp_path: Path) -> Iterator[JobStore]:
    with JobStore(tmp_path / "small", quota=Quota(max_open_batches=2, max_files=6, max_bytes=1000)) as store:
        yield store


def test_open_batches(small: JobStore) -> None:
    batches = [new_batch(small, lines(1)) for _ in range(2)]
    with pytest.raises(TooManyBatches, match=r"2 batches are open.*--max-open-batches 2") as refusal:
        small.batches.create(batches[0].input_file_id, CHAT)
    reply = error_reply(refusal.value)
    assert (reply.status, reply.code) == (429, "too_many_batches")
    assert new_batch(small, lines(1), tenant="other")
    small.batches.cancel(batches[0].batch_id)
    with pytest.raises(TooManyBatches):
        small.batches.create(batches[0].input_file_id, CHAT)
    run_all(small, echo)
    assert small.batches.create(batches[0].input_file_id, CHAT)


def test_files(small: JobStore) -> None:
    made = [upload(small, b"x") for _ in range(6)]
    with pytest.raises(QuotaExceeded, match=r"6 files are stored.*--max-files 6") as refusal:
        upload(small, b"x")
    reply = error_reply(refusal.value)
    assert (reply.status, reply.code) == (507, "quota_exceeded")
    assert upload(small, b"x", "other")
    small.files.delete(made[0])
    assert upload(small, b"x")


def test_bytes(small: JobStore) -> None:
    uploaded = upload(small, b"x" * 600)
    with pytest.raises(QuotaExceeded, match=r"600 bytes.*--max-stored-bytes\s+1,000"):
        upload(small, b"x" * 401)
    assert upload(small, b"x" * 400) and upload(small, b"x" * 1000, "other")
    with pytest.raises(QuotaExceeded):
        upload(small, b"")
    small.files.delete(uploaded)
    assert upload(small, b"x" * 600)


def test_uploads_side_by_side_do_not_exceed_it_together(small: JobStore) -> None:
    with small.files.begin_upload() as first, small.files.begin_upload() as second:
        first.write(b"x" * 600)
        second.write(b"x" * 600)
        first.finish("a", "batch")
        with pytest.raises(QuotaExceeded):
            second.finish("b", "batch")
    assert len(contents(small.directory)) == 1


def test_outputs_are_never_refused_but_count(small: JobStore) -> None:
    batch = new_batch(small, lines(7))
    run_all(small, echo)
    done = again(small, batch)
    assert done.output_file_id is not None and small.files.get(done.output_file_id).num_bytes > 300
    assert sum(file.num_bytes for file in small.files.page().items) > 1000
    with pytest.raises(QuotaExceeded):
        upload(small, b"x")
    with pytest.raises(QuotaExceeded):
        small.batches.create(batch.input_file_id, CHAT)
    small.files.delete(done.output_file_id)
    assert small.batches.create(batch.input_file_id, CHAT)


def test_a_refused_batch_leaves_nothing(small: JobStore) -> None:
    file_id = upload(small, lines(1))
    for _ in range(2):
        small.batches.create(file_id, CHAT)
    with pytest.raises(TooManyBatches):
        asyncio.run(asyncio.to_thread(small.batches.create, file_id, CHAT))
    assert len(small.batches.page().items) == 2
