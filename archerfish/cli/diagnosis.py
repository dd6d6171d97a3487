"""Gathers what `doctor` shows: versions, CPU, memory, GPUs, a model, the kernels it would run on. Prints nothing."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

from archerfish import __version__
from archerfish.arch.cost import kv_bytes, kv_bytes_per_token, num_parameters, weight_bytes, weight_bytes_read
from archerfish.config.settings import EngineConfig
from archerfish.engine.build import Blueprint, examine
from archerfish.engine.factory.kernels import model_target
from archerfish.errors import NoKernel
from archerfish.machine.cpu import cpu
from archerfish.machine.measure import read_bandwidth
from archerfish.machine.memory import available_memory, total_memory
from archerfish.ops import KernelTarget, all_implementations, choose_ops, torch_dtype

_PACKAGES = ("torch", "tokenizers", "safetensors", "huggingface_hub", "triton")
_X86_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")
_ARM_FEATURES = ("asimd", "asimddp", "i8mm", "bf16", "sve", "sve2")
_DTYPES = ("float32", "bfloat16")

_MEMORY_SAMPLE = 512 << 20
_GPU_SAMPLE = 4 << 30  # In a smaller sample, the launch of the kernel would count.
_SAMPLE_SHARE = 4  # A sample takes at most one part in so many of the free memory.


@dataclass(frozen=True, slots=True)
class CpuReport:
    name: str
    num_cores: int
    """Number of cores that this process may use."""
    features: dict[str, bool]
    has_hidden_amx: bool
    """Whether AMX is advertised although oneDNN would crash on it."""
    onednn_max_cpu_isa: str | None
    """Highest instruction set that oneDNN may use."""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Memory sizes in bytes, bandwidth in bytes per second."""

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
class ModelReport:
    """A model as it would run here by default. Sizes in bytes."""

    name: str
    family: str
    num_parameters: int
    dtype: str
    weight_bytes: float
    max_model_len: int
    kv_bytes_per_token: float
    kv_bytes_per_request: float
    """Bytes of one request that fills the context."""
    tokens_per_second_from_memory: float
    """Decode speed of a single request without speculation, if reading all weights from memory is the only cost.
    Weights that stay in the CPU's caches are read faster.
    """


@dataclass(frozen=True, slots=True)
class Rejection:
    kernel: str
    reason: str


@dataclass(frozen=True, slots=True)
class KernelSelection:
    operation: str
    dtype: str
    kernel: str
    rejected: list[Rejection]
    """Kernels that would have been preferred, in that order."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    versions: dict[str, str | None]
    """Versions by package; None for packages that are not installed."""
    cpu: CpuReport
    memory: MemoryReport
    gpus: list[GpuReport]
    device: str
    """Device that a model would run on and that the kernels are chosen for."""
    kernels: list[KernelSelection]
    problems: list[str]
    """Reasons why a model could not run."""
    model: ModelReport | None = None
    """Model that the kernels are chosen for; None where they are chosen for the machine alone."""


def diagnose(model: str | None = None) -> Diagnosis:
    """Examine this machine, and a model on it.

    Takes about two seconds, most of them for measuring memory. Of the model, only config.json is read.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    targets = [KernelTarget(device=device, dtype=dtype) for dtype in _DTYPES]
    blueprint = None
    if model is not None:
        blueprint = examine(EngineConfig(model=model, load_format="dummy"))
        targets = [model_target(blueprint.arch, blueprint.config)]
    kernels: list[KernelSelection] = []
    problems: list[str] = []
    for target in targets:
        try:
            kernels += _kernels(target)
        except NoKernel as error:
            problems.append(str(error))
    memory = _memory()
    gpus = [_gpu(index) for index in range(torch.cuda.device_count() if device == "cuda" else 0)]
    return Diagnosis(
        versions={"archerfish": __version__, "python": platform.python_version(), **_package_versions()},
        cpu=_cpu(),
        memory=memory,
        gpus=gpus,
        model=None if blueprint is None else _model(blueprint, gpus[0].memory if gpus else memory),
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
    processor = cpu()
    names = _ARM_FEATURES if platform.machine().lower() in ("aarch64", "arm64") else _X86_FEATURES
    return CpuReport(
        name=processor.name,
        num_cores=processor.num_cores,
        features={name: name in processor.flags for name in names},
        has_hidden_amx=processor.has_hidden_amx,
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


def _model(blueprint: Blueprint, memory: MemoryReport) -> ModelReport:
    arch, config = blueprint.arch, blueprint.config
    value_bytes = torch_dtype(config.dtype).itemsize
    in_weights = weight_bytes(arch, value_bytes)
    return ModelReport(
        name=blueprint.directory.name,
        family=arch.family,
        num_parameters=num_parameters(arch),
        dtype=config.dtype,
        weight_bytes=in_weights,
        max_model_len=config.max_model_len,
        kv_bytes_per_token=kv_bytes_per_token(arch, value_bytes),
        kv_bytes_per_request=kv_bytes(arch, config.max_model_len, value_bytes),
        tokens_per_second_from_memory=memory.read_bandwidth / weight_bytes_read(arch, 1, 1, value_bytes),
    )


def _kernels(target: KernelTarget) -> list[KernelSelection]:
    _, choices = choose_ops(target, all_implementations(target))
    return [
        KernelSelection(
            choice.operation,
            target.dtype,
            choice.name,
            [Rejection(kernel, reason) for kernel, reason in choice.rejected],
        )
        for choice in choices
    ]
