"""The durable store of files and batches: a directory with a database in it."""

import time
from collections.abc import Callable
from pathlib import Path

from archerfish.errors import ConfigError
from archerfish.jobs.batches import BatchStore
from archerfish.jobs.database import Database, naming_full_disk
from archerfish.jobs.files import FileStore
from archerfish.jobs.privacy import private_directory
from archerfish.jobs.quota import Quota
from archerfish.jobs.work_store import WorkStore

MAX_FILE_BYTES = 512 * 1024 * 1024
_DATABASE, _RUNNER_LOCK = "jobs.sqlite", "runner.lock"
_OWN_NAMES = {
    *("files", "drafts", _DATABASE, f"{_DATABASE}-wal", f"{_DATABASE}-shm"),
    *(_RUNNER_LOCK, f"{_RUNNER_LOCK}-journal"),
}


class JobStore:
    """Files and batches that outlive the process.

    What a method has returned survives a SIGKILL and a power cut. Any thread may call; several processes may open the
    same directory. Calls wait for the disk: from an event loop, call them in a thread.
    """

    def __init__(
        self,
        directory: Path | str,
        clock: Callable[[], float] = time.time,
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        quota: Quota | None = None,
    ) -> None:
        """`clock` returns seconds since 1970."""
        self.directory = Path(directory)
        quota = quota or Quota()
        try:
            with naming_full_disk(self.directory):
                private_directory(self.directory, _OWN_NAMES)
                self._database = Database(self.directory / _DATABASE)
                self.files = FileStore(self._database, self.directory, clock, max_file_bytes, quota)
        except OSError as error:
            raise ConfigError(f"{self.directory} cannot store files and batches: {error.strerror}") from error
        self.batches = BatchStore(self._database, clock, quota)
        self.work = WorkStore(self._database, self.files, self.directory / _RUNNER_LOCK, clock)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> "JobStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
