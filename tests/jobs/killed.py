"""A process that runs batches and kills itself at a chosen moment: `python -m tests.jobs.killed DIRECTORY MOMENT N`."""

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from typing import Any

from archerfish.jobs.files import FileStore, UnpublishedFile
from archerfish.jobs.lines import RunnerSettings
from archerfish.jobs.records import LineResult, StoredFile
from archerfish.jobs.runner import BatchRunner
from archerfish.jobs.store import JobStore
from tests.jobs.working import echo


class Countdown:
    """Ends the process when it has come to zero; never if there is nothing to count."""

    def __init__(self, number: int) -> None:
        self.number = number

    def tick(self) -> None:
        self.number -= 1
        if self.number == 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def main(directory: str, moment: str, number: int) -> None:
    countdown = Countdown(number)
    store = JobStore(directory)
    record, publish = store.work.record, FileStore.publish

    def counted_record(batch_id: str, entries: Sequence[Any]) -> None:
        record(batch_id, entries)
        if moment == "recorded":
            countdown.tick()

    def counted_publish(
        files: FileStore,
        connection: sqlite3.Connection,
        draft: UnpublishedFile,
        filename: str,
        purpose: str,
        tenant: str,
    ) -> StoredFile:
        file = publish(files, connection, draft, filename, purpose, tenant)
        if moment == "published":  # The content has its place, its row is not there yet.
            countdown.tick()
        return file

    async def answer(endpoint: str, body: bytes, custom_id: str, tenant: str) -> LineResult:
        if moment == "answered":
            countdown.tick()
        return await echo(endpoint, body, custom_id, tenant)

    store.work.record = counted_record  # type: ignore[method-assign]
    FileStore.publish = counted_publish  # type: ignore[method-assign]
    [batch] = store.work.open_batches()
    runner = BatchRunner(store, answer, settings=RunnerSettings(max_in_flight=8, group_size=8, group_seconds=0.001))
    runner.start()
    await runner.finished(batch.batch_id)
    await runner.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
