"""Names the bottleneck of a run, the figures behind it, and what to try next."""

from dataclasses import dataclass
from enum import StrEnum

from archerfish.bench.report.facts import Roof, ServerFacts, read_facts
from archerfish.bench.report.remedies import Advice, Remedies
from archerfish.bench.serve.records import BenchRun, Workload
from archerfish.bench.serve.summary import Summary

_MOST = 0.5
"""Share of the time from which on a cause counts as the bottleneck."""
_ROWS_FULL = 0.9
_CROWDED = 0.1
"""Share of the time with a full KV cache and waiting requests, from which on capacity is the bottleneck."""


class RunLimit(StrEnum):
    """The bottleneck of a run."""

    COMPUTE = "compute-bound"
    BANDWIDTH = "bandwidth-bound"
    CAPACITY = "capacity-bound"
    HOST = "host-bound"
    """Work between steps."""
    OVERHEAD = "overhead-bound"
    """Steps that are slower than the peak explains: kernels are slow, or too small for the machine."""
    QUEUE = "queue-bound"
    LOAD = "load-bound"
    """The client: the server could have done more."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Evidence:
    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    limit: RunLimit
    reason: str
    """The reason, in a sentence."""
    evidence: tuple[Evidence, ...]
    advice: tuple[Advice, Advice]
    """The two settings most worth trying, the better one first."""


def judge_run(run: BenchRun, summary: Summary) -> RunVerdict:
    facts = read_facts(run, summary)
    if facts is None:
        return RunVerdict(
            limit=RunLimit.UNKNOWN,
            reason="the server published no metrics during the run",
            evidence=(),
            advice=_ADVICE_TO_LOOK,
        )
    limit, reason = _find(facts)
    usual = _advice(limit, facts, run.workload)
    advice = _first_two(_format_advice(limit, Remedies.of(run)), usual, lossless_first=limit is RunLimit.CAPACITY)
    return RunVerdict(limit=limit, reason=reason, evidence=_evidence(facts), advice=advice)


# -- what it was ------------------------------------------------------------------------------------------------------


def _find(facts: ServerFacts) -> tuple[RunLimit, str]:
    """Return the first cause that applies. Causes outside of steps come first, because they shape the steps."""
    if facts.engine.num_preemptions > 0 or facts.crowded_share >= _CROWDED:
        return RunLimit.CAPACITY, _capacity_reason(facts)
    if facts.active_share < _MOST:
        return RunLimit.LOAD, f"the server had nothing to do for {1 - facts.active_share:.0%} of the time"
    if facts.engine.busy_share < _MOST * facts.active_share:
        between = facts.active_share - facts.engine.busy_share
        return RunLimit.HOST, f"for {between:.0%} of the time there were requests, but no step was running"
    return _find_in_steps(facts, facts.roof)


def _find_in_steps(facts: ServerFacts, roof: Roof | None) -> tuple[RunLimit, str]:
    near_roof = roof is not None and roof.share >= _MOST
    compute = roof is not None and roof.compute_seconds >= roof.bandwidth_seconds
    if roof is not None and near_roof and compute:
        return RunLimit.COMPUTE, f"operations at the machine's peak rate fill {_of(roof.compute_seconds, roof)}"
    if _is_queueing(facts):
        return RunLimit.QUEUE, _queue_reason(facts)
    if roof is not None and near_roof:
        return RunLimit.BANDWIDTH, f"reading at the machine's peak rate fills {_of(roof.bandwidth_seconds, roof)}"
    if roof is not None:
        return RunLimit.OVERHEAD, (
            f"a perfect machine would need {roof.share:.0%} of the time in steps: the rest is neither arithmetic nor "
            "memory, but kernels that are slow or too small, and everything around them"
        )
    return RunLimit.UNKNOWN, "steps fill the time, but the peak of the machine is unknown"


def _is_queueing(facts: ServerFacts) -> bool:
    """Return whether requests wait most of the time, and longer than until the next step."""
    waits_often = facts.waiting_share >= _MOST * facts.active_share
    return waits_often and (facts.queue_share is None or facts.queue_share >= _MOST)


def _of(seconds: float, roof: Roof) -> str:
    return f"{seconds / roof.busy_seconds:.0%} of the time in steps"


def _capacity_reason(facts: ServerFacts) -> str:
    if facts.engine.num_preemptions > 0:
        num_preemptions = facts.engine.num_preemptions
        return f"the KV cache was full: sequences were preempted {num_preemptions:,} times and computed again"
    return f"the KV cache was full while requests waited, {facts.crowded_share:.0%} of the time"


def _queue_reason(facts: ServerFacts) -> str:
    waiting = f"requests were queued for {facts.waiting_share:.0%} of the time"
    if facts.occupancy >= _ROWS_FULL:
        return f"{waiting}, because every row of the batch was in use"
    return f"{waiting}, though rows and KV cache were free: prompts arrive faster than steps compute them"


# -- by which figures -------------------------------------------------------------------------------------------------


def _evidence(facts: ServerFacts) -> tuple[Evidence, ...]:
    evidence = [
        Evidence("Time in steps", f"{facts.engine.busy_share:.0%}"),
        Evidence("Time with requests", f"{facts.active_share:.0%}"),
        Evidence("Time with requests waiting", f"{facts.waiting_share:.0%}"),
        Evidence("Batch occupancy, highest", f"{facts.occupancy:.0%}"),
        Evidence("KV cache in use, highest", f"{facts.engine.largest_kv_cache_usage:.0%}"),
        Evidence("Preemptions", f"{facts.engine.num_preemptions:,}"),
    ]
    if facts.queue_share is not None:
        evidence.append(Evidence("Queueing, share of TTFT", f"{facts.queue_share:.0%}"))
    if facts.engine.prefix_hit_share is not None:
        evidence.append(Evidence("Prefix cache hits", f"{facts.engine.prefix_hit_share:.0%}"))
    if facts.engine.utilization is not None:
        used = facts.engine.utilization
        evidence += [Evidence("MFU in steps", f"{used.mfu:.1%}"), Evidence("MBU in steps", f"{used.mbu:.1%}")]
    if facts.roof is not None:
        evidence.append(Evidence("A perfect machine's share of steps", f"{facts.roof.share:.0%}"))
    return tuple(evidence)


# -- what to try ------------------------------------------------------------------------------------------------------

_ADVICE_TO_LOOK = (
    Advice("--url", "leave it out", "a server started for the run is watched while it works"),
    Advice("--request-rate", "sweep it", "archerfish bench sweep finds where latency begins to rise"),
)
_ONE_READING = "more sequences share one reading of the weights"
_ONE_STEP = "more sequences share what a step costs whatever is in it"
_LEAVE_A_CORE = "one fewer than the cores, so that the process that talks to clients never waits for one"
_SHORTER_CHUNKS = "prompts hold up running answers less: a lower ITL tail for a later first token"
_MORE_TOKENS = Advice("--max-num-batched-tokens", "raise it", "more of the waiting prompts enter each step")
_SMALLER_NUMBERS = Advice("--dtype", "bfloat16", "lower precision, where the model is in float32: half the bytes")


def _format_advice(limit: RunLimit, remedies: Remedies | None) -> list[Advice]:
    """Return number formats and speculation that are worth trying, the better ones first."""
    if remedies is None:
        return []
    if limit is RunLimit.BANDWIDTH:
        return remedies.against_reading()
    if limit is RunLimit.COMPUTE:
        return remedies.against_computing()
    if limit is RunLimit.CAPACITY:
        return remedies.against_full_cache()
    return remedies.against_overhead() if limit is RunLimit.OVERHEAD else []


def _first_two(formats: list[Advice], usual: tuple[Advice, Advice], *, lossless_first: bool) -> tuple[Advice, Advice]:
    """Choose two, formats first; if a lossless setting may do as well, it gets the first line."""
    ranked = [usual[0], *formats, usual[1]] if lossless_first else [*formats, *usual]
    return ranked[0], ranked[1]


def _advice(limit: RunLimit, facts: ServerFacts, workload: Workload) -> tuple[Advice, Advice]:
    if limit is RunLimit.COMPUTE:
        return (
            Advice("--dtype", "bfloat16", "lower precision, where the model is in float32: twice the operations"),
            Advice("--max-num-batched-tokens", "lower it", _SHORTER_CHUNKS),
        )
    if limit is RunLimit.BANDWIDTH:
        return _more_at_once(facts, workload, _ONE_READING), _SMALLER_NUMBERS
    if limit is RunLimit.CAPACITY:
        more = Advice("--gpu-memory-utilization", "raise it", "more blocks, so that sequences are not preempted")
        fewer = Advice("--max-num-seqs", "lower it", "fewer sequences at once, none computed twice")
        return more, (fewer if facts.engine.num_preemptions > 0 else _SMALLER_NUMBERS)
    if limit is RunLimit.HOST:
        return Advice("--threads", "lower it", _LEAVE_A_CORE), _more_at_once(facts, workload, _ONE_STEP)
    if limit is RunLimit.OVERHEAD:
        longer = Advice("--max-num-batched-tokens", "raise it", "longer chunks make larger kernels")
        return _more_at_once(facts, workload, _ONE_STEP), longer
    if limit is RunLimit.QUEUE:
        rows_full = facts.occupancy >= _ROWS_FULL
        less = _load(workload, raised=False, why="or share it with another server: requests only wait")
        return (_more_at_once(facts, workload, _ONE_READING) if rows_full else _MORE_TOKENS), less
    if limit is RunLimit.LOAD:
        return (
            _load(workload, raised=True, why="the server has time for more"),
            Advice("archerfish bench sweep", "run it", "it finds the most that is served in time"),
        )
    peaks = "with both, steps can be held against what the machine can do"
    return Advice("--peak-flops", "set it", peaks), Advice("--peak-bandwidth", "set it", peaks)


def _more_at_once(facts: ServerFacts, workload: Workload, why: str) -> Advice:
    """Advise more sequences at once: by the server if its rows are full, else by the client."""
    if facts.occupancy >= _ROWS_FULL:
        return Advice("--max-num-seqs", "raise it", why)
    return _load(workload, raised=True, why=why)


def _load(workload: Workload, *, raised: bool, why: str) -> Advice:
    """Return the option that sets this load."""
    if workload.arrivals == "trace":
        return Advice("--time-scale", "lower it" if raised else "raise it", why)
    flag = "--request-rate"
    if workload.arrivals == "closed":
        flag = "--num-prompts" if workload.max_concurrency is None else "--max-concurrency"
    return Advice(flag, "raise it" if raised else "lower it", why)
