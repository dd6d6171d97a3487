"""The rungs of the ladder: which optimization each adds, and how it is measured or why it cannot be."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from archerfish.bench.ladder.naive import ContiguousCache, TokenIds, generate_recomputing, generate_with_cache
from archerfish.bench.offline.measure import OfflineBench, WorkloadRun
from archerfish.bench.offline.workloads import OfflineJob, OfflineWorkload
from archerfish.config.settings import EngineConfig
from archerfish.engine.build import Assembly, build, examine
from archerfish.engine.factory.kernels import model_target
from archerfish.engine.models import load_decoder
from archerfish.errors import ConfigError
from archerfish.execution.memory import MemoryBudget
from archerfish.kvcache.layout import kv_layout
from archerfish.metrics.speculation import SpeculationTotals, speculation_between
from archerfish.ops import torch_dtype, why_not_native, why_not_triton

_REPEAT_SECONDS = 6.0
"""Rungs are repeated within this time: a busy neighbour distorts short measurements most."""
_MAX_REPEATS = 3
_LONG_SECONDS = 60.0
"""Rungs that take longer run once, all others at least twice: the first run pays for one-time initialization."""
_WARM_UP_TOKENS = 2

ReportShare = Callable[[float], None]
"""Called with the completed share of the rung."""

_NOTHING_ADDED: Mapping[str, Any] = {
    "enable_prefix_caching": False,
    "kernels": "reference",
    "kv_cache_dtype": "auto",
    "quantization": "none",
    "quantization_group": 64,
    "quantization_zero_points": False,
    "quantization_rounding": "auto",
    "speculative_config": {"method": "off"},
}
"""Engine settings of the first rung that uses the engine."""


@dataclass(frozen=True, slots=True)
class LadderSetup:
    """What a rung is measured with."""

    config: EngineConfig
    workload: OfflineWorkload
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Engine settings of this rung and of those below it."""

    @property
    def engine_config(self) -> EngineConfig:
        """The settings of the engine at this rung.

        A step holds one prompt: its prefix can be shared only once the step that computed it is over.
        """
        config = self.config
        longest = max(len(job.prompt) for job in self.workload.jobs)
        step_tokens = config.max_num_batched_tokens or max(longest, config.max_num_seqs or 0)
        return replace(config, **{**_NOTHING_ADDED, "max_num_batched_tokens": step_tokens, **self.settings})


@dataclass(frozen=True, slots=True, kw_only=True)
class RungResult:
    """The fastest run of a rung. Memory in bytes."""

    seconds: float
    outputs: tuple[TokenIds, ...]
    latencies: tuple[float, ...]
    """Seconds from the start until each output was complete."""
    weight_bytes: int
    kv_bytes: int
    """Largest amount of keys and values in use or cached at once."""
    workspace_bytes: int
    """Estimated intermediate values of the largest step."""
    cached_share: float = 0.0
    """Share of the prompt tokens that were found in the prefix cache."""
    acceptance: float | None = None
    """Share of the draft tokens that were accepted; None without draft tokens."""


@dataclass(frozen=True, slots=True)
class UnsupportedRung:
    """Why a rung cannot be measured here."""

    reason: str


Measure = Callable[[LadderSetup, ReportShare], RungResult | UnsupportedRung]


@dataclass(frozen=True, slots=True)
class Rung:
    """One optimization on top of those below it."""

    name: str
    measure: Measure
    adds: Mapping[str, Any] = field(default_factory=dict)
    """Engine settings that this rung changes, for itself and for the rungs above it."""
    why_slower: Callable[[RungResult], str] = lambda _: "no known cause; measure again on an idle machine"
    """Explains a result that is slower than that of the rung below."""
    is_lossy: bool = False
    """Whether it may change the output."""


# -- one request at a time, without an engine -------------------------------------------------------------------------


def run_naive(setup: LadderSetup, report: ReportShare) -> RungResult:
    """Measure generation that computes the whole sequence again for every token."""
    model = load_decoder(setup.engine_config)
    longest = max(len(job.prompt) + job.num_tokens for job in setup.workload.jobs)
    return _run_in_turn(setup, lambda job: generate_recomputing(model, job.prompt, job.num_tokens), 0, longest, report)


def run_with_kv_cache(setup: LadderSetup, report: ReportShare) -> RungResult:
    """Measure generation that stores keys and values of one request, in a buffer for the longest possible one."""
    model = load_decoder(setup.engine_config)
    cache = ContiguousCache(model, setup.config.max_model_len or model.arch.max_positions)
    longest = max(len(job.prompt) for job in setup.workload.jobs)

    def generate(job: OfflineJob) -> TokenIds:
        return generate_with_cache(model, job.prompt, job.num_tokens, cache)

    return _run_in_turn(setup, generate, cache.num_bytes, longest, report)


def _run_in_turn(
    setup: LadderSetup, generate: Callable[[OfflineJob], TokenIds], kv_bytes: int, step_tokens: int, report: ReportShare
) -> RungResult:
    jobs = setup.workload.jobs
    generate(OfflineJob(jobs[0].prompt, _WARM_UP_TOKENS))
    memory = _memory_of(replace(setup.engine_config, max_num_batched_tokens=step_tokens, max_num_seqs=1))

    def run() -> RungResult:
        outputs, latencies = [], []
        started = time.perf_counter()
        for job in jobs:
            outputs.append(generate(job))
            latencies.append(time.perf_counter() - started)
            report(len(outputs) / len(jobs))
        return RungResult(
            seconds=latencies[-1],
            outputs=tuple(outputs),
            latencies=tuple(latencies),
            weight_bytes=memory.weight_bytes,
            kv_bytes=kv_bytes,
            workspace_bytes=memory.workspace_bytes,
        )

    return _fastest(run)


class _PlainMemory(NamedTuple):
    weight_bytes: int
    workspace_bytes: int


def _memory_of(config: EngineConfig) -> _PlainMemory:
    """Return what the decoder takes without an engine around it."""
    blueprint = examine(config)
    arch, settings = blueprint.arch, blueprint.config
    memory = MemoryBudget(arch, kv_layout(arch), 0, torch_dtype(settings.dtype).itemsize)
    return _PlainMemory(memory.weights, memory.activations(settings))


# -- the engine -------------------------------------------------------------------------------------------------------


def run_engine(setup: LadderSetup, report: ReportShare) -> RungResult | UnsupportedRung:
    """Measure the engine with the settings of this rung, all requests arriving together."""
    try:
        with _engine(setup.engine_config) as assembly:
            return _run_workload(assembly, setup.workload, report)
    except ConfigError as error:
        return UnsupportedRung(str(error))


def run_fast_kernels(setup: LadderSetup, report: ReportShare) -> RungResult | UnsupportedRung:
    """Measure the engine with the fastest kernels of the device instead of plain torch."""
    if setup.settings["kernels"] == "reference":
        return UnsupportedRung("--kernels reference was given")
    blueprint = examine(setup.engine_config)
    target = model_target(blueprint.arch, blueprint.config)
    why_not = why_not_native(target) if target.device == "cpu" else why_not_triton(target)
    return (
        run_engine(setup, report)
        if why_not is None
        else UnsupportedRung(f"the kernels cannot run this model: {why_not}")
    )


def run_speculation(setup: LadderSetup, report: ReportShare) -> RungResult | UnsupportedRung:
    """Measure the engine with draft tokens, several of which are verified in a step."""
    resolved = examine(setup.engine_config).config
    if resolved.speculates:
        return run_engine(setup, report)
    if resolved.load_format == "dummy" and not setup.config.speculative_config:
        return UnsupportedRung(
            "random weights repeat themselves, which would flatter it; measure real weights, or give "
            '--speculative-config \'{"method": "auto"}\''
        )
    method = resolved.speculation.method
    return UnsupportedRung(
        f"--speculative-config method {method} drafts no tokens on {resolved.device}; name another one"
    )


def _run_workload(assembly: Assembly, workload: OfflineWorkload, report: ReportShare) -> RungResult:
    bench = OfflineBench.of(assembly)
    # The warm-up has every request, so that kernels meet all batch sizes and the memory of the cache is touched.
    jobs = tuple(OfflineJob(job.prompt, min(job.num_tokens, _WARM_UP_TOKENS)) for job in workload.jobs)
    bench.run(replace(workload, jobs=jobs), cache_salt="warm-up")
    num_runs = 0

    def run() -> RungResult:
        nonlocal num_runs
        num_runs += 1
        before = bench.speculation_totals
        # A salt for each run: none finds the prefixes of another in the cache.
        measured = bench.run(
            workload,
            progress=lambda num_tokens: report(num_tokens / workload.num_output_tokens),
            cache_salt=str(num_runs),
        )
        return _result(assembly, workload, measured, _acceptance(before, bench.speculation_totals))

    return _fastest(run)


def _result(
    assembly: Assembly, workload: OfflineWorkload, measured: WorkloadRun, acceptance: float | None
) -> RungResult:
    block_bytes = assembly.cache_size.num_bytes // assembly.cache_size.num_blocks
    return RungResult(
        seconds=measured.seconds,
        outputs=tuple(answer.tokens for answer in measured.answers),
        latencies=tuple(answer.timing.total or 0.0 for answer in measured.answers),
        weight_bytes=assembly.memory.weights,
        kv_bytes=measured.most_blocks * block_bytes,
        workspace_bytes=assembly.memory.activations(assembly.config),
        cached_share=sum(answer.num_cached_tokens for answer in measured.answers) / workload.num_input_tokens,
        acceptance=acceptance,
    )


@contextmanager
def _engine(config: EngineConfig) -> Iterator[Assembly]:
    assembly = build(config)
    try:
        yield assembly
    finally:
        assembly.engine.close()


def _acceptance(before: SpeculationTotals, after: SpeculationTotals) -> float | None:
    totals = speculation_between(before, after)
    return None if totals is None else totals.acceptance_rate


def _fastest(run: Callable[[], RungResult], clock: Callable[[], float] = time.perf_counter) -> RungResult:
    """Return the fastest of a few runs; slow ones are repeated less often."""
    deadline = clock() + _REPEAT_SECONDS
    results = [run()]
    min_runs = 1 if results[0].seconds > _LONG_SECONDS else 2
    while len(results) < min_runs or (len(results) < _MAX_REPEATS and clock() < deadline):
        results.append(run())
    return min(results, key=lambda result: result.seconds)


# -- the list ---------------------------------------------------------------------------------------------------------


def rungs_for(config: EngineConfig, device: str) -> tuple[Rung, ...]:
    """Return the rungs in order: each has what those below it have. Lossless ones first, then smaller numbers.

    Speculation comes last: it must write the very tokens of the rung below.
    """
    return (
        Rung("naive", run_naive),
        Rung(
            "+ KV cache",
            run_with_kv_cache,
            why_slower=lambda _: "with so few tokens, a pass for each costs more than computing them all again",
        ),
        Rung("+ paging, batching", run_engine, why_slower=_why_batching_is_slower),
        Rung("+ prefix cache", run_engine, {"enable_prefix_caching": True}, _why_prefix_caching_is_slower),
        Rung(
            "+ native kernels" if device == "cpu" else "+ Triton kernels", run_fast_kernels, {"kernels": config.kernels}
        ),
        _kv_cache_rung(config, device),
        *_weight_rungs(config),
        Rung(
            "+ speculation",
            run_speculation,
            {"speculative_config": config.speculative_config},
            _why_speculation_is_slower,
        ),
    )


def _kv_cache_rung(config: EngineConfig, device: str) -> Rung:
    """Return the rung of the KV cache format that was given, or else of the 8-bit format of the device."""
    dtype = config.kv_cache_dtype
    if dtype == "auto":
        dtype = "int8" if device == "cpu" else "fp8"
    return Rung(
        f"+ {dtype} KV cache",
        run_engine,
        {"kv_cache_dtype": dtype},
        lambda _: "with contexts so short, reading keys and values is a small part of a step",
        is_lossy=True,
    )


def _weight_rungs(config: EngineConfig) -> list[Rung]:
    """Return a rung for the weight format that was given, or else for int8 and for int4."""
    formats = ("int8", "int4") if config.quantization == "none" else (config.quantization,)
    given = {
        "quantization_group": config.quantization_group,
        "quantization_zero_points": config.quantization_zero_points,
        "quantization_rounding": config.quantization_rounding,
    }
    return [
        Rung(
            f"+ {name} weights",
            run_engine,
            {"quantization": name} if config.quantization == "none" else {"quantization": name, **given},
            lambda _: "the weights fit in the CPU's caches either way, and converting them takes time",
            is_lossy=True,
        )
        for name in formats
    ]


def _why_batching_is_slower(result: RungResult) -> str:
    return f"{len(result.outputs)} requests together do not pay for planning steps and paging the cache"


def _why_prefix_caching_is_slower(result: RungResult) -> str:
    return f"{result.cached_share:.0%} of the prompt tokens were found in the cache, and storing it touches more memory"


def _why_speculation_is_slower(result: RungResult) -> str:
    if result.acceptance is None:
        return "no step had draft tokens, as none were expected to pay; measure again on an idle machine"
    return (
        f"{result.acceptance:.0%} of the draft tokens were accepted, and with {len(result.outputs)} requests in a step "
        "verifying them costs more than with one"
    )
