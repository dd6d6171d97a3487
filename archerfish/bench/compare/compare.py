"""Compares runs with a base: what differs, and with which confidence. Reads no file and prints nothing.

With several runs on every side, intervals come from the variance between runs (Welch's t). With a single run on any
side, they come from resampling: requests for latencies, slices of time for throughput.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from archerfish.bench.compare.measures import MEASURES, Measure, Resampler
from archerfish.bench.compare.statistics import Interval, bootstrap_interval, welch_interval
from archerfish.bench.compare.workloads import VALIDITY, Difference, differences
from archerfish.bench.serve.records import BenchRun
from archerfish.bench.serve.summary import summarize
from archerfish.errors import ConfigError
from archerfish.metrics.timing import Objectives

_NUM_RESAMPLES = 1000

Method = Literal["repeats", "bootstrap"]
Outcome = Literal["better", "worse", "perhaps better", "perhaps worse", "no difference"]
"""Outcome of a comparison.

"Perhaps" where single runs were resampled: that does not cover the variance between runs.
"""


@dataclass(frozen=True, slots=True)
class Side:
    """Repeated runs with the same label."""

    label: str
    runs: tuple[BenchRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change of a side against the base, relative to the base."""

    relative: float
    interval: Interval
    """95 % interval."""
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One measure on every side; None for sides without it."""

    name: str
    unit: str
    is_more_better: bool
    values: tuple[float | None, ...]
    """Mean of each side's runs."""
    changes: tuple[Change | None, ...]
    """Changes of the sides other than the base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    labels: tuple[str, ...]
    num_runs: tuple[int, ...]
    method: Method
    differences: tuple[Difference, ...]
    """Differences between the loads. With any, the sides are not comparable."""
    has_same_seeds: bool
    """Whether every side was sent the same prompts at the same times."""
    rows: tuple[ComparisonRow, ...]


def group(runs: Sequence[BenchRun]) -> list[Side]:
    """Group runs by label, in the order in which labels first appear."""
    labels = dict.fromkeys(run.label for run in runs)
    return [Side(label, tuple(run for run in runs if run.label == label)) for label in labels]


def compare(
    sides: Sequence[Side], *, objectives: Objectives | None = None, force: bool = False, seed: int = 0
) -> Comparison:
    """Compare sides with the first one, the base. Sides that are not comparable are refused, unless forced."""
    if len(sides) < 2:
        raise ConfigError(
            f"every run has the label {sides[0].label!r}, as repeats of one thing have: name the sides with "
            "LABEL=FILE, or with --label when they are measured"
        )
    mismatches = differences([run for side in sides for run in side.runs])
    if mismatches and not force:
        raise ConfigError(_refusal(sides, mismatches))
    method: Method = "repeats" if all(len(side.runs) > 1 for side in sides) else "bootstrap"
    measures = [measure for measure in MEASURES if objectives is not None or not measure.needs_objectives]
    return Comparison(
        labels=tuple(side.label for side in sides),
        num_runs=tuple(len(side.runs) for side in sides),
        method=method,
        differences=mismatches,
        has_same_seeds=len({tuple(sorted(run.workload.seed for run in side.runs)) for side in sides}) == 1,
        rows=tuple(_Judge(method, objectives, seed).rows(sides, measures)),
    )


def _refusal(sides: Sequence[Side], mismatches: Sequence[Difference]) -> str:
    """Return what is not comparable, and what to measure again."""
    loads = [mismatch for mismatch in mismatches if mismatch.field != VALIDITY]
    problems = [f"they differ in {mismatch.field}: {' or '.join(mismatch.values)}" for mismatch in loads]
    remedies = ["measure again with the same load (only --seed may differ)"] if loads else []
    for run in (run for side in sides for run in side.runs):
        fatal = next((finding for finding in run.findings if finding.is_fatal), None)
        if fatal is not None:
            problems.append(f"a run of {run.label!r} is INVALID ({fatal.name})")
            remedies.append(f"measure {run.label!r} again: {fatal.fix}")
    advice = "; ".join(dict.fromkeys(remedies))
    return f"these runs are not comparable: {'; '.join(dict.fromkeys(problems))}; {advice}; or give --force"


class _Judge:
    def __init__(self, method: Method, objectives: Objectives | None, seed: int) -> None:
        self._method = method
        self._objectives = objectives
        self._seed = seed

    def rows(self, sides: Sequence[Side], measures: Sequence[Measure]) -> list[ComparisonRow]:
        single = [[self._values(run, measures) for run in side.runs] for side in sides]
        resampled: list[list[Resampler]] = []
        if self._method == "bootstrap":
            resampled = [[Resampler(run, self._objectives) for run in side.runs] for side in sides]
        rows = []
        for index, measure in enumerate(measures):
            values = [[run[index] for run in side] for side in single]
            rows.append(self._row(measure, values, resampled))
        return rows

    def _values(self, run: BenchRun, measures: Sequence[Measure]) -> list[float | None]:
        summary = summarize(run, objectives=self._objectives)
        return [measure.read(summary) for measure in measures]

    def _row(
        self, measure: Measure, values: Sequence[Sequence[float | None]], resampled: Sequence[Sequence[Resampler]]
    ) -> ComparisonRow:
        # A side in which any run lacks a value has none: a mean over the other runs would not be comparable.
        sides = [_known(side) for side in values]
        base = sides[0]
        changes = [
            None if base is None or side is None or np.mean(base) == 0 else self._change(measure, base, side, pair)
            for side, pair in zip(sides[1:], _pairs(resampled, len(sides)), strict=True)
        ]
        return ComparisonRow(
            name=measure.name,
            unit=measure.unit,
            is_more_better=measure.is_more_better,
            values=tuple(None if side is None else float(np.mean(side)) for side in sides),
            changes=tuple(changes),
        )

    def _change(
        self, measure: Measure, base: list[float], side: list[float], pair: Sequence[Sequence[Resampler]]
    ) -> Change:
        relative = float(np.mean(side) / np.mean(base) - 1)
        if self._method == "repeats":
            interval = welch_interval(base, side)
        else:
            rng = np.random.default_rng(self._seed)
            of_base, of_side = (
                np.mean([run.replicates(measure, _NUM_RESAMPLES, rng) for run in runs], axis=0) for runs in pair
            )
            interval = bootstrap_interval(of_base, of_side)
        return Change(relative=relative, interval=interval, outcome=self._outcome(interval, measure))

    def _outcome(self, interval: Interval, measure: Measure) -> Outcome:
        if interval.low <= 0 <= interval.high:
            return "no difference"
        is_better = (interval.low > 0) == measure.is_more_better
        if self._method == "repeats":
            return "better" if is_better else "worse"
        return "perhaps better" if is_better else "perhaps worse"


def _known(values: Sequence[float | None]) -> list[float] | None:
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None


def _pairs(resampled: Sequence[Sequence[Resampler]], num_sides: int) -> list[Sequence[Sequence[Resampler]]]:
    """Return the base with each other side; nothing if nothing is resampled."""
    return [(resampled[0], side) for side in resampled[1:]] if resampled else [()] * (num_sides - 1)
