"""Counts what the engine's steps did, and records the last one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


@dataclass(slots=True)
class StepCounts:
    """Totals since the engine was built."""

    num_steps: int = 0
    num_computed_tokens: int = 0
    """Tokens that went through the model, prompt and answer alike."""
    num_generated_tokens: int = 0
    busy_time: float = 0.0
    """Seconds spent in steps."""
    num_drafts: int = 0
    """Sequences that had draft tokens, summed over steps."""
    num_draft_tokens: int = 0
    """Draft tokens that were verified."""
    num_accepted_tokens: int = 0
    """Those of them that were what would have been drawn."""
    accepted_per_position: list[int] = field(default_factory=list)
    """How often the first draft token of a sequence was accepted, the second, and so on."""
    drafting_time: float = 0.0
    """Seconds spent on proposing draft tokens. Verification is part of the step."""
    saved_seconds: float = 0.0
    """Estimated seconds saved by steps with draft tokens that took less than their tokens would have taken without."""
    lost_seconds: float = 0.0
    """Estimated seconds lost by those that took more."""

    def record(self, num_computed: int, num_generated: int, duration: float) -> None:
        self.num_steps += 1
        self.num_computed_tokens += num_computed
        self.num_generated_tokens += num_generated
        self.busy_time += duration

    def record_drafts(
        self, num_drafted: Mapping[int, int], drawn: Sequence[Sequence[int]], seconds: float, saved: float = 0.0
    ) -> None:
        """Count the draft tokens of a step, by chunk; the last of the drawn tokens of a chunk was never drafted.

        Savings and losses are counted separately, so that both totals only ever grow.
        """
        self.drafting_time += seconds
        self.saved_seconds += max(0.0, saved)
        self.lost_seconds += max(0.0, -saved)
        for index, count in num_drafted.items():
            num_accepted_tokens = max(0, len(drawn[index]) - 1)
            self.num_drafts += 1
            self.num_draft_tokens += count
            self.num_accepted_tokens += num_accepted_tokens
            self.accepted_per_position += [0] * (num_accepted_tokens - len(self.accepted_per_position))
            for depth in range(num_accepted_tokens):
                self.accepted_per_position[depth] += 1


class PlannedChunk(Protocol):
    """The tokens of one sequence that a step computes."""

    @property
    def start(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def samples(self) -> bool: ...


class LastStep(NamedTuple):
    """The chunks of a step as they were planned; aggregated only when they are read."""

    chunks: Sequence[PlannedChunk]
    num_tokens: int
    """Draft tokens among them."""
    seconds: float
    """From its plan to its commit, or from the commit before where that came later: steps may overlap."""
    num_draft_tokens: int = 0
