"""Whether a model fits a device's memory, and how large a cache that leaves: from its config, without its weights."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from archerfish.arch.cost import num_parameters
from archerfish.config.resolve import ResolvedConfig, resolve
from archerfish.config.settings import EngineConfig, flag_name
from archerfish.engine.factory.drafters import PlannedDrafter, choose_drafter, drafter_kind
from archerfish.engine.factory.kernels import planned_kernels
from archerfish.engine.footprint import footprint, free_memory
from archerfish.engine.models import Checkpoint, facts_of, read_checkpoint
from archerfish.errors import ConfigError
from archerfish.execution.memory import CacheSize, MemoryBudget
from archerfish.weights.locate import locate, locate_config

_WEIGHTS = (".safetensors", ".bin", ".pt")
"""How files of weights end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The KV cache that weights and activations leave memory for."""

    num_blocks: int
    num_bytes: int
    """Of the KV cache."""
    num_tokens: int
    """In requests of the longest context."""
    num_requests: float
    """Of the longest context, at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Memory in bytes. Settings are those that an engine would be built with."""

    model: str
    family: str
    num_parameters: int
    device: str
    device_is_here: bool
    """Whether this machine has such a device: a GPU can be planned for elsewhere."""
    dtype: str
    quantization: str
    kv_cache_dtype: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    available: int
    """That the device has free, or that is planned for."""
    gpu_memory_utilization: float | None
    """None where the size of the cache is given."""
    usable: int | None
    """What that leaves of it."""
    kv_cache_memory_bytes: int | None
    weights: int
    """Of the model alone."""
    draft_method: str | None
    draft_weights: int
    activations: int
    """Of the largest step."""
    kv_cache_per_token: float
    """With the drafter's share, like the next."""
    kv_cache_per_request: int
    """Of max_model_len tokens."""
    needed: int
    """Weights, activations, and the cache of one request."""
    fit: Fit | None
    """None if it does not fit."""
    remedy: str | None
    """What would make it fit, in a sentence."""
    suggestion: dict[str, Any] | None
    """The flags of the remedy with their values, if there are any."""


def estimate(config: EngineConfig, available: int | None = None) -> Estimate:
    """For a device with so many bytes free, by default this machine's. Of a hub model only config.json is downloaded.

    A GPU can be planned for without being there. Where there is one, a start measures the largest step instead.
    """
    checkpoint = read_checkpoint(config, partial(locate_config, alone=True))
    resolved = _resolved(config, checkpoint, available)
    kernels = planned_kernels(checkpoint.arch, resolved)
    try:
        drafter = choose_drafter(config, resolved, checkpoint, kernels, _find_drafter)
        drafter_memory = None if drafter is None else drafter.memory
        available = free_memory(resolved.device) if available is None else available
        memory = footprint(checkpoint.arch, resolved, kernels, drafter_memory, available)
    finally:
        if kernels.native is not None:
            kernels.native.team.close()
    return _estimate(config, checkpoint, resolved, memory, drafter)


def _find_drafter(model: str | None, revision: str | None = None) -> Path:
    """A draft model's config says how large it is; of a head only its files do."""
    directory = locate_config(model, revision, alone=True)
    if directory.is_file():
        return locate(model, revision)  # Which says that a drafter is no file.
    is_here = any(path.suffix in _WEIGHTS for path in directory.iterdir())
    if not is_here and drafter_kind(directory) != "draft_model":
        raise ConfigError(
            f"--speculative-config model {model}: a head is as large as its files, which are not here; "
            "download them first, or leave it out"
        )
    return directory


def _resolved(config: EngineConfig, checkpoint: Checkpoint, available: int | None) -> ResolvedConfig:
    facts = facts_of(checkpoint)
    if config.device == "cuda" and not facts.has_cuda:
        if available is None:
            raise ConfigError("--device cuda: torch sees no CUDA device here; say with --memory how much to plan for")
        facts = replace(facts, has_cuda=True)
    return resolve(config, facts)


def _estimate(
    config: EngineConfig,
    checkpoint: Checkpoint,
    resolved: ResolvedConfig,
    memory: MemoryBudget,
    drafter: PlannedDrafter | None,
) -> Estimate:
    size = memory.fit(resolved)
    suggestion = None if size is not None else memory.suggestion(resolved)
    is_shared_out = resolved.kv_cache_memory_bytes is None
    return Estimate(
        model=config.model or checkpoint.directory.name,
        family=checkpoint.arch.family,
        num_parameters=num_parameters(checkpoint.arch),
        device=resolved.device,
        device_is_here=resolved.device == "cpu" or facts_of(checkpoint).has_cuda,
        dtype=resolved.dtype,
        quantization=resolved.quantization,
        kv_cache_dtype=resolved.kv_cache_dtype,
        max_model_len=resolved.max_model_len,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        block_size=resolved.block_size,
        available=memory.available,
        gpu_memory_utilization=resolved.gpu_memory_utilization if is_shared_out else None,
        usable=memory.usable(resolved) if is_shared_out else None,
        kv_cache_memory_bytes=resolved.kv_cache_memory_bytes,
        weights=memory.model_weights,
        draft_method=None if drafter is None else drafter.method,
        draft_weights=memory.drafter.weights,
        activations=memory.activations(resolved),
        kv_cache_per_token=memory.kv_bytes_per_token(resolved),
        kv_cache_per_request=memory.bytes_per_request(resolved),
        needed=memory.needed(resolved),
        fit=None if size is None else _fit(size),
        remedy=None if size is not None else memory.remedy(resolved),
        suggestion=None if suggestion is None else {flag_name(name): value for name, value in suggestion.items()},
    )


def _fit(size: CacheSize) -> Fit:
    return Fit(
        num_blocks=size.num_blocks,
        num_bytes=size.num_bytes,
        num_tokens=size.num_tokens,
        num_requests=size.num_requests,
    )
