"""A full disk: uploads say so, batches pause and go on, no answer is lost."""

import asyncio
import errno
import logging
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from archerfish.errors import StorageFull
from archerfish.jobs import unpublished_files
from archerfish.jobs.lines import RunnerSettings
from archerfish.jobs.records import BatchStatus, RequestCounts
from archerfish.jobs.runner import BatchRunner
from archerfish.jobs.store import JobStore
from tests.jobs.working import (
    Gate,
    again,
    contents,
    echo,
    ids,
    lines,
    new_batch,
    no_wait,
    read,
    run_all,
    upload,
    within,
)


class FullDisk:
    """Refuses to sync until there is space. Space comes with the first wait, as if files had been deleted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        self.num_refusals = 0
        self.num_waits = 0
        self._fsync = os.fsync
        monkeypatch.setattr(unpublished_files.os, "fsync", self.fsync)

    def fsync(self, descriptor: int) -> None:
        if self.is_full:
            self.num_refusals += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        self._fsync(descriptor)

    async def wait(self, seconds: float) -> None:
        self.num_waits += 1
        self.is_full = self.num_waits < 3
        await asyncio.sleep(0)


def test_an_upload_says_so_and_leaves_no_trace(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    FullDisk(monkeypatch)
    with pytest.raises(StorageFull, match=r"no space left to write in .*No space left on device; .* bytes are free"):
        upload(store, b"x")
    assert contents(store.directory) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_write_that_the_system_refuses(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpublished_files, "create_private", lambda _: os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(StorageFull), store.files.begin_upload() as piecewise:
        piecewise.write(b"x" * 10_000_000)


def test_a_quota_is_a_full_disk_too(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(unpublished_files.os, "fsync", refuse)
    with pytest.raises(StorageFull, match="quota"):
        upload(store, b"x")


def limit_pages(store: JobStore, extra: int | None) -> None:
    """Let SQLite itself say that it is full."""
    with store._database.reading() as connection:
        used = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {2**31 - 2 if extra is None else used + extra}")


def test_a_row_that_does_not_fit_undoes_the_upload(store: JobStore) -> None:
    limit_pages(store, 0)
    with pytest.raises(StorageFull, match="full"):
        for number in range(1000):  # The pages that are there already take a few.
            store.files.upload("name" * 60 + str(number), "batch", [b"x"])
    assert len(contents(store.directory)) == len(store.files.page().items)
    limit_pages(store, None)
    assert upload(store, b"x")


def test_the_files_of_a_batch_wait_for_room(
    store: JobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch = new_batch(store, lines(5))
    disk = FullDisk(monkeypatch)
    with caplog.at_level(logging.INFO, "archerfish"):
        run_all(store, echo, wait=disk.wait)
    done = again(store, batch)
    assert (done.status, disk.num_waits, disk.num_refusals) == (BatchStatus.COMPLETED, 3, 3)
    assert len(read(store, done.output_file_id)) == 5
    messages = [entry.getMessage() for entry in caplog.records if entry.getMessage().startswith("batches")]
    assert len(messages) == 2 and "no space left" in messages[0] and "resume" in messages[1]
    assert contents(store.directory) == sorted([batch.input_file_id, done.output_file_id or ""])


def test_answers_wait_for_room_and_lines_wait_for_answers(store: JobStore) -> None:
    """SQLite is full for real; lines stop starting; nothing is answered twice."""

    async def work() -> None:
        seen: list[str] = []
        reported = asyncio.Event()
        room = asyncio.Event()

        async def answer(endpoint: str, body: bytes, custom_id: str, tenant: str) -> Any:
            seen.append(custom_id)
            result = await echo(endpoint, body, custom_id, tenant)
            return result._replace(body={"padding": "x" * 5000})

        async def wait(_: float) -> None:
            reported.set()
            await room.wait()

        settings = RunnerSettings(max_in_flight=4, group_size=8, group_seconds=0.0, poll_seconds=3600.0)
        runner = BatchRunner(store, answer, settings=settings, wait=wait)
        runner.start()
        await reported.wait()
        assert runner.paused is not None and "full" in runner.paused
        for _ in range(1000):
            await asyncio.sleep(0)
        # Two groups may wait to be saved, and each place in flight may hold one more.
        num_saved = len(store.work.progress(batch.batch_id).answered)
        assert len(seen) <= num_saved + 2 * 8 + 4 + 1 < 200
        limit_pages(store, None)
        room.set()
        done = await runner.finished(batch.batch_id)
        assert runner.paused is None
        assert (done.status, done.counts) == (BatchStatus.COMPLETED, RequestCounts(200, 200, 0))
        assert len(seen) == len(set(seen)) == 200
        assert ids(read(store, done.output_file_id)) == [f"request-{number}" for number in range(200)]
        await runner.stop()

    batch = new_batch(store, lines(200))
    limit_pages(store, 40)
    within(work)


def test_stopping_on_a_full_disk_ends_and_logs(
    store: JobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        gate, reported = Gate(), asyncio.Event()

        async def wait(_: float) -> None:
            reported.set()
            await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(store.work, "record", refuse)
        runner = BatchRunner(store, gate, settings=RunnerSettings(group_seconds=0.0, poll_seconds=3600.0), wait=wait)
        task = runner.start()
        await gate.until(3)
        gate.answer("request-1")
        await reported.wait()
        await runner.stop()
        task.result()

    def refuse(*_: Any) -> None:
        # As SQLite says it, should it ever come without a code.
        raise sqlite3.OperationalError("database or disk is full")

    batch = new_batch(store, lines(3))
    within(work)
    assert any("1 results of batch" in entry.getMessage() for entry in caplog.records)
    monkeypatch.undo()
    run_all(store, echo)
    assert again(store, batch).counts == RequestCounts(3, 3, 0)


def test_validation_waits_for_room(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = new_batch(store, lines(2))
    begin, tries = store.work.begin, []

    def first_refused(batch_id: str, num_lines: int) -> None:
        tries.append(batch_id)
        if len(tries) == 1:
            raise StorageFull("there is no room")
        begin(batch_id, num_lines)

    monkeypatch.setattr(store.work, "begin", first_refused)
    run_all(store, echo, wait=no_wait)
    assert (len(tries), again(store, batch).status) == (2, BatchStatus.COMPLETED)
