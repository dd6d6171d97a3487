"""Compares the workloads of runs: only runs with the same one are comparable."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from archerfish.bench.serve.records import BenchRun, RequestRecord, Workload

_SAME_LENGTH, _BY_CHANCE = 0.05, 4.0
"""Mean lengths within this share of each other, or so many standard errors, count as the same load."""
_FREE = ("seed",)
"""Fields in which repeats may differ."""
VALIDITY = "validity"
"""Name of the difference between valid and INVALID runs."""


@dataclass(frozen=True, slots=True)
class Difference:
    field: str
    values: tuple[str, ...]
    """Values in the order of their first appearance."""


def differences(runs: Sequence[BenchRun]) -> tuple[Difference, ...]:
    """Return all differences between the loads, which make the servers incomparable."""
    mismatches = []
    for field in fields(Workload):
        if field.name not in _FREE:
            mismatches += _differing(field.name, [str(getattr(run.workload, field.name)) for run in runs])
    mismatches += _differing("endpoint", [run.target.endpoint for run in runs])
    mismatches += _lengths("mean input tokens requested", runs, lambda request: request.num_prompt_tokens_requested)
    mismatches += _lengths("mean output tokens requested", runs, lambda request: request.num_output_tokens_requested)
    if not all(run.is_valid for run in runs):
        outcomes = ["valid" if run.is_valid else f"INVALID ({_reasons(run)})" for run in runs]
        mismatches.append(Difference(VALIDITY, tuple(dict.fromkeys(outcomes))))
    return tuple(mismatches)


def _differing(name: str, values: Sequence[str]) -> list[Difference]:
    distinct = tuple(dict.fromkeys(values))
    return [Difference(name, distinct)] if len(distinct) > 1 else []


def _lengths(name: str, runs: Sequence[BenchRun], read: Callable[[RequestRecord], int | None]) -> list[Difference]:
    means, errors = [], []
    for run in runs:
        lengths = [length for request in run.requests if (length := read(request)) is not None] or [0]
        means.append(float(np.mean(lengths)))
        errors.append(float(np.std(lengths)) / len(lengths) ** 0.5)
    by_chance = _BY_CHANCE * 2**0.5 * max(errors)
    if max(means) - min(means) <= max(_SAME_LENGTH * max(means), by_chance):
        return []
    return _differing(name, [f"{mean:,.1f}" for mean in means])


def _reasons(run: BenchRun) -> str:
    return ", ".join(finding.name for finding in run.findings if finding.is_fatal)
