"""The service as a process of its own, over an engine without a model: it starts fast, and can be killed often."""

from typing import Any

import click

from archerfish.cli.engine_options import server_options
from archerfish.config.settings import EngineConfig, ServerConfig
from archerfish.server import serve
from archerfish.server.service import Service
from tests.server.scripted_engine import BUILDER

COMMAND = "from tests.server.scripted_process import command; command()"


class ColdService(Service):
    """Is ready without its preprocessing workers, which start when they are needed."""

    def __init__(self, *arguments: Any, warms_up: bool, **options: Any) -> None:
        assert warms_up
        super().__init__(*arguments, warms_up=False, **options)


@click.command()
@click.argument("name", type=click.Choice(["serve"]))
@server_options
def command(name: str, server: ServerConfig, config: EngineConfig) -> None:
    """`archerfish serve`, though nothing that is said of the engine means anything here."""
    del name, config
    serve.Service = ColdService  # type: ignore[misc]
    serve.serve(EngineConfig(), server, builder=BUILDER)
