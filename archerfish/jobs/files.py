"""Files that clients upload and batches write: content on disk, metadata in the database."""

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from archerfish.errors import InvalidParameter, NotFound, WrongState
from archerfish.jobs.database import Database, marks, naming_full_disk
from archerfish.jobs.privacy import private_directory
from archerfish.jobs.quota import Quota
from archerfish.jobs.records import OPEN_STATUSES, ListPage, StoredFile, new_id
from archerfish.jobs.unpublished_files import UnpublishedFile, UnpublishedFiles

UPLOAD_PURPOSES = ("batch",)
OUTPUT_PURPOSE = "batch_output"
_PURPOSES = (*UPLOAD_PURPOSES, OUTPUT_PURPOSE)
_MOST_FILES = 10_000
_LONGEST_NAME = 255


class Upload:
    """A file that is being uploaded. Used in a `with`: leaving it without `finish` removes what was written."""

    def __init__(self, files: "FileStore", draft: UnpublishedFile, tenant: str) -> None:
        self._files = files
        self._draft = draft
        self._tenant = tenant

    def write(self, chunk: bytes) -> None:
        self._draft.write(chunk)

    def finish(self, filename: str, purpose: str) -> StoredFile:
        """Make the file durable and visible, and return its metadata."""
        check_purpose(purpose)
        self._draft.seal()
        with self._files.publishing([self._draft]) as connection:
            # Other files of the tenant may have been finished meanwhile.
            self._files.quota.check_file(connection, self._tenant, self._draft.num_bytes)
            return self._files.publish(connection, self._draft, _clean_name(filename), purpose, self._tenant)

    def close(self) -> None:
        """Remove what was written, unless the file was finished."""
        self._draft.discard()

    def __enter__(self) -> "Upload":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileStore:
    """The files of all tenants. Any thread may use it."""

    def __init__(
        self, database: Database, directory: Path, clock: Callable[[], float], max_file_bytes: int, quota: Quota
    ) -> None:
        self.database = database
        self.max_file_bytes = max_file_bytes
        self.quota = quota
        self._clock = clock
        self._contents = directory / "files"
        for folder in (self._contents, directory / "drafts"):
            private_directory(folder)
        self._drafts = UnpublishedFiles(directory / "drafts", database)
        self._sweep_contents()
        self._drafts.sweep_abandoned()

    # -- what clients ask for -------------------------------------------------------------------------------------

    def upload(self, filename: str, purpose: str, chunks: Iterable[bytes], *, tenant: str = "") -> StoredFile:
        """Store a whole file. When this returns, it is durable; when it raises, nothing is left of it."""
        check_purpose(purpose)
        with self.begin_upload(tenant=tenant) as upload:
            for chunk in chunks:
                upload.write(chunk)
            return upload.finish(filename, purpose)

    def begin_upload(self, *, tenant: str = "") -> Upload:
        """Begin a file whose content arrives piece by piece."""
        with self.database.reading() as connection:
            self.quota.check_file(connection, tenant, 0)
        self._drafts.sweep_abandoned()
        return Upload(self, self._drafts.new("upload-", self.max_file_bytes), tenant)

    def get(self, file_id: str, *, tenant: str = "") -> StoredFile:
        with self.database.reading() as connection:
            return _find(connection, file_id, tenant)

    def page(
        self,
        *,
        tenant: str = "",
        purpose: str | None = None,
        limit: int = _MOST_FILES,
        after: str | None = None,
        order: str = "desc",
    ) -> ListPage[StoredFile]:
        """Return a page of files by creation time, the newest first unless `order` is "asc"."""
        if not 1 <= limit <= _MOST_FILES:
            raise InvalidParameter("limit", limit, f"it must be at least 1 and at most {_MOST_FILES}")
        if order not in ("asc", "desc"):
            raise InvalidParameter("order", order, "it must be asc or desc")
        if purpose is not None and purpose not in _PURPOSES:
            raise InvalidParameter("purpose", purpose, f"it must be one of {', '.join(_PURPOSES)}")
        beyond = "<" if order == "desc" else ">"
        with self.database.reading() as connection:
            number = None if after is None else _number(connection, after, tenant)
            rows = connection.execute(
                "SELECT * FROM files WHERE tenant = :tenant AND (:purpose IS NULL OR purpose = :purpose) "
                f"AND (:number IS NULL OR number {beyond} :number) ORDER BY number {order} LIMIT :limit",
                {"tenant": tenant, "purpose": purpose, "number": number, "limit": limit + 1},
            ).fetchall()
        return ListPage([_from_row(row) for row in rows[:limit]], len(rows) > limit)

    def open(self, file_id: str, *, tenant: str = "") -> BinaryIO:
        """Open the content for reading. It stays readable if the file is deleted meanwhile."""
        self.get(file_id, tenant=tenant)
        try:
            return (self._contents / file_id).open("rb")
        except FileNotFoundError as error:  # It was deleted just now, or by another program.
            raise NotFound(f"there is no file {file_id!r}") from error

    def delete(self, file_id: str, *, tenant: str = "") -> None:
        """Remove a file. One that an open batch reads is refused."""
        with self.database.transaction() as connection:
            _find(connection, file_id, tenant)
            user = connection.execute(
                f"SELECT batch_id FROM batches WHERE input_file_id = ? AND status IN ({marks(OPEN_STATUSES)})",
                (file_id, *(status.value for status in OPEN_STATUSES)),
            ).fetchone()
            if user is not None:
                raise WrongState(
                    f"the file {file_id!r} is the input of the batch {user['batch_id']!r}, which is still running: "
                    "cancel that first, or wait for it to end"
                )
            connection.execute("DELETE FROM files WHERE file_id = ?", (file_id,))
        # After the row: a content without a row is removed at the next start, but a row without content would be an
        # error.
        (self._contents / file_id).unlink(missing_ok=True)

    # -- what batches write ---------------------------------------------------------------------------------------

    def draft(self) -> UnpublishedFile:
        """Return a new file of any size, to be published or discarded."""
        return self._drafts.new("output-")

    @contextmanager
    def publishing(self, drafts: Iterable[UnpublishedFile]) -> Iterator[sqlite3.Connection]:
        """Open a transaction in which sealed files are published. They are published if it succeeds."""
        try:
            with self.database.transaction() as connection:
                yield connection
        except Exception:
            raise
        except BaseException:
            # An interrupt may have come after the rows were written. Files without a row are removed at the next start.
            for draft in drafts:
                draft.keep()
            raise
        for draft in drafts:
            draft.keep()

    def publish(
        self, connection: sqlite3.Connection, draft: UnpublishedFile, filename: str, purpose: str, tenant: str
    ) -> StoredFile:
        """Give a sealed draft its final path and its row, within `publishing`."""
        file = StoredFile(
            file_id=new_id("file-"),
            tenant=tenant,
            filename=filename,
            purpose=purpose,
            num_bytes=draft.num_bytes,
            created_at=int(self._clock()),
        )
        # If the process is killed before the row is written, the content is removed at the next start.
        with naming_full_disk(self._contents):
            draft.path = draft.path.rename(self._contents / file.file_id)
            _sync_directory(self._contents)
        connection.execute(
            "INSERT INTO files (file_id, tenant, filename, purpose, num_bytes, created_at) VALUES (?, ?, ?, ?, ?, ?)",
            (file.file_id, file.tenant, file.filename, file.purpose, file.num_bytes, file.created_at),
        )
        return file

    def sweep_outputs(self) -> None:
        """Remove outputs that a killed runner was writing. Only the one running runner may call this."""
        self._drafts.sweep("output-")

    def _sweep_contents(self) -> None:
        """Remove contents without a row, which a killed process has left."""
        # Contents move to their path within a transaction, so during this one none is in between.
        with self.database.transaction() as connection:
            known = {row["file_id"] for row in connection.execute("SELECT file_id FROM files")}
            for path in self._contents.iterdir():
                if path.name not in known:
                    path.unlink(missing_ok=True)


def check_purpose(purpose: str) -> None:
    if purpose not in UPLOAD_PURPOSES:
        raise InvalidParameter("purpose", purpose, f"it must be {' or '.join(UPLOAD_PURPOSES)}")


def _find(connection: sqlite3.Connection, file_id: str, tenant: str) -> StoredFile:
    row = _row(connection, file_id, tenant)
    if row is None:
        raise NotFound(f"there is no file {file_id!r}")
    return _from_row(row)


def _number(connection: sqlite3.Connection, file_id: str, tenant: str) -> int:
    row = _row(connection, file_id, tenant)
    if row is None:
        raise InvalidParameter("after", file_id, "there is no such file")
    return int(row["number"])


def _row(connection: sqlite3.Connection, file_id: str, tenant: str) -> sqlite3.Row | None:
    query = "SELECT * FROM files WHERE file_id = ? AND tenant = ?"
    # Ids are ASCII; other text may not be valid in a query.
    row: sqlite3.Row | None = connection.execute(query, (file_id, tenant)).fetchone() if file_id.isascii() else None
    return row


def _from_row(row: sqlite3.Row) -> StoredFile:
    return StoredFile(**{name: row[name] for name in row.keys() if name != "number"})  # noqa: SIM118 - a Row yields values


def _clean_name(filename: str) -> str:
    """Return the last part of a path from any system, without characters that are not text."""
    name = re.split(r"[/\\]", filename)[-1].encode("utf-8", "replace").decode("utf-8")
    return "".join(character for character in name if character.isprintable())[:_LONGEST_NAME] or "file"


def _sync_directory(directory: Path) -> None:
    """Make a rename survive a power cut."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
