"""`archerfish serve`: the service, in this terminal, until it is stopped."""

from dataclasses import replace
from pathlib import Path

import click

from archerfish.box import models_in_box
from archerfish.cli.engine_options import server_options
from archerfish.cli.field_options import NUMBERS_NOTE, SectionedCommand
from archerfish.config.settings import EngineConfig, ServerConfig
from archerfish.errors import ConfigError


@click.command("serve", cls=SectionedCommand, epilog=NUMBERS_NOTE)
@click.argument("model", required=False)
@server_options
def command(model: str | None, server: ServerConfig, config: EngineConfig) -> None:
    """Serve a model over an OpenAI-compatible API.

    MODEL is a directory, a bundled model or a hub name; without one it is perch. Ctrl-C or SIGTERM lets running
    requests finish; a second one cancels them.
    """
    if model is not None:
        if config.model is not None:
            raise ConfigError("the model was given twice: leave out MODEL or --model")
        config = replace(config, model=model)
    if config.model is None:
        _check_last("--served-model-name", server.served_model_name)
        _check_last("--api-key", server.api_key, shown="the last value")
    from archerfish.server.serve import serve

    serve(config, server)


def _check_last(flag: str, values: tuple[str, ...], shown: str | None = None) -> None:
    """Refuse a model behind an option of several values, which takes it as one more value.

    `shown` is what the message shows in place of a secret value.
    """
    last = values[-1] if len(values) > 1 else ""
    if "/" in last or last in models_in_box() or (last and Path(last).is_dir()):
        raise ConfigError(
            f"{flag} takes all values that follow, also {shown or repr(last)}, which looks like a model: put the model "
            "before the option"
        )
