"""Counts what the engine's steps did, and keeps what the last one held."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(slots=True)
class StepCounts:
    """Totals since the engine was built."""

    num_steps: int = 0
    num_computed_tokens: int = 0
    """Tokens that went through the model, prompt and answer alike."""
    num_generated_tokens: int = 0
    busy_time: float = 0.0
    """Seconds spent in steps."""

    def record(self, num_computed: int, num_generated: int, duration: float) -> None:
        self.num_steps += 1
        self.num_computed_tokens += num_computed
        self.num_generated_tokens += num_generated
        self.busy_time += duration


class LastStep(NamedTuple):
    """What a step held, as it was planned: kept at no cost, worked out only by whoever reads it."""

    chunks: Sequence[tuple[Any, ...]]
    """(row, start, length, samples, ...) of each."""
    num_tokens: int
    seconds: float
    """From its plan to its commit, or from the commit before where that came later: steps may overlap."""
