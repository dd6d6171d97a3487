"""What running a batch stores: its status, each line's result once, and the files at its end.

Every step here can be killed at any moment and repeated.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from archerfish.jobs.batches import NOW_OR_LATER, batch_from_row
from archerfish.jobs.database import Claim, Database, marks
from archerfish.jobs.files import OUTPUT_PURPOSE, FileStore
from archerfish.jobs.input_lines import InputReader
from archerfish.jobs.records import (
    OPEN_STATUSES,
    Batch,
    BatchError,
    BatchStatus,
    LineRecord,
    errors_text,
    unanswered,
)
from archerfish.jobs.unpublished_files import UnpublishedFile

_PAGE = 100  # Results read or written at once while a batch is finalized.
_NOT_RUN = {
    BatchStatus.EXPIRED: ("batch_expired", "the completion window ended before this request could be answered"),
    BatchStatus.CANCELLED: ("batch_cancelled", "the batch was cancelled before this request was answered"),
}
_TAKES_RESULTS = (BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING, BatchStatus.FINALIZING)


class FailedAttempts(NamedTuple):
    """A line that was in flight when the engine failed."""

    line: int
    num_attempts: int
    """How often the line was alone in flight then; 0 if never."""


class LineProgress(NamedTuple):
    """The lines of a batch that are done or were tried."""

    answered: set[int]
    """Numbers of the lines that have a result."""
    attempts: dict[int, int]
    """Lines without a result that were in flight when the engine failed, by number: how often each was so alone."""


class WorkStore:
    """The runner's part of the store. Any thread may use it, but only one runner at a time."""

    def __init__(self, database: Database, files: FileStore, lock: Path, clock: Callable[[], float]) -> None:
        self._database = database
        self._files = files
        self._lock = lock
        self._clock = clock

    def claim(self) -> Claim:
        """The lock of the runner, not yet taken."""
        return Claim(self._lock)

    def now(self) -> float:
        return self._clock()

    # -- the way through the statuses -----------------------------------------------------------------------------

    def open_batches(self) -> list[Batch]:
        """Return the batches that have not ended, the oldest first."""
        with self._database.reading() as connection:
            rows = connection.execute(
                f"SELECT * FROM batches WHERE status IN ({marks(OPEN_STATUSES)}) ORDER BY number",
                [status.value for status in OPEN_STATUSES],
            ).fetchall()
        return [batch_from_row(row) for row in rows]

    def status(self, batch_id: str) -> BatchStatus:
        with self._database.reading() as connection:
            [status] = connection.execute("SELECT status FROM batches WHERE batch_id = ?", (batch_id,)).fetchone()
        return BatchStatus(status)

    def begin(self, batch_id: str, num_lines: int) -> None:
        """Start a batch whose input is valid. If it was cancelled meanwhile, nothing changes."""
        with self._database.transaction() as connection:
            connection.execute(
                f"UPDATE batches SET status = ?, in_progress_at = {NOW_OR_LATER}, total = ? "
                "WHERE batch_id = ? AND status = ?",
                (
                    BatchStatus.IN_PROGRESS.value,
                    int(self._clock()),
                    num_lines,
                    batch_id,
                    BatchStatus.VALIDATING.value,
                ),
            )

    def refuse(self, batch_id: str, errors: Sequence[BatchError]) -> None:
        """Fail a batch whose input is invalid. If it was cancelled meanwhile, nothing changes."""
        self._fail(batch_id, errors, [BatchStatus.VALIDATING])

    def abandon(self, batch_id: str, errors: Sequence[BatchError]) -> None:
        """Fail a batch whose files cannot be written."""
        self._fail(batch_id, errors, OPEN_STATUSES)

    def end(self, batch_id: str, outcome: BatchStatus, errors: Sequence[BatchError] = ()) -> None:
        """End the lines of a batch, whose files are written next. With errors, this applies to any status."""
        with self._database.transaction() as connection:
            row = connection.execute("SELECT * FROM batches WHERE batch_id = ?", (batch_id,)).fetchone()
            batch = batch_from_row(row)
            if not batch.status.is_open or (batch.status is not BatchStatus.IN_PROGRESS and not errors):
                return
            total, completed, failed = batch.counts
            if outcome is BatchStatus.EXPIRED and completed + failed == total:
                outcome = BatchStatus.COMPLETED  # A cancellation or expiry after the last answer left nothing out.
            if outcome is BatchStatus.COMPLETED and completed + failed != total:
                text = f"the input had {total} requests when it was checked, but {completed + failed} when it was run"
                outcome, errors = BatchStatus.FAILED, [BatchError("input_file_changed", text)]
            connection.execute(
                f"UPDATE batches SET status = ?, finalizing_at = {NOW_OR_LATER}, errors = ?, outcome = ? "
                "WHERE batch_id = ?",
                (
                    BatchStatus.FINALIZING.value,
                    int(self._clock()),
                    errors_text(errors),
                    outcome.value,
                    batch_id,
                ),
            )

    def _fail(self, batch_id: str, errors: Sequence[BatchError], statuses: Sequence[BatchStatus]) -> None:
        with self._database.transaction() as connection:
            connection.execute(
                f"UPDATE batches SET status = ?, failed_at = {NOW_OR_LATER}, errors = ? "
                f"WHERE batch_id = ? AND status IN ({marks(statuses)})",
                (
                    BatchStatus.FAILED.value,
                    int(self._clock()),
                    errors_text(errors),
                    batch_id,
                    *(status.value for status in statuses),
                ),
            )

    # -- the answers of lines -------------------------------------------------------------------------------------

    def progress(self, batch_id: str) -> LineProgress:
        with self._database.reading() as connection:
            answered = connection.execute("SELECT line FROM results WHERE batch_id = ?", (batch_id,)).fetchall()
            attempts = connection.execute("SELECT line, count FROM attempts WHERE batch_id = ?", (batch_id,)).fetchall()
        return LineProgress({row["line"] for row in answered}, {row["line"]: row["count"] for row in attempts})

    def record(self, batch_id: str, entries: Sequence[LineRecord | FailedAttempts]) -> None:
        """Store results and failed attempts in one transaction. Only the first result of a line counts."""
        with self._database.transaction() as connection:
            [status] = connection.execute("SELECT status FROM batches WHERE batch_id = ?", (batch_id,)).fetchone()
            assert BatchStatus(status) in _TAKES_RESULTS, f"{batch_id} is {status} and takes no results"
            num_completed = num_failed = 0
            for entry in entries:
                if isinstance(entry, FailedAttempts):
                    connection.execute("INSERT OR REPLACE INTO attempts VALUES (?, ?, ?)", (batch_id, *entry))
                    continue
                is_new = connection.execute(
                    "INSERT OR IGNORE INTO results (batch_id, line, is_error, text) VALUES (?, ?, ?, ?)",
                    (batch_id, entry.line, entry.is_error, entry.text),
                ).rowcount
                num_failed += is_new if entry.is_error else 0
                num_completed += 0 if entry.is_error else is_new
            connection.execute(
                "UPDATE batches SET completed = completed + ?, failed = failed + ? WHERE batch_id = ?",
                (num_completed, num_failed, batch_id),
            )

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self, batch: Batch) -> None:
        """Finish a batch that runs no more lines: write errors for lines left out, its files, and its last status."""
        assert batch.status in (BatchStatus.FINALIZING, BatchStatus.CANCELLING)
        outcome = batch.outcome or BatchStatus.CANCELLED
        if batch.in_progress_at is not None:  # Otherwise its input was never validated, and no line has run.
            if outcome in _NOT_RUN:
                self._record_left_out(batch, *_NOT_RUN[outcome])
            self._write_files(batch, outcome)
        else:
            self._mark_ended(batch, outcome, {})
        self.forget_results(batch.batch_id)

    def forget_results(self, batch_id: str) -> None:
        """Free disk space: results are in the files now.

        A few are deleted at a time, because rollback needs space too.
        """
        while True:
            with self._database.transaction() as connection:
                num_deleted = connection.execute(
                    "DELETE FROM results WHERE rowid IN (SELECT rowid FROM results WHERE batch_id = ? LIMIT ?)",
                    (batch_id, _PAGE),
                ).rowcount
                connection.execute("DELETE FROM attempts WHERE batch_id = ?", (batch_id,))
            if num_deleted < _PAGE:
                break
        self._database.give_back_space()

    def ended_with_results(self) -> list[str]:
        """Return batches whose results were not deleted when they ended."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT DISTINCT batch_id FROM results WHERE batch_id NOT IN "
                f"(SELECT batch_id FROM batches WHERE status IN ({marks(OPEN_STATUSES)}))",
                [status.value for status in OPEN_STATUSES],
            ).fetchall()
        return [row["batch_id"] for row in rows]

    def _record_left_out(self, batch: Batch, code: str, message: str) -> None:
        answered = self.progress(batch.batch_id).answered
        records: list[LineRecord] = []
        with self._files.open(batch.input_file_id, tenant=batch.tenant) as stream:
            for line in InputReader(stream).spans():
                if line.number not in answered:
                    records.append(unanswered(line.number, line.custom_id, code, message))
                if len(records) == _PAGE:
                    self.record(batch.batch_id, records)
                    records = []
        if records:
            self.record(batch.batch_id, records)

    def _write_files(self, batch: Batch, outcome: BatchStatus) -> None:
        with ExitStack() as drafts:
            output, errors = self._files.draft(), self._files.draft()
            drafts.callback(output.discard)
            drafts.callback(errors.discard)
            for record in self._results(batch.batch_id):
                (errors if record.is_error else output).write(record.text.encode("ascii") + b"\n")
            written = {name: draft for name, draft in (("output", output), ("error", errors)) if draft.num_bytes}
            for draft in written.values():
                draft.seal()
            self._mark_ended(batch, outcome, written)

    def _mark_ended(self, batch: Batch, outcome: BatchStatus, written: Mapping[str, UnpublishedFile]) -> None:
        with self._files.publishing(written.values()) as connection:
            for name, draft in written.items():
                filename = f"{batch.batch_id}_{name}.jsonl"
                file = self._files.publish(connection, draft, filename, OUTPUT_PURPOSE, batch.tenant)
                column = f"{name}_file_id"
                connection.execute(
                    f"UPDATE batches SET {column} = ? WHERE batch_id = ?", (file.file_id, batch.batch_id)
                )
            connection.execute(
                f"UPDATE batches SET status = ?, {outcome.value}_at = {NOW_OR_LATER} WHERE batch_id = ?",
                (outcome.value, int(self._clock()), batch.batch_id),
            )

    def _results(self, batch_id: str) -> Iterator[LineRecord]:
        """Yield results in the order of the input."""
        last = 0
        while rows := self._results_after(batch_id, last):
            for row in rows:
                yield LineRecord(row["line"], bool(row["is_error"]), row["text"])
            last = rows[-1]["line"]

    def _results_after(self, batch_id: str, line: int) -> list[sqlite3.Row]:
        with self._database.reading() as connection:
            return connection.execute(
                "SELECT line, is_error, text FROM results WHERE batch_id = ? AND line > ? ORDER BY line LIMIT ?",
                (batch_id, line, _PAGE),
            ).fetchall()
