"""Reads a file of prompts for a model to answer. Knows no tokenizer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archerfish.errors import ConfigError

Prompt = str | list[Mapping[str, Any]]
"""A text to continue, or the messages of a conversation to answer."""

_LINE_FORMAT = 'write {"prompt": "text"} or {"messages": [{"role": "user", "content": "text"}]}'


def read_prompts(path: Path) -> list[Prompt]:
    """Return at least two prompts, or raise a ConfigError that names the line that is wrong."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"--prompts: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--prompts: {path} is not UTF-8 text (byte {error.start}); convert it first") from error
    # splitlines would also split at characters that may be part of a prompt.
    numbered = [(number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    prompts: list[Prompt] = [line for _, line in numbered]
    if path.suffix == ".jsonl":
        prompts = [_parse(line, f"line {number} of {path}") for number, line in numbered]
    if len(set(map(repr, prompts))) < 2:
        raise ConfigError(
            f"--prompts: {path} has fewer than two prompts: one is needed to train on and one to measure with; add some"
        )
    return prompts


def _parse(line: str, where: str) -> Prompt:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(record, dict) or len(record) != 1 or not set(record) <= {"prompt", "messages"}:
        raise ConfigError(f"{where} must have a prompt or messages, and nothing else; {_LINE_FORMAT}")
    prompt = record.get("prompt")
    if isinstance(prompt, str) and prompt:
        return prompt
    messages = record.get("messages")
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        return messages
    raise ConfigError(f"{where} has an empty prompt or one of the wrong type; {_LINE_FORMAT}")
