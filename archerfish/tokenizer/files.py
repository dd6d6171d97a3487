"""Reads the files of a tokenizer directory: a problem with one is a TokenizerError, and most may be missing."""

from pathlib import Path
from typing import Any

from archerfish import files
from archerfish.errors import TokenizerError


def read_text(path: Path) -> str | None:
    """Return the text of a file, or None if there is no such file."""
    return files.read_text(path, TokenizerError)


def parse_json(path: Path, text: str) -> Any:
    """Parse the text of a file as JSON."""
    return files.parse_json(path, text, TokenizerError)


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is no such file."""
    return files.read_json_object(path, TokenizerError) or {}
