"""The rungs of the ladder: how each way of generating is run, or why this build cannot. Compares nothing."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from archerfish.bench.ladder.naive import Answer, ContiguousCache, write_recomputing, write_with_cache
from archerfish.bench.offline.measure import OfflineBench, WorkloadRun
from archerfish.bench.offline.workloads import Job, OfflineWorkload
from archerfish.config.settings import EngineConfig, Quantization
from archerfish.engine.build import Assembly, build, examine
from archerfish.engine.models import load_decoder
from archerfish.errors import ConfigError
from archerfish.ops import Target, why_not_native

_PATIENCE = 6.0
"""Seconds: a rung that takes less is climbed again, because others on the machine count most in short times."""
_MOST_CLIMBS = 3
_WARM_UP_TOKENS = 2

Tell = Callable[[float], None]
"""Called with the share of the rung that is climbed."""


@dataclass(frozen=True, slots=True)
class Ascent:
    """What every rung is climbed with."""

    config: EngineConfig
    workload: OfflineWorkload


@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """What a rung gave, at its best."""

    seconds: float
    answers: tuple[Answer, ...]
    latencies: tuple[float, ...]
    """Seconds from the start until each answer was complete."""
    kv_bytes: int
    cached_share: float = 0.0
    """Of the prompts' tokens, those that did not have to be computed."""


@dataclass(frozen=True, slots=True)
class Cannot:
    """Stands where a rung's measurement will be."""

    reason: str


Measure = Callable[[Ascent, Tell], Climb | Cannot]


@dataclass(frozen=True, slots=True)
class Rung:
    name: str
    measure: Measure | Cannot
    why_slower: Callable[[Climb], str] = lambda _: "nothing is known to cause it; measure on a quiet machine"
    """What to say of a climb that took longer than the one before it."""
    is_lossy: bool = False
    """Whether its answers may be others."""


# -- one request at a time, without an engine -------------------------------------------------------------------------


def recompute(ascent: Ascent, tell: Tell) -> Climb:
    """Every token from a pass over everything before it."""
    model = load_decoder(ascent.config)
    return _one_by_one(ascent.workload, lambda job: write_recomputing(model, job.prompt, job.num_tokens), 0, tell)


def keep_keys(ascent: Ascent, tell: Tell) -> Climb:
    """Keys and values of the running request are kept, with room for the longest there could be."""
    model = load_decoder(ascent.config)
    cache = ContiguousCache(model, ascent.config.max_model_len or model.arch.max_positions)

    def write(job: Job) -> Answer:
        return write_with_cache(model, job.prompt, job.num_tokens, cache)

    return _one_by_one(ascent.workload, write, cache.num_bytes, tell)


def _one_by_one(workload: OfflineWorkload, write: Callable[[Job], Answer], kv_bytes: int, tell: Tell) -> Climb:
    write(Job(workload.jobs[0].prompt, _WARM_UP_TOKENS))

    def climb() -> Climb:
        answers, latencies = [], []
        started = time.perf_counter()
        for job in workload.jobs:
            answers.append(write(job))
            latencies.append(time.perf_counter() - started)
            tell(len(answers) / len(workload.jobs))
        return Climb(seconds=latencies[-1], answers=tuple(answers), latencies=tuple(latencies), kv_bytes=kv_bytes)

    return _best(climb)


# -- the engine -------------------------------------------------------------------------------------------------------


def batch(ascent: Ascent, tell: Tell) -> Climb:
    """All requests together, in a paged cache that shares nothing, by the same operations as before."""
    return _through_engine(ascent, tell, enable_prefix_caching=False, kernels="reference")


def share_prefixes(ascent: Ascent, tell: Tell) -> Climb:
    """... and what prompts have in common is computed once."""
    return _through_engine(ascent, tell, kernels="reference")


def run_native(ascent: Ascent, tell: Tell) -> Climb | Cannot:
    """... by kernels made for this machine."""
    blueprint = examine(ascent.config)
    why_not = why_not_native(
        Target.of_model(
            blueprint.arch,
            device=blueprint.config.device,
            dtype=blueprint.config.dtype,
            block_size=blueprint.config.block_size,
        )
    )
    return _through_engine(ascent, tell) if why_not is None else Cannot(f"no native kernels: {why_not}")


def quantize(ascent: Ascent, tell: Tell) -> Climb | Cannot:
    """... with smaller weights: those asked for, or else int8."""
    asked = ascent.config
    name: Quantization = "int8" if asked.quantization == "none" else asked.quantization
    try:
        return _through_engine(
            ascent,
            tell,
            quantization=name,
            quantization_group=asked.quantization_group,
            quantization_zero_points=asked.quantization_zero_points,
            kv_cache_dtype=asked.kv_cache_dtype,
            quantization_rounding=asked.quantization_rounding,
        )
    except ConfigError as error:
        return Cannot(str(error))


def _through_engine(ascent: Ascent, tell: Tell, **changes: Any) -> Climb:
    workload = ascent.workload
    with _engine(_engine_config(ascent, changes)) as assembly:
        bench = OfflineBench.of(assembly)
        warm_up = replace(workload, jobs=(Job(workload.jobs[0].prompt, _WARM_UP_TOKENS),))
        bench.run(warm_up, cache_salt="warm-up")
        block_bytes = assembly.cache_size.num_bytes // assembly.cache_size.num_blocks
        num_climbs = 0

        def climb() -> Climb:
            nonlocal num_climbs
            num_climbs += 1
            # Each climb has a cache of its own to fill, and the pool's old blocks make way for it.
            run = bench.run(
                workload,
                progress=lambda written: tell(written / workload.num_output_tokens),
                cache_salt=str(num_climbs),
            )
            return _climb(run, workload, block_bytes)

        return _best(climb)


def _engine_config(ascent: Ascent, changes: dict[str, Any]) -> EngineConfig:
    """Steps of one prompt: what it shares is found in the cache only once the step that computed it is over."""
    config = ascent.config
    longest = max(len(job.prompt) for job in ascent.workload.jobs)
    step_tokens = config.max_num_batched_tokens or max(longest, config.max_num_seqs or 0)
    # Full numbers, a prefix cache and the fastest kernels are what a rung does not say otherwise.
    full: dict[str, Any] = {
        "quantization": "none",
        "quantization_group": 64,
        "quantization_zero_points": False,
        "kv_cache_dtype": "auto",
        "quantization_rounding": "auto",
        "enable_prefix_caching": True,
        "max_num_batched_tokens": step_tokens,
    }
    return replace(config, **{**full, **changes})


@contextmanager
def _engine(config: EngineConfig) -> Iterator[Assembly]:
    assembly = build(config)
    try:
        yield assembly
    finally:
        assembly.engine.close()


def _climb(run: WorkloadRun, workload: OfflineWorkload, block_bytes: int) -> Climb:
    return Climb(
        seconds=run.seconds,
        answers=tuple(answer.tokens for answer in run.answers),
        latencies=tuple(answer.timing.total or 0.0 for answer in run.answers),
        kv_bytes=run.most_blocks * block_bytes,
        cached_share=sum(answer.num_cached_tokens for answer in run.answers) / workload.num_input_tokens,
    )


def _best(climb: Callable[[], Climb]) -> Climb:
    """The fastest of a few, fewer where one takes long."""
    ends = time.perf_counter() + _PATIENCE
    climbs = [climb()]
    while len(climbs) < _MOST_CLIMBS and time.perf_counter() < ends:
        climbs.append(climb())
    return min(climbs, key=lambda one: one.seconds)


RUNGS = (
    Rung("naive", recompute),
    Rung(
        "+ KV cache",
        keep_keys,
        lambda _: "with so few tokens, a pass for each costs more than computing them again would",
    ),
    Rung(
        "+ paging, batching",
        batch,
        lambda climb: f"{len(climb.answers)} requests together do not pay for planning steps and paging the cache",
    ),
    Rung(
        "+ prefix cache",
        share_prefixes,
        lambda climb: (
            f"{climb.cached_share:.0%} of the prompts' tokens were found in the cache, and keeping it "
            "touches more memory"
        ),
    ),
    Rung("+ native kernels", run_native),
    Rung(
        "+ quantization",
        quantize,
        lambda _: "the weights fit in a cache either way, and rounding activations takes time",
        is_lossy=True,
    ),
    Rung("+ speculation", Cannot("this build has nothing that proposes tokens")),
)
"""In the order they are climbed. A rung's measurement takes the place of its Cannot when the engine learns it."""
