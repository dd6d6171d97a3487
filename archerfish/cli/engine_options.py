"""Gives a command the engine's settings as options, and --config."""

import os
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from archerfish.cli.field_options import CommandFunction, SectionOption, field_options, take_given
from archerfish.config.load import load_config
from archerfish.config.settings import EngineConfig

if TYPE_CHECKING:
    from archerfish.engine.llm import LLM

_SECTION = "Engine"
_PREFIX = "engine_"


def engine_options(command: CommandFunction) -> CommandFunction:
    """The command is called with `config`: an EngineConfig from file, environment and flags."""

    @click.option(
        "--config",
        "config_file",
        cls=SectionOption,
        section=_SECTION,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="TOML file of engine settings, named as here. Environment variables such as ARCHERFISH_MAX_MODEL_LEN=4K "
        "override it; flags override both.",
    )
    @wraps(command)
    def with_config(config_file: Path | None, **parameters: Any) -> None:
        config = load_config(take_given(parameters, _PREFIX), config_file, os.environ)
        command(config=config, **parameters)

    return field_options(EngineConfig, section=_SECTION, prefix=_PREFIX)(with_config)


def open_model(config: EngineConfig) -> "LLM":
    """The model of these settings, loaded."""
    # Imports torch, which help and most mistakes can do without.
    from archerfish.engine.llm import LLM

    return LLM(**{field.name: getattr(config, field.name) for field in fields(config)})
