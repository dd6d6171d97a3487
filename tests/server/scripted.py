"""A service in this process over an engine without a model: tokens come from a script, and steps can be held up."""

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from archerfish.config.settings import EngineConfig, ServerConfig
from archerfish.server.app import create_app
from archerfish.server.service import Service
from tests.server.scripted_engine import BUILDER


class Clock:
    """The real one, except that it can be moved forward."""

    ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


class ScriptedService(NamedTuple):
    service: Service
    client: httpx.AsyncClient
    clock: Clock


@contextlib.asynccontextmanager
async def scripted_service(
    gate: Path | None = None, builder: str = BUILDER, **settings: Any
) -> AsyncIterator[ScriptedService]:
    """Ready to be asked. With a gate, a named pipe, each step waits until somebody has opened it for writing."""
    clock = Clock()
    settings = {"served_model_name": ("scripted",), "peak_flops": 1e9, "peak_bandwidth": 1e9, **settings}
    server = ServerConfig(**settings)
    engine = EngineConfig(model=None if gate is None else str(gate))
    service = Service(engine, server, builder=builder, clock=clock)
    app = create_app(service)
    async with app.router.lifespan_context(app):
        assert service._watcher is not None
        await service._watcher  # It ends when the engine is ready and the tokenizer loaded.
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            yield ScriptedService(service, client, clock)
