"""Restricts a data directory, which contains prompts and answers, to the user who runs the service."""

import os
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from archerfish.console import logger

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700


def private_directory(path: Path, own_names: Collection[str] | None = None) -> None:
    """Create the directory if there is none, and deny access to other users.

    With `own_names`, an existing directory that contains anything else is left open: other users may need it.
    """
    path.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    strangers = [] if own_names is None else [entry.name for entry in path.iterdir() if entry.name not in own_names]
    if not strangers:
        close_to_others(path)
    elif _is_open_to_others(path):
        logger.warning(
            "other users can look into %s, which also holds %s; the files and batches in it are closed to them",
            path,
            strangers[0],
        )


def private_file(path: Path) -> None:
    """Create an empty file if there is none, and deny access to other users."""
    try:
        os.close(create_private(path))
    except FileExistsError:
        # Not even opened: closing it would release every lock that this process has on it.
        close_to_others(path)


def create_private(path: Path) -> int:
    """Create a file that only this user can read, and return its descriptor for writing."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), _FILE_MODE)


def close_to_others(path: Path) -> None:
    """Deny other users access to a file or directory, if it exists."""
    with suppress(FileNotFoundError):  # SQLite removes its log when the last process closes it.
        if not _is_open_to_others(path):
            return
        mode = stat.S_IMODE(path.stat().st_mode)
        try:
            path.chmod(mode & ~_OTHERS)
        except PermissionError:
            logger.warning("other users can read %s (mode %o), and only its owner can change that", path, mode)
        else:
            logger.info("closed %s to other users: its mode was %o", path, mode)


def _is_open_to_others(path: Path) -> bool:
    return os.name == "posix" and bool(path.stat().st_mode & _OTHERS)
