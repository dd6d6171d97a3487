"""Gives a command the options for the response format. Knows no grammar."""

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from archerfish.cli.field_options import CommandFunction, SectionOption, take_given
from archerfish.cli.prompts import decode_utf8
from archerfish.config.settings import flag_name
from archerfish.errors import ConfigError
from archerfish.request import Structured

_SECTION = "Response format (at most one of these)"
_FILE: dict[str, Any] = {"type": click.Path(path_type=Path), "metavar": "FILE"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "json_schema": {**_FILE, "help": "File with a JSON schema that the answer must match."},
    "json_object": {"is_flag": True, "default": None, "help": "The answer must be a JSON object."},
    "regex": {"metavar": "TEXT", "help": "Regular expression that the whole answer must match."},
    "choice": {
        "metavar": "TEXT",
        "multiple": True,
        "help": "A text that the answer may be; give the option once for each.",
    },
    "grammar": {**_FILE, "help": "File with a grammar of the answer, in Lark's or llama.cpp's format (GBNF)."},
}
_PREFIX = "response_format_"


def response_format_options(command: CommandFunction) -> CommandFunction:
    """Call the command with `response_format`: a Structured, or None if answers are free."""

    @wraps(command)
    def with_response_format(**parameters: Any) -> None:
        given = take_given(parameters, _PREFIX)
        if len(given) > 1:
            flags = " and ".join(map(flag_name, given))
            raise ConfigError(f"{flags} exclude each other: give only one of them")
        command(response_format=_response_format(given), **parameters)

    # The option that is added to a function last comes first in its help.
    decorated: CommandFunction = with_response_format
    for name, shape in reversed(_OPTIONS.items()):
        option: Callable[[CommandFunction], CommandFunction] = click.option(
            flag_name(name), _PREFIX + name, cls=SectionOption, section=_SECTION, **shape
        )
        decorated = option(decorated)
    return decorated


def _response_format(given: dict[str, Any]) -> Structured | None:
    if not given:
        return None
    read: dict[str, Any] = {
        name: _read(name, value) if isinstance(value, Path) else value for name, value in given.items()
    }
    return Structured(**read)


def _read(name: str, path: Path) -> str:
    try:
        text = decode_utf8(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{flag_name(name)}: cannot read {path}: {error.strerror}") from error
    if name == "json_schema":
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{flag_name(name)}: {path} is not valid JSON: {error}") from error
    if not text.strip():
        raise ConfigError(f"{flag_name(name)}: {path} is empty")
    return text
