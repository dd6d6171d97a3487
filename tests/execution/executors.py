"""A local executor of parts that tests have."""

from archerfish.execution.local import LocalExecutor
from archerfish.execution.step.model import RunnableModel
from archerfish.execution.step.rows import Rows
from archerfish.execution.step_state import PromptOutputs, StepState
from archerfish.kvcache.storage import KVStorage
from archerfish.sampling.sampler import Sampler
from archerfish.speculation.controller import SpeculationController
from archerfish.speculation.verification.verifier import VerificationConfig, Verifier


def local_executor(
    model: RunnableModel,
    storage: KVStorage,
    rows: Rows,
    sampler: Sampler,
    controller: SpeculationController | None = None,
    verifier: Verifier | None = None,
) -> LocalExecutor:
    verifier = Verifier(sampler, VerificationConfig()) if verifier is None else verifier
    state = StepState(rows, storage, sampler, verifier, PromptOutputs(model, rows, "cpu"))
    return LocalExecutor(model, state, controller)
