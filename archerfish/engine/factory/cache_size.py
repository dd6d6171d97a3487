"""Sizes the KV cache: by estimates on a CPU; on a GPU by what a profile run of the largest step leaves.

The memory that the step took is stored for later starts with the same model and settings, which then run nothing.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from archerfish.config.resolve import ResolvedConfig
from archerfish.console import logger
from archerfish.disk_cache import DiskCache
from archerfish.engine.factory.loaded_model import LoadedModel
from archerfish.execution.executor import Executor
from archerfish.execution.memory import CacheSize, MeasuredMemory, MemoryBudget
from archerfish.execution.profile_run import CudaMemory, MemoryReader, ProfileSteps, measure_peak, profile_steps
from archerfish.request import SamplingParams

_MOST_THREADS = 16
"""Threads that compile kernels: a model has hardly more kernels that take long."""
_DRAWN_BY = ("temperature", "top_k", "top_p", "min_p")
"""Sampling parameters that are applied on the GPU."""
_DECISIVE = (
    *("dtype", "quantization", "quantization_group", "quantization_zero_points", "kv_cache_dtype", "block_size"),
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens"),
)
"""Settings that the memory of a step depends on."""


@dataclass(frozen=True, slots=True)
class ProfileSetup:
    """What a profile run needs."""

    build: Callable[[int], Executor]
    """Builds an executor with a cache of so many blocks."""
    compile_only: Callable[[int], AbstractContextManager[Any]]
    """Within it, steps are not run: their kernels are compiled, by so many threads."""
    reader: MemoryReader
    cache: DiskCache
    device: str
    """The device's name, and what else the memory of a step depends on apart from model and settings."""


def size_cache(
    memory: MemoryBudget, config: ResolvedConfig, model: LoadedModel, recommended: Mapping[str, Any]
) -> CacheSize:
    """Return the size of the KV cache. Kernels that a profile run compiles need not be compiled again."""
    if model.kernels.triton is None or config.device != "cuda":
        return memory.size_cache(config)
    return measured_size(memory, config, _profile_setup(model.build_executor), model.loaded_bytes, recommended)


def _profile_setup(build: Callable[[int], Executor]) -> ProfileSetup:
    from archerfish.ops.triton import runtime

    device = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    # Stored with the kernels that the run compiled: once these are deleted, the run is repeated.
    cache = DiskCache("archerfish-steps", runtime.kernel_version(), runtime.compile_cache_directory())
    return ProfileSetup(build, runtime.compile_only, CudaMemory(), cache, device)


def measured_size(
    memory: MemoryBudget, config: ResolvedConfig, setup: ProfileSetup, weights: int, recommended: Mapping[str, Any]
) -> CacheSize:
    """Return the size that the measured memory leaves for the cache, or raise a DoesNotFit with the measured numbers.

    `weights` are the bytes that loading them took, `recommended` are the sampling parameters of most requests.
    """
    key = _key(memory, config, setup.device)
    activations = setup.cache.get(key)
    if not isinstance(activations, int):
        params = SamplingParams(**{name: recommended[name] for name in _DRAWN_BY if name in recommended})
        steps = profile_steps(config, len(memory.layout.windows), params)
        with as_does_not_fit(memory, config, weights):
            taken = _run_profile(setup, steps, config.threads) - steps.num_blocks * memory.block_bytes(config)
        # Captured steps have memory of their own, as much as those that are launched kernel by kernel.
        activations = 2 * taken
        logger.info("the largest step was tried, and takes %.2f GB", taken / 1e9)
        setup.cache.put(key, activations)
    return replace(memory, measured=MeasuredMemory(weights, activations, config)).size_cache(config)


@contextmanager
def as_does_not_fit(memory: MemoryBudget, config: ResolvedConfig, weights: int | None = None) -> Iterator[None]:
    """Report a device that runs out of memory as a model that does not fit."""
    try:
        yield
    except torch.OutOfMemoryError:
        weights = memory.weights if weights is None else weights
        # How much more it needed is unknown: all the memory there was is the lower bound.
        measured = MeasuredMemory(weights, max(0, memory.available - weights), config)
        raise replace(memory, measured=measured).refusal(config) from None


def _run_profile(setup: ProfileSetup, steps: ProfileSteps, num_cores: int) -> int:
    """Compile the kernels of all steps and run the largest. Return its bytes, with those of the small cache."""

    def run() -> None:
        executor = setup.build(steps.num_blocks)
        with setup.compile_only(min(num_cores, _MOST_THREADS)):
            for plan in (*steps.plans, steps.largest):
                executor.launch(plan)
        executor.launch(steps.largest).result()
        executor.close()

    taken = measure_peak(run, setup.reader)
    torch.cuda.empty_cache()
    return taken


def _key(memory: MemoryBudget, config: ResolvedConfig, device: str) -> str:
    settings = {name: getattr(config, name) for name in _DECISIVE}
    return hashlib.sha256(f"{memory.arch!r} {settings!r} {device}".encode()).hexdigest()
