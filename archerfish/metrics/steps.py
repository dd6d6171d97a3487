"""Counts what the engine's steps did."""

from dataclasses import dataclass


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
