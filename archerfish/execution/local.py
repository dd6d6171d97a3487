"""The executor of a CPU, and of plain torch: a step is computed when it is launched."""

import torch

from archerfish.execution.executor import FinishedStep
from archerfish.execution.host_steps import PlainStep, SpeculativeStep
from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step.model import RunnableModel
from archerfish.execution.step_state import StepState
from archerfish.scheduling.plan import Plan, StepResult
from archerfish.speculation.controller import SpeculationController


class LocalExecutor:
    """Runs one step at a time, with drafts where there is a controller."""

    max_in_flight = 1

    def __init__(self, model: RunnableModel, state: StepState, controller: SpeculationController | None = None) -> None:
        self.state = state
        self._model = model
        self._plain = PlainStep(model, state)
        self.speculation = None if controller is None else SpeculativeStep(self._plain, state, controller)
        """How steps with drafts are run; None without speculation."""

    @property
    def max_draft_tokens(self) -> int | None:
        return None if self.speculation is None else self.speculation.controller.max_draft_tokens

    @torch.inference_mode()
    def launch(self, plan: Plan) -> FinishedStep:
        self.state.apply(plan)
        if self.speculation is not None:
            self.speculation.begin(plan)
        if not plan.chunks:
            return FinishedStep(StepResult([]))
        if self.speculation is not None:
            return FinishedStep(self.speculation.run(plan))
        return FinishedStep(self._plain.run(plan, StepBatch.of(plan.chunks)))

    def run(self, plan: Plan) -> StepResult:
        """Launch a step and return its result."""
        return self.launch(plan).result()

    def close(self) -> None:
        self._model.close()
        del self._model, self._plain, self.speculation, self.state
