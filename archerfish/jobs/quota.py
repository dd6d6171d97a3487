"""Limits on the files, bytes and open batches of one tenant."""

import sqlite3
from dataclasses import dataclass

from archerfish.errors import QuotaExceeded, TooManyBatches
from archerfish.jobs.database import marks
from archerfish.jobs.records import OPEN_STATUSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Limits of each tenant. Outputs of batches count, but are never refused: no answer is discarded."""

    max_open_batches: int = 100
    max_files: int = 10_000
    max_bytes: int = 32 * 1024**3

    def check_file(self, connection: sqlite3.Connection, tenant: str, num_bytes: int) -> None:
        """Refuse a file of this size if it would exceed a limit."""
        row = connection.execute(
            "SELECT COUNT(*) AS number, COALESCE(SUM(num_bytes), 0) AS bytes FROM files WHERE tenant = ?", (tenant,)
        ).fetchone()
        if row["number"] >= self.max_files:
            raise QuotaExceeded(
                f"{row['number']:,} files are stored, the limit of --max-files {self.max_files:,}; delete some first"
            )
        if row["bytes"] + num_bytes > self.max_bytes or row["bytes"] >= self.max_bytes:
            raise QuotaExceeded(
                f"the stored files take {row['bytes']:,} bytes; the limit is --max-stored-bytes "
                f"{self.max_bytes:,}; delete some first"
            )

    def check_batch(self, connection: sqlite3.Connection, tenant: str) -> None:
        """Refuse another batch if there are too many, or no space is left for its output."""
        [number] = connection.execute(
            f"SELECT COUNT(*) FROM batches WHERE tenant = ? AND status IN ({marks(OPEN_STATUSES)})",
            (tenant, *(status.value for status in OPEN_STATUSES)),
        ).fetchone()
        if number >= self.max_open_batches:
            raise TooManyBatches(
                f"{number:,} batches are open, the limit of --max-open-batches {self.max_open_batches:,}; "
                "wait for one, or cancel one"
            )
        self.check_file(connection, tenant, 0)
