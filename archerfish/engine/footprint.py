"""The memory that a model takes with its settings, before any of it is loaded: what starts and estimates share."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from archerfish.arch.arch import Arch
from archerfish.config.resolve import ResolvedConfig
from archerfish.config.settings import Quantization
from archerfish.engine.factory.kernels import Kernels
from archerfish.engine.models import mean_weight_bytes, weight_format
from archerfish.execution.memory import DrafterMemory, MemoryBudget, MemoryOption
from archerfish.kvcache.layout import kv_layout
from archerfish.machine.memory import available_memory
from archerfish.ops import torch_dtype
from archerfish.quant import KvFormat

_WEIGHT_FORMATS: tuple[Quantization, ...] = ("int8", "int4")
"""Those that save memory, the least lossy first."""


def bytes_per_kv_value(arch: Arch, config: ResolvedConfig) -> float:
    """In the cache, with its share of a scale."""
    return KvFormat(config.kv_cache_dtype, config.dtype).bytes_per_value(kv_layout(arch).head_dim)


def bytes_per_weight(arch: Arch, config: ResolvedConfig) -> float:
    """On average over the model."""
    return mean_weight_bytes(arch, weight_format(config), torch_dtype(config.dtype).itemsize)


def footprint(
    arch: Arch, config: ResolvedConfig, kernels: Kernels, drafter: DrafterMemory | None, available: int
) -> MemoryBudget:
    """`drafter` is what a network takes that drafts for it; `available` are the bytes free before all is loaded."""
    full = torch_dtype(config.dtype).itemsize
    return MemoryBudget(
        arch,
        kv_layout(arch),
        available,
        full,
        bytes_per_kv_value=bytes_per_kv_value(arch, config),
        bytes_per_weight=bytes_per_weight(arch, config),
        bytes_per_activation=full if kernels.native is None else 4,  # Native operations compute in float32.
        drafter=DrafterMemory() if drafter is None else drafter,
        options=tuple(_memory_options(arch, config, kernels, has_drafter=drafter is not None)),
    )


def _memory_options(
    arch: Arch, config: ResolvedConfig, kernels: Kernels, *, has_drafter: bool
) -> Iterator[MemoryOption]:
    """Yield the settings of this device that save memory, lossless ones first."""
    if has_drafter:
        yield MemoryOption(setting='--speculative-config \'{"method": "off"}\'', drops_drafter=True, is_lossy=False)
    eight_bits = "int8" if config.device == "cpu" else "fp8"
    if config.kv_cache_dtype not in ("int8", "fp8"):
        smaller = replace(config, kv_cache_dtype=eight_bits)
        yield MemoryOption(
            setting=f"--kv-cache-dtype {eight_bits}", bytes_per_kv_value=bytes_per_kv_value(arch, smaller)
        )
    # Plain torch on a CPU has no quantized weights; a GPU that is only planned for has no kernels yet.
    can_quantize = kernels.native is not None or config.device != "cpu"
    if can_quantize and config.quantization == "none":
        for name in _WEIGHT_FORMATS:
            setting = f"--quantization {name}"
            smaller = replace(config, quantization=name)
            yield MemoryOption(setting=setting, bytes_per_weight=bytes_per_weight(arch, smaller))


def free_memory(device: str) -> int:
    """Bytes that the device has free now."""
    if device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        return int(free)
    return available_memory()
