"""Reads the small files of a tokenizer directory and says clearly what is wrong with them. Knows no tokenizer."""

import json
from pathlib import Path
from typing import Any

from archerfish.errors import TokenizerError

_FETCH_AGAIN = "download or copy the file again"


def read_text(path: Path) -> str | None:
    """The text of a file, or None if there is no such file."""
    try:
        return path.read_bytes().decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read ({error.strerror}): make it a file you may read") from error
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8 text (byte {error.start} cannot be decoded): {_FETCH_AGAIN}"
        raise TokenizerError(message) from error


def parse_json(path: Path, text: str) -> Any:
    """What the text of a file means as JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise TokenizerError(f"{path} is not valid JSON ({reason}): {_FETCH_AGAIN}") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file."""
    text = read_text(path)
    if text is None:
        return {}
    value = parse_json(path, text)
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} must hold a JSON object, not a {type(value).__name__}: {_FETCH_AGAIN}")
    return value
