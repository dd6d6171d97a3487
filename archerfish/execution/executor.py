"""The protocol of executors: what the engine expects of whatever runs its plans."""

from dataclasses import dataclass
from typing import Protocol

from archerfish.scheduling.plan import Plan, StepResult


class LaunchedStep(Protocol):
    """A step in flight."""

    def result(self) -> StepResult:
        """Wait for the step's result. An exception ends the engine.

        Results are read in the order of the launches; a second time only where an interrupt broke off the first.
        """


class Executor(Protocol):
    """Runs plans in the order of their launches, each on what the ones before it wrote and sampled."""

    @property
    def max_in_flight(self) -> int:
        """How many steps may be launched before the result of the first is read.

        With more than one, a chunk may start at a token that a step in flight samples, and each sample is one token.
        """

    @property
    def max_draft_tokens(self) -> int | None:
        """Draft tokens that each chunk of the next step may have; None if it never speculates.

        For the first step: later ones go by the result committed last.
        """

    def launch(self, plan: Plan) -> LaunchedStep:
        """Run the model once over all chunks and sample the next tokens. An exception ends the engine."""

    def close(self) -> None:
        """Release memory and devices. Called once, when nothing is in flight any more."""


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step that was computed when it was launched."""

    outcome: StepResult

    def result(self) -> StepResult:
        return self.outcome
