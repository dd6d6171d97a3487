"""The rungs of the ladder: how each way of generating is run, or why it cannot be run here. Compares nothing."""

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
from archerfish.metrics.speculation import SpeculationTotals, speculation_between
from archerfish.ops import Target, why_not_native

_PATIENCE = 6.0
"""Seconds: a rung that takes less is climbed again, because others on the machine count most in short times."""
_MOST_CLIMBS = 3
_MOST_SECONDS = 60.0
"""For a second climb, which every rung has that takes less: the first may have paid for what is there only once."""
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
    acceptance: float | None = None
    """Share of the draft tokens that were accepted; None where there were none."""


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


def speculate(ascent: Ascent, tell: Tell) -> Climb | Cannot:
    """... with draft tokens that are verified several in a step."""
    resolved = examine(ascent.config).config
    if not resolved.speculates:
        asked, device = resolved.speculation.method, resolved.device
        return Cannot(f"--speculative-config method {asked} speculates nothing on {device}; name another method")
    return _through_engine(ascent, tell, **_speculation(ascent))


def quantize(ascent: Ascent, tell: Tell) -> Climb | Cannot:
    """... with smaller weights: those asked for, or else int8."""
    try:
        return _through_engine(ascent, tell, **_speculation(ascent), **_quantization(ascent))
    except ConfigError as error:
        return Cannot(str(error))


def quantize_cache(ascent: Ascent, tell: Tell) -> Climb | Cannot:
    """... and smaller keys and values: those asked for, or else 8 bits of the kind that the device has."""
    name = ascent.config.kv_cache_dtype
    if name == "auto":
        name = "int8" if examine(ascent.config).config.device == "cpu" else "fp8"
    try:
        return _through_engine(ascent, tell, **_speculation(ascent), **_quantization(ascent), kv_cache_dtype=name)
    except ConfigError as error:
        return Cannot(str(error))


def _speculation(ascent: Ascent) -> dict[str, Any]:
    return {"speculative_config": ascent.config.speculative_config}


def _quantization(ascent: Ascent) -> dict[str, Any]:
    asked = ascent.config
    name: Quantization = "int8" if asked.quantization == "none" else asked.quantization
    return {
        "quantization": name,
        "quantization_group": asked.quantization_group,
        "quantization_zero_points": asked.quantization_zero_points,
        "quantization_rounding": asked.quantization_rounding,
    }


def _through_engine(ascent: Ascent, tell: Tell, **changes: Any) -> Climb:
    workload = ascent.workload
    with _engine(_engine_config(ascent, changes)) as assembly:
        bench = OfflineBench.of(assembly)
        # Of all requests: kernels meet every batch size, and the cache's memory is touched for the first time.
        jobs = tuple(Job(job.prompt, min(job.num_tokens, _WARM_UP_TOKENS)) for job in workload.jobs)
        bench.run(replace(workload, jobs=jobs), cache_salt="warm-up")
        block_bytes = assembly.cache_size.num_bytes // assembly.cache_size.num_blocks
        num_climbs = 0

        def climb() -> Climb:
            nonlocal num_climbs
            num_climbs += 1
            before = bench.speculation_totals
            # Each climb has a cache of its own to fill, and the pool's old blocks make way for it.
            run = bench.run(
                workload,
                progress=lambda written: tell(written / workload.num_output_tokens),
                cache_salt=str(num_climbs),
            )
            return replace(_climb(run, workload, block_bytes), acceptance=_acceptance(before, bench.speculation_totals))

        return _best(climb)


def _engine_config(ascent: Ascent, changes: dict[str, Any]) -> EngineConfig:
    """Steps of one prompt: what it shares is found in the cache only once the step that computed it is over."""
    config = ascent.config
    longest = max(len(job.prompt) for job in ascent.workload.jobs)
    step_tokens = config.max_num_batched_tokens or max(longest, config.max_num_seqs or 0)
    # Full numbers, a prefix cache, the fastest kernels and no speculation are what a rung does not say otherwise.
    full: dict[str, Any] = {
        "quantization": "none",
        "quantization_group": 64,
        "quantization_zero_points": False,
        "kv_cache_dtype": "auto",
        "quantization_rounding": "auto",
        "speculative_config": {"method": "off"},
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


def _acceptance(before: SpeculationTotals, after: SpeculationTotals) -> float | None:
    found = speculation_between(before, after)
    return None if found is None else found.acceptance_rate


def _best(climb: Callable[[], Climb], clock: Callable[[], float] = time.perf_counter) -> Climb:
    """The fastest of a few, fewer where one takes long."""
    ends = clock() + _PATIENCE
    climbs = [climb()]
    fewest = 1 if climbs[0].seconds > _MOST_SECONDS else 2
    while len(climbs) < fewest or (len(climbs) < _MOST_CLIMBS and clock() < ends):
        climbs.append(climb())
    return min(climbs, key=lambda one: one.seconds)


def _why_speculation_is_slower(climb: Climb) -> str:
    if climb.acceptance is None:
        return "no step had a draft, as none was expected to pay; measure on a quiet machine"
    return (
        f"{climb.acceptance:.0%} of the draft tokens were accepted, and with {len(climb.answers)} requests in a step "
        "verifying them costs more than with one"
    )


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
    Rung("+ speculation", speculate, _why_speculation_is_slower),
    Rung(
        "+ quantization",
        quantize,
        lambda _: "the weights fit in a cache either way, and rounding activations takes time",
        is_lossy=True,
    ),
    Rung(
        "+ KV quantization",
        quantize_cache,
        lambda _: "with contexts so short, reading keys and values is a small part of a step",
        is_lossy=True,
    ),
)
"""In the order they are climbed: each has what those before it have, the lossy ones last."""
