"""Files that are being written and that no client can see yet."""

import os
import time
from contextlib import suppress
from pathlib import Path

from archerfish.errors import FileTooLarge
from archerfish.jobs.database import Database, naming_full_disk
from archerfish.jobs.privacy import create_private
from archerfish.jobs.records import new_id

try:
    import fcntl

    _HAS_LOCKS = True
except ImportError:  # Only POSIX has them.
    _HAS_LOCKS = False

_ABANDONED_SECONDS = 3600.0  # Without locks, a file counts as abandoned after this many seconds without a write.


class UnpublishedFile:
    """A file that is being written. It is locked until it is closed, or the process dies."""

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        self.path = path
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._is_published = False
        with naming_full_disk(path.parent):
            self._stream = os.fdopen(create_private(path), "wb")
        _lock(self._stream.fileno())

    def write(self, chunk: bytes) -> None:
        if self._max_bytes is not None and self.num_bytes + len(chunk) > self._max_bytes:
            raise FileTooLarge(f"the file exceeds {self._max_bytes:,} bytes, the limit; split it into several")
        self.num_bytes += len(chunk)
        with naming_full_disk(self.path.parent):
            self._stream.write(chunk)

    def seal(self) -> None:
        """Make the content survive a power cut."""
        with naming_full_disk(self.path.parent):
            self._stream.flush()
            os.fsync(self._stream.fileno())
            if not _HAS_LOCKS:
                self._stream.close()  # Systems without such locks do not move open files either.

    def keep(self) -> None:
        """Mark the file as published: from now on, discarding only closes it."""
        self._is_published = True

    def discard(self) -> None:
        """Remove the file, unless it was published."""
        if not self._is_published:
            self.path.unlink(missing_ok=True)
        with suppress(OSError):  # Closing the stream retries what a full disk did not accept.
            self._stream.close()


class UnpublishedFiles:
    """The directory of unpublished files, for all processes that share it."""

    def __init__(self, directory: Path, database: Database) -> None:
        self._directory = directory
        self._database = database

    def new(self, prefix: str, max_bytes: int | None = None) -> UnpublishedFile:
        # A transaction holds up sweeping in all processes: between its creation and its lock, the file looks abandoned.
        with self._database.transaction():
            return UnpublishedFile(self._directory / new_id(prefix), max_bytes)

    def sweep(self, prefix: str) -> None:
        """Remove files with this prefix, whether or not they are being written."""
        for path in self._directory.glob(f"{prefix}*"):
            path.unlink(missing_ok=True)

    def sweep_abandoned(self) -> None:
        """Remove uploads whose process has died."""
        with self._database.transaction():
            for path in self._directory.glob("upload-*"):
                with suppress(FileNotFoundError):
                    if _is_abandoned(path):
                        path.unlink()


def _lock(descriptor: int) -> None:
    if _HAS_LOCKS:
        with suppress(OSError):  # Not every network file system supports locks.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_abandoned(path: Path) -> bool:
    if _HAS_LOCKS:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        except OSError:
            pass  # Without locks, only the file's age can tell.
        finally:
            os.close(descriptor)
    # By the clock of the file system.
    return time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
