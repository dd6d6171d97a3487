"""Measures a server at many loads, and finds the highest that meets its objectives. Knows neither HTTP nor charts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final, Literal

from archerfish.bench.cost import Costs
from archerfish.bench.distribution import Distribution
from archerfish.bench.serve.records import BenchRun
from archerfish.bench.serve.summary import Summary, summarize
from archerfish.bench.sweep.search import Ending, Found, LoadPoint, LoadTrial, Outcome, SearchPlan, search
from archerfish.metrics.timing import Objectives

FORMAT: Final = 1
"""Version of the file format, increased when older files can no longer be read unchanged."""

SERVER_STALLED = frozenset(("over-saturated", "throttled", "errors", "held-back"))
"""Findings that show that a load was missed, although the run is no measurement of latency.

All other fatal findings are caused by the client or the load itself, and such a run is inconclusive.
"""

Axis = Literal["request rate", "concurrency"]
LatencyName = Literal["ttft", "tpot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """The conditions under which a load holds, and how loads are tried."""

    axis: Axis
    objectives: Objectives | None
    """Objectives of requests. Without any, a load holds if the server keeps up with it."""
    goodput_share: float
    """Share of the requests that must meet the objectives."""
    dollars_per_hour: float | None = None
    search: SearchPlan = field(default_factory=SearchPlan)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    outcome: Outcome
    reasons: tuple[str, ...]
    """Reasons why it missed or was not counted."""
    seed: int
    summary: Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRecord:
    load: float
    """Requests per second, or requests at once."""
    outcome: Outcome
    trials: tuple[TrialRecord, ...]

    @property
    def counted(self) -> list[Summary]:
        return [trial.summary for trial in self.trials if trial.outcome != "not counted"]

    def mean(self, read: Callable[[Summary], float | None]) -> float | None:
        """Return the mean of the trials that count and have the value."""
        values = [value for summary in self.counted if (value := read(summary)) is not None]
        return fmean(values) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The result of a sweep."""

    format: Literal[1] = FORMAT
    kind: Literal["archerfish-bench-sweep"] = "archerfish-bench-sweep"
    version: str
    label: str
    axis: Axis
    objectives: Objectives | None
    goodput_share: float
    points: tuple[PointRecord, ...]
    """Points by load, ascending."""
    best: float | None
    """The highest load that held; None if none did."""
    ending: Ending
    costs: Costs | None
    """Costs at the best load, in the trial of median throughput; None without a price."""

    @property
    def best_point(self) -> PointRecord | None:
        return next((point for point in self.points if point.load == self.best), None)


def sweep(measure: Callable[[float, int], BenchRun], plan: SweepPlan) -> Sweep:
    """Run a sweep.

    `measure` takes a load, and a number that no other trial has, so that prompts are never in a cache.
    """
    label = version = ""
    num_trials = 0

    def attempt(load: float) -> LoadTrial[TrialRecord]:
        nonlocal label, version, num_trials
        run = measure(load, num_trials)
        num_trials += 1
        label, version = run.target.model, run.version
        return _judge(run, plan)

    result = search(attempt, plan.search)
    return Sweep(
        version=version,
        label=label,
        axis=plan.axis,
        objectives=plan.objectives,
        goodput_share=plan.goodput_share,
        points=tuple(_record(point) for point in result.points),
        best=None if result.best is None else result.best.load,
        ending=result.ending,
        costs=_costs(result),
    )


def _judge(run: BenchRun, plan: SweepPlan) -> LoadTrial[TrialRecord]:
    summary = summarize(run, objectives=plan.objectives, dollars_per_hour=plan.dollars_per_hour)
    fatal = [finding.name for finding in run.findings if finding.is_fatal]
    outcome: Outcome = "held"
    reasons: list[str] = []
    if any(name not in SERVER_STALLED for name in fatal):
        outcome, reasons = "not counted", [name for name in fatal if name not in SERVER_STALLED]
    elif fatal:
        outcome, reasons = "missed", fatal
    elif summary.goodput is not None and summary.goodput.share < plan.goodput_share:
        outcome, reasons = "missed", [f"{summary.goodput.share:.1%} good"]
    record = TrialRecord(outcome=outcome, reasons=tuple(reasons), seed=run.workload.seed, summary=summary)
    return LoadTrial(outcome=outcome, throughput=summary.throughput.output_tokens, detail=record)


def _record(point: LoadPoint[TrialRecord]) -> PointRecord:
    return PointRecord(load=point.load, outcome=point.outcome, trials=tuple(trial.detail for trial in point.trials))


def _costs(result: Found[TrialRecord]) -> Costs | None:
    if result.best is None:
        return None
    held = sorted(
        (trial for trial in result.best.trials if trial.outcome == "held"), key=lambda trial: trial.throughput
    )
    return held[len(held) // 2].detail.summary.costs


# -- in words ---------------------------------------------------------------------------------------------------------

_ENDINGS: dict[Ending, str] = {
    "missed": "a little more does not hold",
    "saturated": "twice as much brings hardly more throughput",
    "not counted": "more could not be measured: the client or the load itself is the limit",
    "all held": "every listed load holds; list higher ones",
    "budget": "it may be higher, but no measurements were left; raise --max-points",
    "nothing held": "not even the lowest load that was tried",
}


def verdict_text(sweep: Sweep) -> str:
    """Return one sentence: which load holds, and why not more."""
    if sweep.best is None:
        return f"No load holds: {_ENDINGS[sweep.ending]}."
    return f"{load_text(sweep.best, sweep.axis)} holds; {_ENDINGS[sweep.ending]}."


def load_text(load: float, axis: Axis) -> str:
    return f"{load:,.4g} requests/s" if axis == "request rate" else f"{load:,.0f} requests at once"


def percentile_of(name: LatencyName, percent: float) -> Callable[[Summary], float | None]:
    """Return a function that reads a percentile in milliseconds."""

    def read(summary: Summary) -> float | None:
        latency: Distribution | None = getattr(summary.latencies, name)
        return None if latency is None else latency.percentile(percent) * 1000

    return read


def uncounted_reasons(points: Sequence[PointRecord]) -> list[str]:
    """Return one line for each trial that was not counted."""
    return [
        f"{point.load:,.4g}: not counted ({', '.join(trial.reasons)})"
        for point in points
        for trial in point.trials
        if trial.outcome == "not counted"
    ]
