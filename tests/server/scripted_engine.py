"""An engine without a model: what its process imports, and nothing more, so that it starts fast."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from archerfish.box import models_in_box
from archerfish.config.settings import EngineConfig
from archerfish.config.speculation import NON_SPECULATIVE_METHODS
from archerfish.engine.engine import Engine
from archerfish.execution.scripted import ScriptedExecutor, ScriptedStep
from archerfish.kvcache.tables import KVTables
from archerfish.scheduling.plan import Plan
from archerfish.scheduling.policy import ContinuousBatching
from archerfish.scheduling.scheduler import Limits, Scheduler

BUILDER = "tests.server.scripted_engine:build"
NUM_BLOCKS = 256
_LENGTH = 1024


class GatedExecutor:
    """Without a gate it is given steps ahead, as a device is. With one, each waits to be let through by itself."""

    def __init__(self, gate: Path | None) -> None:
        self.max_in_flight = 2 if gate is None else 1
        self._gate = gate
        self._scripted = ScriptedExecutor(max_in_flight=self.max_in_flight)

    def launch(self, plan: Plan) -> ScriptedStep:
        if self._gate is not None:
            self._gate.read_bytes()
        return self._scripted.launch(plan)

    def close(self) -> None:
        self._scripted.close()


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
        arch=SimpleNamespace(
            family="llama", vocab_size=8192, hidden_size=64, can_extend_positions=False, max_positions=_LENGTH
        ),
        info=None,
        embedding_sizes=(),
        config=SimpleNamespace(
            max_model_len=_LENGTH,
            max_num_seqs=8,
            block_size=16,
            dtype="float32",
            device="cpu",
        ),
        speculation_methods=NON_SPECULATIVE_METHODS,
        cache_size=SimpleNamespace(num_blocks=NUM_BLOCKS),
        recommended={},
        grammars=None,
    )
