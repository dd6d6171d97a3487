"""Counts what the engine's steps did, and keeps what the last one held."""

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
    """Sequences that tokens were guessed for, each step anew."""
    num_draft_tokens: int = 0
    """Tokens that were guessed, and checked."""
    num_accepted_tokens: int = 0
    """Those of them that were what would have been drawn."""
    accepted_per_position: list[int] = field(default_factory=list)
    """How often the first guess of a draft stood, the second, and so on."""
    drafting_time: float = 0.0
    """Seconds spent on guessing. Checking is part of the step."""
    saved_seconds: float = 0.0
    """By steps with guesses that took less than their tokens would have taken without, as the engine estimates."""
    lost_seconds: float = 0.0
    """By those that took more."""

    def record(self, num_computed: int, num_generated: int, duration: float) -> None:
        self.num_steps += 1
        self.num_computed_tokens += num_computed
        self.num_generated_tokens += num_generated
        self.busy_time += duration

    def record_drafts(
        self, guessed: Mapping[int, int], drawn: Sequence[Sequence[int]], seconds: float, saved: float = 0.0
    ) -> None:
        """By chunk, how many tokens were guessed; and what was drawn, the last token of which nobody guessed.

        What was saved and what was lost are kept apart: totals that never fall can be told from another engine's.
        """
        self.drafting_time += seconds
        self.saved_seconds += max(0.0, saved)
        self.lost_seconds += max(0.0, -saved)
        for place, count in guessed.items():
            num_accepted_tokens = max(0, len(drawn[place]) - 1)
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
    """What a step held, as it was planned: kept at no cost, worked out only by whoever reads it."""

    chunks: Sequence[PlannedChunk]
    num_tokens: int
    """Guesses among them."""
    seconds: float
    """From its plan to its commit, or from the commit before where that came later: steps may overlap."""
    num_draft_tokens: int = 0
