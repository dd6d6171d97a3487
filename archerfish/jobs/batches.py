"""Batches as clients see them: create, get, list, cancel."""

import json
import re
import sqlite3
from collections.abc import Callable, Mapping

from archerfish.api.endpoints import ENDPOINTS
from archerfish.errors import InvalidParameter, NotFound, WrongState
from archerfish.jobs.database import Database
from archerfish.jobs.files import UPLOAD_PURPOSES
from archerfish.jobs.quota import Quota
from archerfish.jobs.records import (
    Batch,
    BatchStatus,
    ListPage,
    RequestCounts,
    errors_from_text,
    new_id,
)

_MOST_BATCHES = 100
_WINDOW = re.compile(r"([1-9][0-9]{0,4})([hm])", re.ASCII)
_SECONDS = {"h": 3600, "m": 60}
_LONGEST_WINDOW = 30 * 24 * 3600
_MOST_METADATA, _LONGEST_KEY, _LONGEST_VALUE = 16, 64, 512
_PLAIN = ("batch_id", "tenant", "endpoint", "input_file_id", "completion_window", "output_file_id", "error_file_id")
_MOMENTS = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)
_TIMES = ("created_at", "expires_at", *_MOMENTS)

NOW_OR_LATER = "MAX(?, created_at, " + ", ".join(f"COALESCE({name}, 0)" for name in _MOMENTS) + ")"
"""SQL of the time of a batch's next event: if the clock was set back, not earlier than the event before."""


class BatchStore:
    """The batches of all tenants. Any thread may use it."""

    def __init__(self, database: Database, clock: Callable[[], float], quota: Quota) -> None:
        self._database = database
        self._clock = clock
        self._quota = quota

    def create(
        self,
        input_file_id: str,
        endpoint: str,
        completion_window: str = "24h",
        *,
        metadata: Mapping[str, str] | None = None,
        tenant: str = "",
    ) -> Batch:
        """Create a batch, to be validated and answered. When this returns, it is durable."""
        if endpoint not in ENDPOINTS:
            raise InvalidParameter("endpoint", endpoint, f"it must be one of {', '.join(ENDPOINTS)}")
        window = window_seconds(completion_window)
        _check_metadata(metadata)
        batch_id, now = new_id("batch_"), int(self._clock())
        with self._database.transaction() as connection:
            _check_input(connection, input_file_id, tenant)
            self._quota.check_batch(connection, tenant)
            connection.execute(
                "INSERT INTO batches (batch_id, tenant, endpoint, input_file_id, completion_window, metadata, status, "
                "created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    batch_id,
                    tenant,
                    endpoint,
                    input_file_id,
                    completion_window,
                    None if metadata is None else json.dumps(dict(metadata)),
                    BatchStatus.VALIDATING.value,
                    now,
                    now + window,
                ),
            )
            return _find(connection, batch_id, tenant)

    def get(self, batch_id: str, *, tenant: str = "") -> Batch:
        with self._database.reading() as connection:
            return _find(connection, batch_id, tenant)

    def page(self, *, tenant: str = "", limit: int = 20, after: str | None = None) -> ListPage[Batch]:
        """Return a page of batches, the newest first."""
        if not 1 <= limit <= _MOST_BATCHES:
            raise InvalidParameter("limit", limit, f"it must be at least 1 and at most {_MOST_BATCHES}")
        with self._database.reading() as connection:
            last = None if after is None else _row(connection, after, tenant)
            if after is not None and last is None:
                raise InvalidParameter("after", after, "there is no such batch")
            rows = connection.execute(
                "SELECT * FROM batches WHERE tenant = :tenant AND (:number IS NULL OR number < :number) "
                "ORDER BY number DESC LIMIT :limit",
                {"tenant": tenant, "number": None if last is None else last["number"], "limit": limit + 1},
            ).fetchall()
        return ListPage([batch_from_row(row) for row in rows[:limit]], len(rows) > limit)

    def cancel(self, batch_id: str, *, tenant: str = "") -> Batch:
        """Begin to cancel a batch, which ends when its lines in flight have. A second call changes nothing."""
        with self._database.transaction() as connection:
            batch = _find(connection, batch_id, tenant)
            if batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
                connection.execute(
                    f"UPDATE batches SET status = ?, cancelling_at = {NOW_OR_LATER} WHERE batch_id = ?",
                    (BatchStatus.CANCELLING.value, int(self._clock()), batch_id),
                )
            elif batch.status is not BatchStatus.CANCELLING:
                raise WrongState(f"the batch {batch_id!r} is {batch.status.value}: there is nothing left to cancel")
            return _find(connection, batch_id, tenant)


def window_seconds(text: str) -> int:
    """Return the length of a completion window such as "24h" or "90m"."""
    match = _WINDOW.fullmatch(text)
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 0 < seconds <= _LONGEST_WINDOW:
        raise InvalidParameter(
            "completion_window", text, "it must be hours or minutes such as 24h or 90m, and at most 720h"
        )
    return seconds


def batch_from_row(row: sqlite3.Row) -> Batch:
    return Batch(
        **{name: row[name] for name in (*_PLAIN, *_TIMES)},
        metadata=None if row["metadata"] is None else json.loads(row["metadata"]),
        status=BatchStatus(row["status"]),
        outcome=None if row["outcome"] is None else BatchStatus(row["outcome"]),
        counts=RequestCounts(row["total"], row["completed"], row["failed"]),
        errors=errors_from_text(row["errors"]),
    )


def _check_input(connection: sqlite3.Connection, file_id: str, tenant: str) -> None:
    query = "SELECT purpose FROM files WHERE file_id = ? AND tenant = ?"
    row = connection.execute(query, (file_id, tenant)).fetchone() if file_id.isascii() else None
    if row is None:
        raise InvalidParameter("input_file_id", file_id, "there is no such file; upload it first, with purpose batch")
    if row["purpose"] not in UPLOAD_PURPOSES:
        raise InvalidParameter("input_file_id", file_id, f"its purpose is {row['purpose']}; it must be batch")


def _check_metadata(metadata: object) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, Mapping) or len(metadata) > _MOST_METADATA:
        raise InvalidParameter("metadata", metadata, f"it must be an object of at most {_MOST_METADATA} strings")
    for key, value in metadata.items():
        if not isinstance(key, str) or len(key) > _LONGEST_KEY:
            raise InvalidParameter("metadata", key, f"a key must be a string of at most {_LONGEST_KEY} characters")
        if not isinstance(value, str) or len(value) > _LONGEST_VALUE:
            limit = f"a value must be a string of at most {_LONGEST_VALUE} characters"
            raise InvalidParameter(f"metadata.{key}", value, limit)


def _find(connection: sqlite3.Connection, batch_id: str, tenant: str) -> Batch:
    row = _row(connection, batch_id, tenant)
    if row is None:
        raise NotFound(f"there is no batch {batch_id!r}")
    return batch_from_row(row)


def _row(connection: sqlite3.Connection, batch_id: str, tenant: str) -> sqlite3.Row | None:
    query = "SELECT * FROM batches WHERE batch_id = ? AND tenant = ?"
    # Ids are ASCII; other text may not be valid in a query.
    row: sqlite3.Row | None = connection.execute(query, (batch_id, tenant)).fetchone() if batch_id.isascii() else None
    return row
