"""`archerfish serve`: the service, in this terminal, until it is stopped."""

from dataclasses import replace

import click

from archerfish.cli.engine_options import server_options
from archerfish.cli.field_options import NUMBERS_NOTE, SectionedCommand
from archerfish.config.settings import EngineConfig, ServerConfig
from archerfish.errors import ConfigError


@click.command("serve", cls=SectionedCommand, epilog=NUMBERS_NOTE)
@click.argument("model", required=False)
@server_options
def command(model: str | None, server: ServerConfig, config: EngineConfig) -> None:
    """Serve a model to clients of OpenAI's API.

    MODEL is a directory, a model in the box or a hub name; without one it is perch. Ctrl-C or SIGTERM lets running
    requests finish; a second one does not.
    """
    if model is not None:
        if config.model is not None:
            raise ConfigError("the model was given twice: leave out MODEL or --model")
        config = replace(config, model=model)
    from archerfish.server.serve import serve

    serve(config, server)
