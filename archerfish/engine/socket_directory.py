"""The directory of a service's local sockets: only its owner may look into it, and it is removed with the service.

A service that is killed cannot remove its own. The next one does: each holds a lock on its directory for as long as it
lives, and the lock vanishes with the process, so a directory without one is a leftover.
"""

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_PREFIX = "archerfish-"
_LOCK = "lock"
_LONGEST_MAKING = 3600.0
"""Seconds after which a directory without its final name was left by a service that was killed as it made it."""


class SocketDirectory:
    """A new directory below the system's temporary one, after leftovers of killed services were removed."""

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        _sweep(parent)
        # mkdtemp makes it readable by its owner alone. It gets its name once it is locked: swept is what has that name.
        new_directory = Path(tempfile.mkdtemp(prefix="." + _PREFIX, dir=parent))
        self._lock = os.open(new_directory / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = new_directory.rename(parent / new_directory.name.removeprefix("."))

    def remove(self) -> None:
        """Remove it with everything in it. A second time nothing happens."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _sweep(parent: Path) -> None:
    """Remove directories of services that are gone."""
    for unnamed in parent.glob("." + _PREFIX + "*"):
        with suppress(OSError):
            about = unnamed.lstat()
            if about.st_uid == os.getuid() and time.time() - about.st_mtime > _LONGEST_MAKING:
                shutil.rmtree(unnamed, ignore_errors=True)
    for directory in parent.glob(_PREFIX + "*"):
        with suppress(OSError):  # Another service may sweep at the same moment, and other users' are not ours.
            if directory.is_symlink() or directory.stat().st_uid != os.getuid():
                continue
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock)
