"""Gathers what `doctor` shows: versions, CPU, memory, GPUs, and the kernels that would be chosen. Prints nothing."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

from archerfish import __version__
from archerfish.errors import NoKernel
from archerfish.machine import available_memory, cpu, total_memory
from archerfish.metrics.bandwidth import read_bandwidth
from archerfish.ops import Target, all_implementations, choose_ops

_PACKAGES = ("torch", "tokenizers", "safetensors", "huggingface_hub", "triton")
_X86_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")
_ARM_FEATURES = ("asimd", "asimddp", "i8mm", "bf16", "sve", "sve2")
_DTYPES = ("float32", "bfloat16")

_MEMORY_SAMPLE = 512 << 20
_GPU_SAMPLE = 4 << 30  # A GPU reads so fast that starting the kernel would count in a smaller one.
_SAMPLE_SHARE = 4  # A sample takes at most this part of what is free.


@dataclass(frozen=True, slots=True)
class CpuReport:
    name: str
    num_cores: int
    """Cores this process may use."""
    features: dict[str, bool]
    has_hidden_amx: bool
    """AMX is advertised, but oneDNN would crash on it."""
    onednn_max_cpu_isa: str | None
    """Where oneDNN is told to stop."""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """In bytes, and bytes per second."""

    total: int
    available: int
    read_bandwidth: float


@dataclass(frozen=True, slots=True)
class GpuReport:
    name: str
    compute_capability: str
    num_multiprocessors: int
    memory: MemoryReport


@dataclass(frozen=True, slots=True)
class Rejection:
    kernel: str
    reason: str


@dataclass(frozen=True, slots=True)
class KernelReport:
    operation: str
    dtype: str
    kernel: str
    rejected: list[Rejection]
    """Kernels that would have been preferred, in that order."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    versions: dict[str, str | None]
    """None for what is not installed."""
    cpu: CpuReport
    memory: MemoryReport
    gpus: list[GpuReport]
    device: str
    """Where a model would run, and what the kernels are chosen for."""
    kernels: list[KernelReport]
    problems: list[str]
    """What would keep a model from running."""


def diagnose() -> Diagnosis:
    """Look at this machine. Takes about two seconds, most of them to measure memory."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kernels: list[KernelReport] = []
    problems: list[str] = []
    for dtype in _DTYPES:
        try:
            kernels += _kernels(device, dtype)
        except NoKernel as error:
            problems.append(str(error))
    return Diagnosis(
        versions={"archerfish": __version__, "python": platform.python_version(), **_package_versions()},
        cpu=_cpu(),
        memory=_memory(),
        gpus=[_gpu(index) for index in range(torch.cuda.device_count() if device == "cuda" else 0)],
        device=device,
        kernels=kernels,
        problems=problems,
    )


def _package_versions() -> dict[str, str | None]:
    return {name: _package_version(name) for name in _PACKAGES}


def _package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu() -> CpuReport:
    found = cpu()
    names = _ARM_FEATURES if platform.machine().lower() in ("aarch64", "arm64") else _X86_FEATURES
    return CpuReport(
        name=found.name,
        num_cores=found.num_cores,
        features={name: name in found.flags for name in names},
        has_hidden_amx=found.has_hidden_amx,
        onednn_max_cpu_isa=os.environ.get("ONEDNN_MAX_CPU_ISA"),
    )


def _memory() -> MemoryReport:
    available = available_memory()
    bandwidth = read_bandwidth(min(_MEMORY_SAMPLE, available // _SAMPLE_SHARE), num_threads=cpu().num_cores)
    return MemoryReport(total=total_memory(), available=available, read_bandwidth=bandwidth)


def _gpu(index: int) -> GpuReport:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    return GpuReport(
        name=properties.name,
        compute_capability=f"{properties.major}.{properties.minor}",
        num_multiprocessors=properties.multi_processor_count,
        memory=MemoryReport(
            total=total,
            available=free,
            read_bandwidth=read_bandwidth(min(_GPU_SAMPLE, free // _SAMPLE_SHARE), device=f"cuda:{index}"),
        ),
    )


def _kernels(device: str, dtype: str) -> list[KernelReport]:
    target = Target(device=device, dtype=dtype)
    _, choices = choose_ops(target, all_implementations(target))
    return [
        KernelReport(
            choice.operation, dtype, choice.name, [Rejection(kernel, reason) for kernel, reason in choice.rejected]
        )
        for choice in choices
    ]
