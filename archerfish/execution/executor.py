"""What the engine expects of whatever runs its plans."""

from typing import Protocol

from archerfish.scheduling.plan import Plan, StepResult


class Executor(Protocol):
    def run(self, plan: Plan) -> StepResult:
        """Run the model once over all chunks and draw the next tokens. An exception ends the engine."""

    def close(self) -> None:
        """Let go of memory and devices. Called once, after the last run."""
