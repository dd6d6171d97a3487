"""Gathers the prompts a user gave: arguments, standard input, files, token ids. Knows no tokenizer and no engine."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from archerfish.errors import ConfigError, RequestError

Prompt = str | list[int]

_STANDARD_INPUT = "-"
_HOW_TO_GIVE_ONE = 'give one as an argument ("Once upon a time"), on standard input, or with --file or --token-ids'


def gather_prompts(texts: Sequence[str], file: Path | None, token_ids: Sequence[str]) -> list[Prompt]:
    """Return all prompts in the order of the parameters: at least one, none of them empty.

    Standard input is read where a text is "-", and where no prompt is given and it is not a terminal.
    """
    if not texts and file is None and not token_ids:
        if sys.stdin.isatty():
            raise RequestError(f"there is no prompt: {_HOW_TO_GIVE_ONE}")
        texts = [_STANDARD_INPUT]
    prompts: list[Prompt] = [
        _read_standard_input() if text == _STANDARD_INPUT else _check_argument(text, index)
        for index, text in enumerate(texts, 1)
    ]
    prompts += [] if file is None else _read_file(file)
    prompts += [_parse_token_ids(text) for text in token_ids]
    return prompts


def decode_utf8(data: bytes, origin: str) -> str:
    """Return the bytes as text, or raise a RequestError that says where they are not UTF-8."""
    try:
        # Editors on some systems put a byte order mark before the text.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise RequestError(
            f"{origin} is not UTF-8 text (byte 0x{byte:02x} at offset {error.start}); convert it first"
        ) from error


def _read_standard_input() -> str:
    text = decode_utf8(sys.stdin.buffer.read(), "standard input")
    # The end of the last line belongs to the shell, not to the prompt.
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise RequestError(f"standard input has no prompt: {_HOW_TO_GIVE_ONE}")
    return text


def _check_argument(text: str, number: int) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        # Python decodes invalid bytes to lone surrogates.
        raise RequestError(f"prompt {number} is not UTF-8 text (at character {error.start})") from error
    if not text:
        raise RequestError(f"prompt {number} is empty: {_HOW_TO_GIVE_ONE}")
    return text


def _read_file(path: Path) -> list[Prompt]:
    is_standard_input = str(path) == _STANDARD_INPUT
    origin = "standard input" if is_standard_input else str(path)
    try:
        data = sys.stdin.buffer.read() if is_standard_input else path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--file: cannot read {path}: {error.strerror}") from error
    # splitlines would also split at characters that may be part of a prompt.
    lines = [line.removesuffix("\r") for line in decode_utf8(data, origin).split("\n")]
    numbered = [(f"line {number} of {origin}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise RequestError(f"{origin} has no prompts; write one per line")
    if path.suffix == ".jsonl":
        return [_parse_json_line(line, where) for where, line in numbered]
    return [line for _, line in numbered]


def _parse_json_line(line: str, where: str) -> Prompt:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise RequestError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(record, dict) or "prompt" not in record:
        raise RequestError(f'{where} has no prompt; write {{"prompt": "text"}} or {{"prompt": [1, 2, 3]}}')
    if len(record) > 1:
        unknown = next(name for name in record if name != "prompt")
        raise RequestError(f"{where} has an unknown field {unknown!r}; the only field is prompt")
    prompt = record["prompt"]
    if not isinstance(prompt, (str, list)) or not prompt:
        raise RequestError(f"the prompt on {where} must be a non-empty string or list of token ids")
    return prompt


def _parse_token_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()] or _no_token_ids(text)
    except ValueError:
        return _no_token_ids(text)


def _no_token_ids(text: str) -> list[int]:
    raise RequestError(f"--token-ids {text!r}: write whole numbers with commas between them, such as 1,2,3")
