"""What the engine expects of whatever runs its plans."""

from dataclasses import dataclass
from typing import Protocol

from archerfish.scheduling.plan import Plan, RoomForGuesses, StepResult


class Launched(Protocol):
    """A step under way."""

    def result(self) -> StepResult:
        """Wait for what became of the plan. An exception ends the engine.

        Results are asked for in the order of the launches; a second time only where an interrupt tore the first.
        """


class Executor(Protocol):
    """Runs plans in the order of their launches, each on what the ones before it wrote and drew."""

    @property
    def max_in_flight(self) -> int:
        """How many steps may be launched before the result of the first is asked for.

        With more than one, a chunk may start at a token that a step in flight draws, and every draw gives one token.
        """

    @property
    def guessing(self) -> RoomForGuesses | None:
        """How many tokens it guesses for each sequence of a step, at most; None if it never guesses."""

    def launch(self, plan: Plan) -> Launched:
        """Run the model once over all chunks and draw the next tokens. An exception ends the engine."""

    def close(self) -> None:
        """Let go of memory and devices. Called once, when nothing is in flight any more."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A step that was computed as it was launched."""

    outcome: StepResult

    def result(self) -> StepResult:
        return self.outcome
