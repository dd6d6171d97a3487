"""Gives a command the settings of engine and service as options, and --config."""

import os
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from archerfish.cli.field_options import (
    ENGINE_SECTION,
    CommandFunction,
    SectionOption,
    field_options,
    take_given,
)
from archerfish.config.load import load_config
from archerfish.config.settings import EngineConfig, ServerConfig

if TYPE_CHECKING:
    from archerfish.engine.llm import LLM

_RECORDS: dict[str, tuple[type, str]] = {
    "config": (EngineConfig, ENGINE_SECTION),
    "server": (ServerConfig, "Server"),
    "replies": (ServerConfig, "Replies"),
}
"""Records that a command can be called with, and the headings of their options."""
_LEFT_OUT = {
    "replies": tuple(
        field.name
        for field in fields(ServerConfig)
        if field.name not in ("served_model_name", "tool_call_format", "reasoning_parser")
    )
}
"""Fields that have no option."""
_TAKE_MANY = ("served_model_name", "api_key")
"""Fields whose option takes all values up to the next option."""


def engine_options(command: CommandFunction) -> CommandFunction:
    """Call the command with `config`: an EngineConfig from file, environment and flags."""
    return _settings_options(command, "config")


def server_options(command: CommandFunction) -> CommandFunction:
    """Call the command with `config`, as engine_options does, and with `server`: a ServerConfig."""
    return _settings_options(command, "server", "config")


def batch_options(command: CommandFunction) -> CommandFunction:
    """Call the command with `config`, and with `replies`: a ServerConfig with options for the format of replies."""
    return _settings_options(command, "replies", "config")


def _settings_options(command: CommandFunction, *names: str) -> CommandFunction:
    @click.option(
        "--config",
        "config_file",
        cls=SectionOption,
        section=_RECORDS[names[-1]][1],
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="TOML file of settings, named as here. Environment variables such as ARCHERFISH_MAX_MODEL_LEN=4K "
        "override it; flags override both.",
    )
    @wraps(command)
    def with_settings(config_file: Path | None, **parameters: Any) -> None:
        for name in names:
            given = take_given(parameters, f"{name}_")
            parameters[name] = load_config(_RECORDS[name][0], given, config_file, os.environ, _notify)
        command(**parameters)

    wrapped: CommandFunction = with_settings
    for name in reversed(names):
        record, section = _RECORDS[name]
        left_out = _LEFT_OUT.get(name, ())
        options = field_options(record, section=section, prefix=f"{name}_", left_out=left_out, take_many=_TAKE_MANY)
        wrapped = options(wrapped)
    return wrapped


def _notify(notice: str) -> None:
    click.echo(notice, err=True)


def open_model(config: EngineConfig) -> "LLM":
    """Return the loaded model of these settings."""
    # Imports numpy and more, which --help and most errors do without.
    from archerfish.engine.llm import LLM

    return LLM(**{field.name: getattr(config, field.name) for field in fields(config)})
