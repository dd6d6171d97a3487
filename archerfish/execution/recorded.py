"""A model recorded once as native programs and replayed for every step: no Python between two operations."""

import torch
from torch import Tensor

from archerfish.arch.arch import Arch
from archerfish.execution.inputs import Outline, no_chunks
from archerfish.execution.memory import LOGIT_ROWS_AT_ONCE
from archerfish.execution.rows import Rows
from archerfish.execution.runnable import Most, Passed
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.models.eagle import Eagle
from archerfish.models.medusa import Medusa
from archerfish.ops.cpu.assembly import StepRoom
from archerfish.ops.cpu.native import NativeOps, make_step
from archerfish.ops.cpu.recording import RECORDED_ROWS, Program, Recording


class RecordedPass:
    """One pass of a network over chunks of rows, recorded."""

    def __init__(self, program: Program, native: NativeOps, most: Most, num_inputs: int = 0) -> None:
        self._program = program
        self._team = native.team
        self._most = most
        self._num_inputs = num_inputs
        self._room: StepRoom | None = None
        """Of the rows that it is run with, which are the same every time."""

    def run(self, outline: Outline, rows: Rows, *inputs: Tensor) -> Passed:
        """With further inputs [T, width] beside the tokens, where the network has any. Good until the next pass."""
        if self._room is None:
            most = self._most
            self._room = StepRoom(
                rows.tokens,
                rows.tables,
                rows.block_size,
                max_tokens=most.rows,
                max_chunks=most.chunks,
                max_picked=most.picked,
            )
        room, trees = self._room, outline.trees
        if trees is None:
            assembly = room.take(outline.chunks)
        else:
            assembly = room.take_trees(outline.chunks, trees.depths, trees.paths)
        given, (hidden, logits, *taps) = self._program.rows[: self._num_inputs], self._program.rows[self._num_inputs :]
        for place, value in zip(given, inputs, strict=True):
            place[: len(value)] = value
        num_rows = self._team.run_chunks(self._program.instructions, assembly)
        tapped = tuple(tap[:num_rows] for tap in taps)
        return Passed(hidden[:num_rows], logits[: len(outline.sampling)], tapped)


class RecordedModel:
    """Two programs: from tokens to hidden states and the logits of some, and from hidden states to logits."""

    def __init__(
        self, model: Decoder, storage: KVStorage, native: NativeOps, most: Most, taps: tuple[int, ...] = ()
    ) -> None:
        """Taps are the layers whose input is told of."""
        self.arch: Arch = model.arch
        self._team = native.team
        self._forward = RecordedPass(_record_forward(model, storage, native, most, taps), native, most)
        self._logits = _record_logits(model, native, LOGIT_ROWS_AT_ONCE)

    def run(self, outline: Outline, rows: Rows) -> Passed:
        """Good until the next step."""
        return self._forward.run(outline, rows)

    def logits(self, states: Tensor) -> Tensor:
        """[rows, vocabulary], good until they are asked for again."""
        room, logits = self._logits.rows
        num_rows = len(states)
        room[:num_rows] = states
        self._team.run(self._logits.instructions, make_step(num_rows, None, None, None))
        return logits[:num_rows]

    def close(self) -> None:
        self._team.close()


def _record_forward(
    model: Decoder, storage: KVStorage, native: NativeOps, most: Most, taps: tuple[int, ...]
) -> Program:
    tokens, positions = (torch.zeros(RECORDED_ROWS, dtype=torch.int64) for _ in range(2))
    chunks = no_chunks(len(storage.layout.windows))
    recording = Recording(tokens, positions, chunks.slots)
    heard: dict[int, Tensor] = {}
    with native.recording(recording), torch.inference_mode():
        hidden = model(tokens, positions, storage.attending(model.arch, chunks), heard.__setitem__)
        logits = model.logits(native.select(hidden))
    return recording.finish(
        most.rows, max_picked=most.picked, outputs=(hidden, logits, *(heard[layer] for layer in taps))
    )


def record_eagle(eagle: Eagle, storage: KVStorage, native: NativeOps, most: Most, *, joins: bool) -> RecordedPass:
    """A pass of a head over tokens and states; or, if it joins them, over tokens and what the target's taps gave."""
    tokens, positions = (torch.zeros(RECORDED_ROWS, dtype=torch.int64) for _ in range(2))
    chunks, spec = no_chunks(1), eagle.spec
    width = len(spec.target_layers) * spec.target_hidden_size if joins else spec.hidden_size
    given = torch.empty(RECORDED_ROWS, width)
    recording = Recording(tokens, positions, chunks.slots)
    with native.recording(recording), torch.inference_mode():
        states = eagle.joined(given) if joins else given
        hidden = eagle(tokens, positions, states, storage.attending(spec.arch, chunks))
        logits = eagle.logits(native.select(hidden))
    program = recording.finish(most.rows, max_picked=most.picked, inputs=(given,), outputs=(hidden, logits))
    return RecordedPass(program, native, most, num_inputs=1)


class RecordedMedusa:
    """All heads at once, from states to logits."""

    def __init__(self, medusa: Medusa, native: NativeOps, max_rows: int) -> None:
        recording = Recording()
        states = torch.empty(RECORDED_ROWS, medusa.spec.hidden_size)
        with native.recording(recording), torch.inference_mode():
            logits = tuple(medusa.logits(number, x) for number, x in enumerate(medusa(states)))
        self._program = recording.finish(max_rows, inputs=(states,), outputs=logits)
        self._team = native.team

    def __call__(self, states: Tensor) -> list[Tensor]:
        """[rows, hidden] -> for each head [rows, tokens it can guess]. Good until the next call."""
        room, *logits = self._program.rows
        num_rows = len(states)
        room[:num_rows] = states
        self._team.run(self._program.instructions, make_step(num_rows, None, None, None))
        return [of_head[:num_rows] for of_head in logits]


def _record_logits(model: Decoder, native: NativeOps, max_rows: int) -> Program:
    recording = Recording()
    states = torch.empty(RECORDED_ROWS, model.arch.hidden_size)
    with native.recording(recording), torch.inference_mode():
        logits = model.logits(states)
    return recording.finish(max_rows, inputs=(states,), outputs=(logits,))
