"""What was measured on this machine and spares the next start some work: JSON files, by default in the user's cache.

Knows no subject. Whatever is wrong with a file, the answer is that nothing was kept.
"""

import json
import os
from pathlib import Path
from typing import Any

from archerfish.console import logger


def cache_directory() -> Path:
    """Where a user's programs keep what they can do without."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "archerfish"


class Kept:
    """Values by key, all measured with one version of the code they are about."""

    def __init__(self, subject: str, version: str, directory: Path | None = None) -> None:
        self.path = (directory or cache_directory()) / f"{subject}.json"
        self._version = version
        self._entries: dict[str, Any] | None = None
        """As last read; None before that."""

    def find(self, key: str) -> Any | None:
        """JSON that was kept, by any process up to the first call; None if there is none."""
        if self._entries is None:
            self._entries = self._read()
        return self._entries.get(key)

    def keep(self, key: str, value: Any) -> None:
        """Beside whatever other processes kept meanwhile. A directory that cannot be written to is told of once."""
        self._entries = {**self._read(), key: value}
        text = json.dumps({"version": self._version, "entries": self._entries}, indent=1, sort_keys=True)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            written = self.path.with_name(f"{self.path.name}.{os.getpid()}")
            written.write_text(text)
            written.replace(self.path)  # At once: nobody ever reads half a file.
        except OSError as error:
            logger.info("%s cannot be written (%s): it is measured again at the next start", self.path, error.strerror)

    def _read(self) -> dict[str, Any]:
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            logger.info("%s is ignored: it cannot be read (%s)", self.path, error)
            return {}
        try:
            found = json.loads(text)
            version, entries = found["version"], found["entries"]
            entries.items()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            logger.info("%s is ignored: it is damaged", self.path)
            return {}
        if version != self._version:
            logger.info("%s is ignored: it was measured with other kernels", self.path)
            return {}
        return dict(entries)
