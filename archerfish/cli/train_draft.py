"""`archerfish train-draft`: a drafter for a model, trained on what the model writes."""

import os
from dataclasses import fields
from typing import Any

import click

from archerfish.cli.field_options import NUMBERS_NOTE, SectionedCommand, field_options, take_given
from archerfish.compress.drafters.options import DrafterOptions
from archerfish.config.load import load_config, read_flags
from archerfish.config.settings import EngineConfig, flag_name
from archerfish.console import enable_logging
from archerfish.errors import ConfigError

_SETTINGS = ("model", "revision", "load_format", "hf_overrides", "device", "threads")
"""Engine settings that describe the target; those of serving do not matter here."""
_OTHER_SETTINGS = tuple(field.name for field in fields(EngineConfig) if field.name not in _SETTINGS)
_NEEDED = ("method", "output")


@click.command("train-draft", cls=SectionedCommand, epilog=NUMBERS_NOTE)
@field_options(DrafterOptions, section="Training", prefix="drafter_")
@field_options(EngineConfig, section="Model", prefix="config_", left_out=_OTHER_SETTINGS)
def command(**settings: Any) -> None:
    """Train a drafter for speculative decoding on a model's output.

    The model generates texts, and the drafter learns the model's distributions over them. The loss is the share of
    draft tokens that would be rejected. Ctrl-C stops the training at any time; the same command resumes it.
    """
    given = read_flags(DrafterOptions, take_given(settings, "drafter_"))
    for name in _NEEDED:
        if name not in given:
            raise ConfigError(f"train-draft needs {flag_name(name)}")
    options = DrafterOptions(**given)
    config = load_config(EngineConfig, take_given(settings, "config_"), None, os.environ)
    enable_logging()
    from archerfish.compress.drafters.train import train_drafter

    trained = train_drafter(config, options)
    if trained is None:
        click.echo(f"training stopped; run the same command to resume from {options.output}")
        return
    first, last = trained.score.depths[0], trained.score.depths[-1]
    click.echo(
        f"{trained.directory}: {first.agreement:.1%} of first draft tokens are accepted greedy, "
        f"{first.acceptance:.1%} at temperature 1; a step that verifies {options.depths} generates "
        f"{last.greedy_tokens:.2f} and {last.sampled_tokens:.2f} tokens"
    )
