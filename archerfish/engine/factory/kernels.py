"""Kernel selection: which implementations of operations run a model, given the machine and the settings."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from archerfish.arch.arch import Arch, ExpertsSpec
from archerfish.config.resolve import ResolvedConfig
from archerfish.console import logger
from archerfish.errors import ConfigError
from archerfish.ops import (
    KernelTarget,
    Ops,
    choose_ops,
    implementations,
    open_native,
    open_triton,
    torch_dtype,
    why_not_native,
    why_not_triton,
)
from archerfish.ops.cpu.native import NativeOps

if TYPE_CHECKING:
    from archerfish.ops.triton.operations import TritonOps

_GPU_FORMATS = ("fp8",)
"""Formats that only a GPU's kernels have."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The operations of a model, and the native or Triton kernels among them; without either they are plain torch."""

    ops: Ops
    native: NativeOps | None
    triton: "TritonOps | None"


def choose_kernels(arch: Arch, config: ResolvedConfig) -> Kernels:
    """Choose the fastest kernels that the model, the machine and the settings allow, or raise a ConfigError."""
    target = model_target(arch, config)
    native = triton = None
    if config.kernels == "reference":
        why_not = "--kernels reference was given"
    elif config.device == "cpu" and config.kernels != "triton":
        kernels = None if config.kernels == "auto" else config.kernels
        why_not = why_not_native(target, kernels) or ""
        native = open_native(target, kernels)
    elif config.kernels in ("auto", "triton"):
        why_not = why_not_triton(target) or ""
        triton = open_triton(target)
    else:
        why_not = f"these kernels are for a CPU, and the model runs on {config.device}"
    is_fast = native is not None or triton is not None
    if not is_fast and config.kernels == "auto":
        logger.info("plain torch runs this model, because faster kernels cannot: %s", why_not)
    if not is_fast and config.kernels not in ("auto", "reference"):
        raise ConfigError(f"--kernels {config.kernels}: {why_not}; use --kernels auto")
    if not is_fast and config.quantization != "none":
        raise ConfigError(
            f"--quantization {config.quantization} needs fast kernels, which cannot run: {why_not}; "
            "use --quantization none"
        )
    _check_formats(config, on_gpu=triton is not None, on_cpu=native is not None)
    if triton is not None:
        _check_widths(arch, config)
    ops, _ = choose_ops(target, implementations(native, triton))
    return Kernels(ops, native, triton)


def planned_kernels(arch: Arch, config: ResolvedConfig) -> Kernels:
    """Choose the kernels that would run a model. Without the GPU it is plain torch, which takes as much memory."""
    if config.device == "cpu" or torch.cuda.is_available():
        return choose_kernels(arch, config)
    _check_formats(config, on_gpu=True, on_cpu=False)
    return Kernels(choose_ops(model_target(arch, config)).ops, None, None)


def model_target(arch: Arch, config: ResolvedConfig) -> KernelTarget:
    return KernelTarget.of_model(
        arch, device=config.device, dtype=config.dtype, block_size=config.block_size, threads=config.threads
    )


def _check_formats(config: ResolvedConfig, *, on_gpu: bool, on_cpu: bool) -> None:
    if on_cpu and config.quantization in _GPU_FORMATS:
        raise ConfigError(f"--quantization {config.quantization} is for a GPU; on a CPU use --quantization int8")
    if on_cpu and config.kv_cache_dtype in _GPU_FORMATS:
        raise ConfigError(f"--kv-cache-dtype {config.kv_cache_dtype} is for a GPU; on a CPU use --kv-cache-dtype int8")
    if on_gpu and config.kv_cache_dtype not in (config.dtype, *_GPU_FORMATS):
        raise ConfigError(
            f"--kv-cache-dtype {config.kv_cache_dtype} is not for a model of {config.dtype} on a GPU; "
            "use --kv-cache-dtype auto or fp8"
        )


def _check_widths(arch: Arch, config: ResolvedConfig) -> None:
    """Refuse what a GPU's kernels have no tiles for: odd experts, and rows that quantization groups do not fill."""
    from archerfish.ops.triton.device_weight import STEP, why_not_arranged
    from archerfish.ops.triton.moe import why_not_experts

    group = config.quantization_group if config.quantization == "int4" else STEP
    for layer in arch.layers:
        spec = layer.feed_forward
        if isinstance(spec, ExpertsSpec):
            reason = why_not_experts(torch_dtype(config.dtype), arch.hidden_size, spec.size, spec.num_experts)
            if reason is not None:
                raise ConfigError(f"a GPU's kernels cannot run these experts: {reason}; use --kernels reference")
        if config.quantization == "none":
            continue
        for num_inputs in (arch.hidden_size, layer.attention.q_width, spec.size):
            reason = why_not_arranged(num_inputs, group)
            if reason is not None:
                smaller = "a smaller --quantization-group or " if config.quantization == "int4" else ""
                raise ConfigError(f"--quantization {config.quantization}: {reason}; use {smaller}--quantization none")


def drafter_kernels(kernels: Kernels, arch: Arch, config: ResolvedConfig) -> Kernels:
    """Choose kernels for a drafter: the model's own kernels and threads where they can run it, else plain torch."""
    target = model_target(arch, config)
    native = kernels.native if kernels.native is not None and why_not_native(target) is None else None
    triton = kernels.triton if kernels.triton is not None and why_not_triton(target) is None else None
    return Kernels(choose_ops(target, implementations(native, triton)).ops, native, triton)
