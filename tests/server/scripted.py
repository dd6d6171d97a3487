"""A service in this process over an engine without a model: tokens come from a script, and steps can be held up."""

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx

from archerfish.box import models_in_box
from archerfish.config.settings import EngineConfig, ServerConfig
from archerfish.engine.engine import Engine
from archerfish.execution.scripted import ScriptedExecutor
from archerfish.kvcache.tables import KVTables
from archerfish.scheduling.plan import Plan, StepResult
from archerfish.scheduling.policy import ContinuousBatching
from archerfish.scheduling.scheduler import Limits, Scheduler
from archerfish.server.app import create_app
from archerfish.server.service import Service

NUM_BLOCKS = 256
_LENGTH = 1024


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
async def scripted_service(gate: Path | None = None, **settings: Any) -> AsyncIterator[ScriptedService]:
    """Ready to be asked. With a gate, a named pipe, each step waits until somebody has opened it for writing."""
    clock = Clock()
    server = ServerConfig(served_model_name="scripted", peak_flops=1e9, peak_bandwidth=1e9, **settings)
    engine = EngineConfig(model=None if gate is None else str(gate))
    service = Service(engine, server, builder="tests.server.scripted:build", clock=clock)
    app = create_app(service)
    async with app.router.lifespan_context(app):
        await service._watcher  # It ends when the engine is ready and the tokenizer loaded.
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://scripted", timeout=60) as client:
            yield ScriptedService(service, client, clock)


# -- in the engine's process ------------------------------------------------------------------------------------------


@dataclass
class GatedExecutor:
    gate: Path | None
    scripted: ScriptedExecutor = field(default_factory=ScriptedExecutor)

    def run(self, plan: Plan) -> StepResult:
        if self.gate is not None and plan.chunks:
            self.gate.read_bytes()
        return self.scripted.run(plan)

    def close(self) -> None:
        self.scripted.close()


def build(config: EngineConfig, _on_progress: Any) -> Any:
    """What the engine's process asks of an assembly."""
    limits = Limits(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=_LENGTH)
    tables = KVTables(NUM_BLOCKS, 16, (None,), step_tokens=64, prefix_caching=True)
    executor = GatedExecutor(None if config.model is None else Path(config.model))
    directory = models_in_box()["perch"]
    return SimpleNamespace(
        engine=Engine(Scheduler(limits, tables, ContinuousBatching()), executor, time.monotonic),
        directory=directory,
        tokenizer_directory=directory,
        arch=SimpleNamespace(family="llama", vocab_size=8192, can_extend_positions=False, max_positions=_LENGTH),
        config=SimpleNamespace(max_model_len=_LENGTH, max_num_seqs=8, block_size=16, dtype="float32", device="cpu"),
        cache_size=SimpleNamespace(num_blocks=NUM_BLOCKS),
        recommended={},
        forms=None,
    )
