"""Reads the small text files of a model directory and says clearly what is wrong with them. Knows no file's meaning."""

import json
from pathlib import Path
from typing import Any

from archerfish.errors import ModelError

_FETCH_AGAIN = "download or copy the file again"


def read_text(path: Path, failure: type[ModelError] = ModelError) -> str | None:
    """The text of a file, or None if there is no such file. What is wrong with it is raised as `failure`."""
    try:
        return path.read_bytes().decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise failure(f"{path} cannot be read ({error.strerror}): make it a file you may read") from error
    except UnicodeDecodeError as error:
        raise failure(f"{path} is not UTF-8 text (byte {error.start} cannot be decoded): {_FETCH_AGAIN}") from error


def parse_json(path: Path, text: str, failure: type[ModelError] = ModelError) -> Any:
    """What the text of a file means as JSON."""
    try:
        return json.loads(text)
    # Numbers of thousands of digits and very deep nesting fail in ways of their own.
    except (ValueError, RecursionError) as error:
        place = f"line {error.lineno}, column {error.colno}: " if isinstance(error, json.JSONDecodeError) else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise failure(f"{path} is not valid JSON ({place}{reason}): {_FETCH_AGAIN}") from error


def read_json_object(path: Path, failure: type[ModelError] = ModelError) -> dict[str, Any] | None:
    """The JSON object in a file, or None if there is no such file."""
    text = read_text(path, failure)
    if text is None:
        return None
    value = parse_json(path, text, failure)
    if not isinstance(value, dict):
        raise failure(f"{path} must hold a JSON object, not a {type(value).__name__}: {_FETCH_AGAIN}")
    return value
