"""Stores measurements of this machine as JSON files in the user's cache directory, to spare later starts the work.

A file that is missing, damaged or of another version counts as empty.
"""

import json
import os
from pathlib import Path
from typing import Any

from archerfish.console import logger


def cache_directory() -> Path:
    """Return the directory of this package within the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "archerfish"


class DiskCache:
    """Values by key, all measured with one version of the code that they are about."""

    def __init__(self, subject: str, version: str, directory: Path | None = None) -> None:
        self.path = (directory or cache_directory()) / f"{subject}.json"
        self._version = version
        self._entries: dict[str, Any] | None = None
        """Entries as last read; None before the first read."""

    def get(self, key: str) -> Any | None:
        """Return the JSON value of a key as of the first call, or None."""
        if self._entries is None:
            self._entries = self._read()
        return self._entries.get(key)

    def put(self, key: str, value: Any) -> None:
        """Store a value next to what other processes have stored. A failed write is logged, not raised."""
        self._entries = {**self._read(), key: value}
        text = json.dumps({"version": self._version, "entries": self._entries}, indent=1, sort_keys=True)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}")
            temporary.write_text(text)
            temporary.replace(self.path)  # Atomic: no process ever reads half a file.
        except OSError as error:
            logger.info("%s cannot be written (%s): the next start measures again", self.path, error.strerror)

    def _read(self) -> dict[str, Any]:
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            logger.info("%s is ignored: it cannot be read (%s)", self.path, error)
            return {}
        try:
            document = json.loads(text)
            version, entries = document["version"], document["entries"]
            entries.items()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            logger.info("%s is ignored: it is damaged", self.path)
            return {}
        if version != self._version:
            logger.info("%s is ignored: it was measured with another version of the kernels", self.path)
            return {}
        return dict(entries)
