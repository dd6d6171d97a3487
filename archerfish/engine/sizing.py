"""How large the KV cache of a GPU is made: a small one first, to try the largest step with; then what is left.

What the step took is kept for the next start with the same model and settings, which then tries nothing.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from archerfish.config.resolve import ResolvedConfig
from archerfish.console import logger
from archerfish.disk_cache import DiskCache
from archerfish.execution.executor import Executor
from archerfish.execution.memory import CacheSize, MeasuredMemory, MemoryBudget
from archerfish.execution.profile_run import MemoryReader, ProfileSteps, measure_peak, profile_steps
from archerfish.request import SamplingParams

_MOST_THREADS = 16
"""That compile: a model has hardly more kernels that take long."""
_DRAWN_BY = ("temperature", "top_k", "top_p", "min_p")
"""Sampling parameters that the host has no say in."""
_DECISIVE = (
    *("dtype", "quantization", "quantization_group", "quantization_zero_points", "kv_cache_dtype", "block_size"),
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens"),
)
"""Settings that the memory of a step depends on."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a rehearsal needs of an engine that is not there yet."""

    build: Callable[[int], Executor]
    """With a cache of so many blocks."""
    rehearse: Callable[[int], Any]
    """Enter it with a number of threads, and steps are not run: their kernels are compiled."""
    reader: MemoryReader
    cache: DiskCache
    where: str
    """The device, by its name, and whatever else the memory of a step depends on beside model and settings."""


def measured_size(
    memory: MemoryBudget, config: ResolvedConfig, stage: Stage, weights: int, recommended: Mapping[str, Any]
) -> CacheSize:
    """What the budget leaves for the cache, by what was measured; a DoesNotFit tells those numbers.

    `weights` are the bytes that loading them took, `recommended` are sampling parameters of most requests to come.
    """
    key = _key(memory, config, stage.where)
    activations = stage.cache.get(key)
    if not isinstance(activations, int):
        params = SamplingParams(**{name: recommended[name] for name in _DRAWN_BY if name in recommended})
        steps = profile_steps(config, len(memory.layout.windows), params)
        with refusing(memory, config, weights):
            taken = _rehearse(stage, steps, config.threads) - steps.num_blocks * memory.block_bytes(config)
        # Captured steps have memory of their own, as much as those that are launched kernel by kernel.
        activations = 2 * taken
        logger.info("the largest step was tried, and takes %.2f GB", taken / 1e9)
        stage.cache.put(key, activations)
    return replace(memory, measured=MeasuredMemory(weights, activations, config)).size_cache(config)


@contextmanager
def refusing(memory: MemoryBudget, config: ResolvedConfig, weights: int | None = None) -> Iterator[None]:
    """A device without room is told of as a model that does not fit."""
    try:
        yield
    except torch.OutOfMemoryError:
        weights = memory.weights if weights is None else weights
        # How much more it needed is unknown: all the memory there was is the lower bound.
        measured = MeasuredMemory(weights, max(0, memory.available - weights), config)
        raise replace(memory, measured=measured).refusal(config) from None


def _rehearse(stage: Stage, steps: ProfileSteps, num_cores: int) -> int:
    """Compile what steps need, run the largest; the bytes it takes, those of the small cache among them."""

    def run() -> None:
        executor = stage.build(steps.num_blocks)
        with stage.rehearse(min(num_cores, _MOST_THREADS)):
            for plan in (*steps.plans, steps.largest):
                executor.launch(plan)
        executor.launch(steps.largest).result()
        executor.close()

    taken = measure_peak(run, stage.reader)
    torch.cuda.empty_cache()
    return taken


def _key(memory: MemoryBudget, config: ResolvedConfig, where: str) -> str:
    settings = {name: getattr(config, name) for name in _DECISIVE}
    return hashlib.sha256(f"{memory.arch!r} {settings!r} {where}".encode()).hexdigest()
