"""Loads a model with its drafter, and builds executors that run them."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from archerfish.config.resolve import ResolvedConfig
from archerfish.engine.factory.drafters import MakeRuntime, PlannedDrafter
from archerfish.engine.factory.executors import build_executor
from archerfish.engine.factory.kernels import Kernels
from archerfish.engine.factory.speculation import DrafterFactory
from archerfish.engine.models import Checkpoint, OnProgress, build_model
from archerfish.execution.executor import Executor
from archerfish.kvcache.layout import KVLayout, kv_layout
from archerfish.kvcache.storage import KVStorage
from archerfish.machine.memory import trim_heap
from archerfish.models.decoder import Decoder
from archerfish.ops import torch_dtype
from archerfish.sampling.row_grammars import RowGrammars


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model and its drafter with their weights, from which executors are built: one to profile, one to serve."""

    kernels: Kernels
    decoder: Decoder
    layout: KVLayout
    config: ResolvedConfig
    loaded_bytes: int
    """Bytes that the weights take on a GPU; 0 on a CPU, where they are not counted."""
    make_drafter: MakeRuntime | None = None
    aux_layers: tuple[int, ...] = ()
    """Layers of the model whose inputs the drafter reads."""

    def build_executor(self, num_blocks: int, grammars: RowGrammars | None = None) -> Executor:
        """Build an executor with a KV cache of so many blocks."""
        config = self.config
        dtype = torch_dtype(config.kv_cache_dtype)
        storage = KVStorage(self.layout, num_blocks, config.block_size, dtype, config.device, self.kernels.ops)
        drafter = None
        if self.make_drafter is not None:
            drafter = DrafterFactory(partial(self.make_drafter, num_blocks), self.aux_layers)
        return build_executor(self.kernels, self.decoder, storage, config, grammars, drafter)


def load_model(
    checkpoint: Checkpoint,
    config: ResolvedConfig,
    kernels: Kernels,
    drafter: PlannedDrafter | None,
    on_progress: OnProgress,
    texts: Tensor | None,
) -> LoadedModel:
    """Load the weights of a model and its drafter. With texts, quantized weights are calibrated on them."""
    before = _allocated(config.device)
    decoder = build_model(checkpoint, config, kernels, on_progress, texts)
    make_drafter = None if drafter is None else drafter.load(decoder)
    trim_heap()
    return LoadedModel(
        kernels=kernels,
        decoder=decoder,
        layout=kv_layout(checkpoint.arch),
        config=config,
        loaded_bytes=_allocated(config.device) - before,
        make_drafter=make_drafter,
        aux_layers=() if drafter is None else drafter.aux_layers,
    )


def _allocated(device: str) -> int:
    return torch.cuda.memory_allocated() if device == "cuda" else 0
