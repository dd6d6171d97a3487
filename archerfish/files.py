"""Reads the small text files of a model directory, with errors that name the file and what is wrong with it."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from archerfish.errors import ModelError

_FETCH_AGAIN = "download or copy the file again"
_MOST_BYTES = 1 << 30
"""Most bytes of a text file: many times the largest vocabulary."""
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_regular(path: Path, failure: type[ModelError] = ModelError) -> int:
    """Refuse anything but a regular file, and return the size of one.

    Links are followed, as in the hub's cache. But a pipe would block, and a device could be read without end.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise  # Most files may be missing: callers decide what that means.
    except OSError as error:
        raise failure(f"{path} cannot be read ({error.strerror}): make it a file you may read") from error
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is not None:
        raise failure(f"{path} cannot be read (it is {kind}): make it a regular file, or a link to one")
    return status.st_size


def read_text(path: Path, failure: type[ModelError] = ModelError) -> str | None:
    """Return the text of a file, or None if there is no such file. Other problems are raised as `failure`."""
    try:
        size = check_regular(path, failure)
        if size > _MOST_BYTES:
            raise failure(f"{path} has {size} bytes, and no such file has more than {_MOST_BYTES}: {_FETCH_AGAIN}")
        # Files that the kernel generates (/proc) have a size of 0, and may not end.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            return (file.read(size) or b"").decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise failure(f"{path} cannot be read ({error.strerror}): make it a file you may read") from error
    except UnicodeDecodeError as error:
        raise failure(f"{path} is not UTF-8 text (byte {error.start} cannot be decoded): {_FETCH_AGAIN}") from error


def parse_json(path: Path, text: str, failure: type[ModelError] = ModelError) -> Any:
    """Parse the text of a file as JSON."""
    try:
        return json.loads(text)
    # Numbers of thousands of digits and very deep nesting fail with other exceptions.
    except (ValueError, RecursionError) as error:
        where = f"line {error.lineno}, column {error.colno}: " if isinstance(error, json.JSONDecodeError) else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise failure(f"{path} is not valid JSON ({where}{reason}): {_FETCH_AGAIN}") from error


def read_json_object(path: Path, failure: type[ModelError] = ModelError) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if there is no such file."""
    text = read_text(path, failure)
    if text is None:
        return None
    value = parse_json(path, text, failure)
    if not isinstance(value, dict):
        raise failure(f"{path} must hold a JSON object, not a {type(value).__name__}: {_FETCH_AGAIN}")
    return value
