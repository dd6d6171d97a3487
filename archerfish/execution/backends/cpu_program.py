"""The CPU program backend: a model recorded once as native programs, which replay every step without Python."""

import torch
from torch import Tensor

from archerfish.arch.arch import Arch
from archerfish.execution.memory import LOGIT_ROWS_AT_ONCE
from archerfish.execution.step.inputs import StepBatch, no_chunks
from archerfish.execution.step.model import ForwardOutput, StepLimits
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.models.eagle import Eagle
from archerfish.models.medusa import Medusa
from archerfish.ops.arrays import Ints
from archerfish.ops.cpu.arguments import step_view
from archerfish.ops.cpu.drafting import Drafted, DraftPass, NativeDrafting
from archerfish.ops.cpu.native import NativeOps
from archerfish.ops.cpu.recording import RECORDED_ROWS, CpuProgram, CpuRecording
from archerfish.ops.cpu.step_assembler import StepAssembler
from archerfish.ops.signatures import DrawRows


class RecordedPass:
    """A recorded pass of a network over chunks of rows."""

    def __init__(self, program: CpuProgram, native: NativeOps, limits: StepLimits, num_inputs: int = 0) -> None:
        self.team = native.team
        self.limits = limits
        self._program = program
        self._num_inputs = num_inputs
        self._buffers: StepAssembler | None = None
        """Buffers for the rows that the pass is run with, which are the same every time."""

    def run(self, batch: StepBatch, rows: Rows, *inputs: Tensor) -> ForwardOutput:
        """Run a batch, with further inputs [T, width] where the network takes any. Valid until the next pass."""
        buffers, trees = self._buffers_of(rows), batch.trees
        if trees is None:
            assembly = buffers.set_chunks(batch.chunks)
        else:
            assembly = buffers.set_trees(batch.chunks, trees.depths, trees.paths)
        self.set_inputs(inputs)
        num_rows = self.team.run_chunks(self._program.instructions, assembly)
        hidden, logits, *aux_hidden_states = self._program.rows[self._num_inputs :]
        return ForwardOutput(
            hidden[:num_rows],
            logits[: len(batch.sampled_chunks)],
            tuple(states[:num_rows] for states in aux_hidden_states),
        )

    def set_inputs(self, inputs: tuple[Tensor, ...]) -> None:
        """Write what the next pass reads besides tokens."""
        for buffer, value in zip(self._program.rows[: self._num_inputs], inputs, strict=True):
            buffer[: len(value)] = value

    def for_drafts(self, rows: Rows) -> DraftPass:
        """Return the pass as native drafting takes it: with one input at most, which may be its own states."""
        *given, hidden, logits = self._program.rows[: self._num_inputs + 2]
        return DraftPass(self._program, self._buffers_of(rows), hidden, logits, given[0] if given else None)

    def _buffers_of(self, rows: Rows) -> StepAssembler:
        if self._buffers is None:
            self._buffers = StepAssembler(
                rows.tokens,
                rows.tables,
                rows.block_size,
                max_tokens=self.limits.max_tokens,
                max_chunks=self.limits.max_chunks,
                max_logits=self.limits.max_logits,
            )
        return self._buffers


class RecordedDrafts:
    """Whole drafts in one native call: a pass over new tokens, then one pass per further draft token."""

    def __init__(
        self,
        first: RecordedPass,
        further: RecordedPass,
        rows: Rows,
        vocab_size: int,
        target_ids: Tensor | None = None,
    ) -> None:
        """`further` takes the states of either pass for each row's last token, if it takes any input."""
        assert vocab_size <= NativeOps.MAX_VOCAB_SIZE, f"a vocabulary of {vocab_size} exceeds the native buffers"
        self._first = first
        max_rows = min(first.limits.max_chunks, first.limits.max_logits)
        self._buffers = NativeDrafting(
            first.for_drafts(rows), further.for_drafts(rows), max_rows, vocab_size, target_ids
        )

    def __call__(self, batch: StepBatch, draw_rows: DrawRows, counts: Ints, *given: Tensor) -> Drafted:
        self._first.set_inputs(given)
        return self._buffers.draft(self._first.team, batch.chunks, draw_rows, counts)


class RecordedModel:
    """A RunnableModel of two programs: from tokens to states and logits, and from states to logits.

    It also returns the inputs of `aux_layers`.
    """

    def __init__(
        self,
        model: Decoder,
        storage: KVStorage,
        native: NativeOps,
        limits: StepLimits,
        aux_layers: tuple[int, ...] = (),
    ) -> None:
        self.arch: Arch = model.arch
        self._team = native.team
        self._forward = RecordedPass(_record_forward(model, storage, native, limits, aux_layers), native, limits)
        self._logits = _record_logits(model, native, LOGIT_ROWS_AT_ONCE)

    def run(self, batch: StepBatch, rows: Rows) -> ForwardOutput:
        """Run a batch. Valid until the next step."""
        return self._forward.run(batch, rows)

    def drafts(self, rows: Rows) -> RecordedDrafts:
        """Return native drafting by this model, for the only rows that it is run with."""
        return RecordedDrafts(self._forward, self._forward, rows, self.arch.vocab_size)

    def logits(self, states: Tensor) -> Tensor:
        """Return [rows, vocabulary] logits, valid until the next call."""
        inputs, logits = self._logits.rows
        num_rows = len(states)
        inputs[:num_rows] = states
        self._team.run(self._logits.instructions, step_view(num_rows, None, None, None))
        return logits[:num_rows]

    def close(self) -> None:
        self._team.close()


def _record_forward(
    model: Decoder, storage: KVStorage, native: NativeOps, limits: StepLimits, aux_layers: tuple[int, ...]
) -> CpuProgram:
    tokens, positions = (torch.zeros(RECORDED_ROWS, dtype=torch.int64) for _ in range(2))
    chunks = no_chunks(len(storage.layout.windows))
    recording = CpuRecording(tokens, positions, chunks.slots)
    layer_inputs: dict[int, Tensor] = {}
    with native.recording(recording), torch.inference_mode():
        hidden = model(tokens, positions, storage.attending(model.arch, chunks), layer_inputs.__setitem__)
        logits = model.logits(native.select(hidden))
    outputs = (hidden, logits, *(layer_inputs[layer] for layer in aux_layers))
    return recording.finish(limits.max_tokens, max_logits=limits.max_logits, outputs=outputs)


def record_eagle(
    eagle: Eagle, storage: KVStorage, native: NativeOps, limits: StepLimits, *, joins: bool
) -> RecordedPass:
    """Record a pass of a head over tokens and its own states; with `joins`, over tokens and the target's features."""
    tokens, positions = (torch.zeros(RECORDED_ROWS, dtype=torch.int64) for _ in range(2))
    chunks, spec = no_chunks(1), eagle.spec
    width = len(spec.target_layers) * spec.target_hidden_size if joins else spec.hidden_size
    given = torch.empty(RECORDED_ROWS, width)
    recording = CpuRecording(tokens, positions, chunks.slots)
    with native.recording(recording), torch.inference_mode():
        states = eagle.joined(given) if joins else given
        hidden = eagle(tokens, positions, states, storage.attending(spec.arch, chunks))
        logits = eagle.logits(native.select(hidden))
    program = recording.finish(
        limits.max_tokens, max_logits=limits.max_logits, inputs=(given,), outputs=(hidden, logits)
    )
    return RecordedPass(program, native, limits, num_inputs=1)


class RecordedMedusa:
    """All Medusa heads in one program, from states to logits."""

    def __init__(self, medusa: Medusa, native: NativeOps, max_rows: int) -> None:
        recording = CpuRecording()
        states = torch.empty(RECORDED_ROWS, medusa.spec.hidden_size)
        with native.recording(recording), torch.inference_mode():
            logits = tuple(medusa.logits(number, x) for number, x in enumerate(medusa(states)))
        self._program = recording.finish(max_rows, inputs=(states,), outputs=logits)
        self._team = native.team

    def __call__(self, states: Tensor) -> list[Tensor]:
        """Return each head's [rows, draft vocabulary] logits of [rows, hidden] states. Valid until the next call."""
        inputs, *logits = self._program.rows
        num_rows = len(states)
        inputs[:num_rows] = states
        self._team.run(self._program.instructions, step_view(num_rows, None, None, None))
        return [head_logits[:num_rows] for head_logits in logits]


def _record_logits(model: Decoder, native: NativeOps, max_rows: int) -> CpuProgram:
    recording = CpuRecording()
    states = torch.empty(RECORDED_ROWS, model.arch.hidden_size)
    with native.recording(recording), torch.inference_mode():
        logits = model.logits(states)
    return recording.finish(max_rows, inputs=(states,), outputs=(logits,))
