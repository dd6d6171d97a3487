"""Builds executors: the backend that runs a model, the state of its steps, and the speculation around it."""

from archerfish.config.resolve import ResolvedConfig
from archerfish.engine.factory.kernels import Kernels
from archerfish.engine.factory.speculation import DrafterFactory, build_controller, build_verification
from archerfish.execution.backends.cpu_program import RecordedModel
from archerfish.execution.backends.eager import EagerModel
from archerfish.execution.executor import Executor
from archerfish.execution.local import LocalExecutor
from archerfish.execution.step.model import RunnableModel, StepLimits
from archerfish.execution.step.rows import Rows
from archerfish.execution.step_state import PromptOutputs, StepState
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.sampling.row_grammars import RowGrammars
from archerfish.sampling.sampler import Sampler
from archerfish.speculation.verification.verifier import Verifier


def step_limits(config: ResolvedConfig) -> StepLimits:
    """Return the largest step that the settings allow."""
    return StepLimits(config.max_num_batched_tokens, config.max_num_seqs, config.max_drawn)


def build_runnable(
    kernels: Kernels,
    model: Decoder,
    storage: KVStorage,
    config: ResolvedConfig,
    aux_layers: tuple[int, ...] = (),
) -> RunnableModel:
    """Record the model for native kernels; without them it runs operation by operation."""
    if kernels.native is None:
        return EagerModel(model, storage, aux_layers)
    return RecordedModel(model, storage, kernels.native, step_limits(config), aux_layers)


def build_executor(
    kernels: Kernels,
    model: Decoder,
    storage: KVStorage,
    config: ResolvedConfig,
    grammars: RowGrammars | None,
    drafter: DrafterFactory | None = None,
) -> Executor:
    """Build the executor of a model: with CUDA graphs on a GPU, else with a CPU program or eager torch."""
    size = (config.max_num_seqs, config.max_model_len, len(storage.layout.windows), storage.block_size)
    sampler = Sampler(config.max_num_seqs, kernels.ops.draw, grammars)
    verifier = Verifier(sampler, build_verification(config))
    aux_layers = () if drafter is None else drafter.aux_layers
    rows: Rows
    runnable: RunnableModel
    captured = None
    if kernels.triton is not None:
        # Triton takes long to import, and may not be installed.
        from archerfish.execution.backends.cuda.device_rows import DeviceRows
        from archerfish.execution.backends.cuda.graphs import CapturedModel
        from archerfish.execution.device import DeviceExecutor

        rows = device_rows = DeviceRows(*size, config.device)
        runnable = captured = CapturedModel(
            model, storage, kernels.triton, device_rows, step_limits(config), aux_layers
        )
    else:
        rows = Rows(*size)
        runnable = build_runnable(kernels, model, storage, config, aux_layers)
    runtime = None if drafter is None else drafter.make(rows)
    controller = build_controller(config, rows, sampler, verifier, runtime)
    features = None if runtime is None else runtime.features
    prompt_outputs = PromptOutputs(runnable, rows, config.device)
    state = StepState(rows, storage, sampler, verifier, prompt_outputs, features)
    if captured is not None:
        return DeviceExecutor(captured, state, device_rows, controller)
    executor = LocalExecutor(runnable, state, controller)
    if executor.speculation is not None:
        executor.speculation.profile(step_limits(config))
    return executor
