"""Which kernels run a model, and the executor that is built on them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from archerfish.arch.arch import Arch, ExpertsSpec
from archerfish.config.resolve import ResolvedConfig
from archerfish.console import logger
from archerfish.disk_cache import DiskCache
from archerfish.engine.sizing import Stage
from archerfish.errors import ConfigError
from archerfish.execution.backends.cpu_program import RecordedModel
from archerfish.execution.backends.eager import EagerModel
from archerfish.execution.executor import Executor
from archerfish.execution.local import LocalExecutor
from archerfish.execution.profile_run import CudaMemory
from archerfish.execution.step.model import RunnableModel, StepLimits
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
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
from archerfish.sampling.grammar import Grammars
from archerfish.sampling.sampler import Sampler
from archerfish.speculation.acceptance_rate import Trust
from archerfish.speculation.controller import Speculator
from archerfish.speculation.draft import MOST_NODES
from archerfish.speculation.drafters.cache_progress import Filled
from archerfish.speculation.drafters.drafter import Network
from archerfish.speculation.drafters.feature_store import FeatureStore
from archerfish.speculation.drafters.model_proposer import NetworkProposer
from archerfish.speculation.method import Way
from archerfish.speculation.proposers.lookahead import LookaheadProposer
from archerfish.speculation.proposers.suffix import SuffixProposer
from archerfish.speculation.verification.rules import Typical
from archerfish.speculation.verification.verifier import Rules, Verifier

if TYPE_CHECKING:
    from archerfish.ops.triton.operations import TritonOps

_OF_A_GPU = ("fp8",)
"""Formats that only a GPU's kernels know."""
_MAX_DRAFT_TOKENS = 32
"""For one sequence in one step: longer copies are taken in several."""
_FIRST_TRUST_IN_NETWORKS = 0.75
"""Whoever was made for a model deserves a trial."""
_MOST_DRAFTED = 8
"""The same of guesses that are made one after the other: the last would hardly ever stand."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Native ones, Triton's, or neither: then all operations are plain torch."""

    ops: Ops
    native: NativeOps | None
    triton: "TritonOps | None"


def choose_kernels(arch: Arch, config: ResolvedConfig) -> Kernels:
    """The fastest that the model, the machine and the user allow, or a ConfigError that says which setting does not."""
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
        why_not = f"it is for a CPU, and the model runs on {config.device}"
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
    """Those that would run the model. For a GPU that is not here plain torch stands in, which takes as much memory."""
    if config.device == "cpu" or torch.cuda.is_available():
        return choose_kernels(arch, config)
    _check_formats(config, on_gpu=True, on_cpu=False)
    return Kernels(choose_ops(model_target(arch, config)).ops, None, None)


def model_target(arch: Arch, config: ResolvedConfig) -> KernelTarget:
    return KernelTarget.of_model(
        arch, device=config.device, dtype=config.dtype, block_size=config.block_size, threads=config.threads
    )


def _check_formats(config: ResolvedConfig, *, on_gpu: bool, on_cpu: bool) -> None:
    if on_cpu and config.quantization in _OF_A_GPU:
        raise ConfigError(f"--quantization {config.quantization} is for a GPU; on a CPU use --quantization int8")
    if on_cpu and config.kv_cache_dtype in _OF_A_GPU:
        raise ConfigError(f"--kv-cache-dtype {config.kv_cache_dtype} is for a GPU; on a CPU use --kv-cache-dtype int8")
    if on_gpu and config.kv_cache_dtype not in (config.dtype, *_OF_A_GPU):
        raise ConfigError(
            f"--kv-cache-dtype {config.kv_cache_dtype} is not for a model of {config.dtype} on a GPU; "
            "use --kv-cache-dtype auto or fp8"
        )


def _check_widths(arch: Arch, config: ResolvedConfig) -> None:
    """Refuse what a GPU's kernels have no tiles for: odd experts, and rows that groups of few bits do not fill."""
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


def rehearsal_stage(build: Callable[[int], Executor]) -> Stage:
    """Of Triton's kernels on a GPU, given how an executor is built with a cache of so many blocks."""
    from archerfish.ops.triton import runtime

    where = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    # Beside the kernels that the rehearsal compiled: whoever clears them away rehearses again.
    cache = DiskCache("archerfish-steps", runtime.kernel_version(), runtime.compile_cache_directory())
    return Stage(build, runtime.compile_only, CudaMemory(), cache, where)


def beside(kernels: Kernels, arch: Arch, config: ResolvedConfig) -> Kernels:
    """For a network that runs beside a model: the model's own kernels and threads where they can, else plain torch."""
    target = model_target(arch, config)
    native = kernels.native if kernels.native is not None and why_not_native(target) is None else None
    triton = kernels.triton if kernels.triton is not None and why_not_triton(target) is None else None
    return Kernels(choose_ops(target, implementations(native, triton)).ops, native, triton)


def step_limits(config: ResolvedConfig) -> StepLimits:
    return StepLimits(config.max_num_batched_tokens, config.max_num_seqs, config.max_drawn)


def build_runnable(
    kernels: Kernels, model: Decoder, storage: KVStorage, config: ResolvedConfig, taps: tuple[int, ...] = ()
) -> RunnableModel:
    """Recorded for native kernels, else operation by operation."""
    if kernels.native is None:
        return EagerModel(model, storage, taps)
    return RecordedModel(model, storage, kernels.native, step_limits(config), taps)


@dataclass(frozen=True, slots=True)
class Guessing:
    """A network that guesses, and how far it has come in the cache's blocks."""

    method: str
    network: Network
    filled: Filled
    max_model_len: int
    features: FeatureStore | None = None
    """What it reads of the model's layers."""
    most: int = MOST_NODES
    """Guesses that it can make, one after the other."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What runs beside a model."""

    make: Callable[[Rows], Guessing]
    taps: tuple[int, ...]
    """Layers of the model that it listens to."""


def build_executor(
    kernels: Kernels,
    model: Decoder,
    storage: KVStorage,
    config: ResolvedConfig,
    grammars: Grammars | None,
    network: Beside | None = None,
) -> Executor:
    """What runs the model: captured on a GPU, recorded for native kernels, else operation by operation."""
    size = (config.max_num_seqs, config.max_model_len, len(storage.layout.windows), storage.block_size)
    sampler = Sampler(config.max_num_seqs, kernels.ops.draw, grammars)
    verifier = Verifier(sampler, build_rules(config))
    taps = () if network is None else network.taps
    rows: Rows
    runnable: RunnableModel
    captured = None
    if kernels.triton is not None:
        # Triton takes its time, and may not be there.
        from archerfish.execution.backends.cuda.device_rows import DeviceRows
        from archerfish.execution.backends.cuda.graphs import CapturedModel
        from archerfish.execution.device import DeviceExecutor

        rows = device_rows = DeviceRows(*size, config.device)
        runnable = captured = CapturedModel(model, storage, kernels.triton, device_rows, step_limits(config), taps)
    else:
        rows = Rows(*size)
        runnable = build_runnable(kernels, model, storage, config, taps)
    guessing = None if network is None else network.make(rows)
    speculator = build_speculator(config, rows, sampler, verifier, guessing)
    features = None if guessing is None else guessing.features
    local = LocalExecutor(runnable, storage, rows, config.device, sampler, speculator, features, verifier)
    if captured is not None:
        return DeviceExecutor(local, captured, device_rows)
    local.try_out(step_limits(config))
    return local


def build_rules(config: ResolvedConfig) -> Rules:
    """Which guesses stand, where a request does not say."""
    asked = config.speculation
    if asked.verification == "typical":
        logger.warning(
            "verification typical is lossy: guesses stand where they are likely enough, and answers are not those of "
            'the model alone; "coupled" keeps their very tokens, "rejection" their distribution'
        )
    return Rules(asked.verification, Typical(asked.typical_epsilon, asked.typical_delta))


def build_speculator(
    config: ResolvedConfig, rows: Rows, sampler: Sampler, verifier: Verifier, guessing: Guessing | None
) -> Speculator | None:
    """Who guesses tokens; None where nobody does."""
    if not config.speculates:
        return None
    speculation = config.speculation
    suffix = SuffixProposer(
        shortest=speculation.prompt_lookup_min or 1,
        longest=speculation.prompt_lookup_max,
        branches=speculation.branches,
        shared=speculation.shared,
    )
    ways = [
        Way("suffix", suffix, most=_MAX_DRAFT_TOKENS),
        Way("lookahead", LookaheadProposer(), most=MOST_NODES, as_a_whole=True),
    ]
    speculator = Speculator(ways, speculation.method, rows, time.perf_counter, speculation.num_speculative_tokens)
    if guessing is not None:
        proposer = NetworkProposer(
            guessing.network,
            rows,
            guessing.filled,
            sampler,
            time.perf_counter,
            speculator.lengths.drafting,
            max_tokens=config.max_num_batched_tokens,
            max_model_len=guessing.max_model_len,
            branches=speculation.branches,
            is_judged_by_proposals=verifier.rejects,
        )
        depth = min(guessing.most, max(_MOST_DRAFTED, speculation.num_speculative_tokens or 0))
        most = min(MOST_NODES, depth * speculation.branches)
        ways.append(Way(guessing.method, proposer, most, trust=Trust(_FIRST_TRUST_IN_NETWORKS)))
    return speculator
