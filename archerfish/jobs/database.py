"""The SQLite database of files and batches: tables, transactions, and errors of a full disk."""

import errno
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from pathlib import Path

from archerfish.console import logger
from archerfish.errors import ConfigError, StorageFull
from archerfish.jobs.privacy import close_to_others, private_file

_VERSION = 1
_BUSY_SECONDS = 30.0  # Seconds; another process may be writing a large group.
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
_CHECK_SECONDS = 5.0
"""Seconds that a start may take to look for damaged pages."""
_INSTRUCTIONS_BETWEEN_LOOKS = 10_000
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

_TABLES = (
    """CREATE TABLE files (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        file_id TEXT NOT NULL UNIQUE,
        tenant TEXT NOT NULL,
        filename TEXT NOT NULL,
        purpose TEXT NOT NULL,
        num_bytes INTEGER NOT NULL,
        created_at INTEGER NOT NULL
    )""",
    "CREATE INDEX files_of_tenant ON files (tenant, number)",
    """CREATE TABLE batches (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        batch_id TEXT NOT NULL UNIQUE,
        tenant TEXT NOT NULL,
        endpoint TEXT NOT NULL,
        input_file_id TEXT NOT NULL,
        completion_window TEXT NOT NULL,
        metadata TEXT,
        status TEXT NOT NULL,
        outcome TEXT,
        created_at INTEGER NOT NULL,
        expires_at INTEGER NOT NULL,
        in_progress_at INTEGER,
        finalizing_at INTEGER,
        completed_at INTEGER,
        failed_at INTEGER,
        expired_at INTEGER,
        cancelling_at INTEGER,
        cancelled_at INTEGER,
        total INTEGER NOT NULL DEFAULT 0,
        completed INTEGER NOT NULL DEFAULT 0,
        failed INTEGER NOT NULL DEFAULT 0,
        output_file_id TEXT,
        error_file_id TEXT,
        errors TEXT
    )""",
    "CREATE INDEX batches_of_tenant ON batches (tenant, number)",
    "CREATE INDEX batches_by_status ON batches (status, number)",
    "CREATE INDEX batches_of_file ON batches (input_file_id)",
    # One row for each answered line: the key makes every answer count once.
    """CREATE TABLE results (
        batch_id TEXT NOT NULL,
        line INTEGER NOT NULL,
        is_error INTEGER NOT NULL,
        text TEXT NOT NULL,
        PRIMARY KEY (batch_id, line)
    )""",
    """CREATE TABLE attempts (
        batch_id TEXT NOT NULL,
        line INTEGER NOT NULL,
        count INTEGER NOT NULL,
        PRIMARY KEY (batch_id, line)
    )""",
)


class Database:
    """One connection that any thread may use, one at a time.

    A transaction that has ended survives a power cut.
    """

    def __init__(self, path: Path) -> None:
        self._directory = path.parent
        self._lock = threading.Lock()
        private_file(path)
        for suffix in ("-wal", "-shm"):  # Files that SQLite creates have the mode of the database.
            close_to_others(path.with_name(path.name + suffix))
        try:
            self._connection = _connect(path)
            # Takes effect only before the first table is created, and decides how free pages are returned to the
            # system.
            self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            _check_pages(self._connection, path)
            self._prepare(path)
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"{path} cannot be used ({error}): choose another directory") from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction. If the disk is full, StorageFull is raised and nothing has changed."""
        with self._lock, naming_full_disk(self._directory):
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # SQLite rolls back by itself after some errors.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for single queries. All rows must be fetched within the block."""
        with self._lock:
            yield self._connection

    def give_back_space(self) -> None:
        """Shrink the file by the pages of deleted rows."""
        with self._lock, naming_full_disk(self._directory):
            self._connection.execute("PRAGMA incremental_vacuum").fetchall()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _prepare(self, path: Path) -> None:
        with self.transaction() as connection:
            [version] = connection.execute("PRAGMA user_version").fetchone()
            if version > _VERSION:
                raise ConfigError(f"{path} was written by a newer release: use that, or choose another directory")
            if version == 0:
                for statement in _TABLES:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {_VERSION}")


class Claim:
    """A lock with at most one holder among all processes. The system releases it when its process dies."""

    def __init__(self, path: Path) -> None:
        private_file(path)
        # SQLite's own locks are portable: this database only serves as a lock and has no tables.
        self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)

    def take(self) -> bool:
        """Take the lock if it is free, and return whether it is held now."""
        try:
            self._connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                return False
            raise
        return True

    def release(self) -> None:
        self._connection.close()


def marks(values: Sized) -> str:
    """Return a question mark for each of the values."""
    return ", ".join("?" * len(values))


@contextmanager
def naming_full_disk(directory: Path) -> Iterator[None]:
    """Raise StorageFull for errors by which the system and SQLite report a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        raise _storage_full(directory, error) from error
    except sqlite3.OperationalError as error:
        if _code(error) not in _FULL and "disk is full" not in str(error):
            raise
        raise _storage_full(directory, error) from error


def _code(error: sqlite3.Error) -> int | None:
    return getattr(error, "sqlite_errorcode", None)


def _storage_full(directory: Path, error: Exception) -> StorageFull:
    try:
        free = f"{shutil.disk_usage(directory).free:,} bytes are free"
    except OSError:
        free = "free space unknown"
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return StorageFull(f"no space left to write in {directory} ({reason}; {free}): free some space")


def _check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a damaged database, as far as damage is found in a few seconds."""
    end = time.monotonic() + _CHECK_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > end, _INSTRUCTIONS_BETWEEN_LOOKS)
    try:
        [verdict] = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if _code(error) != sqlite3.SQLITE_INTERRUPT:
            raise
        logger.info("%s is large: only part of it was checked for damage", path)
        return
    except sqlite3.DatabaseError as error:
        verdict = str(error)
    finally:
        connection.set_progress_handler(None, 0)
    if verdict != "ok":
        first = str(verdict).replace("\n", " ")
        raise ConfigError(f"{path} is damaged ({first}): put a backup in its place, or choose another directory")


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    return connection
