"""A model recorded once as native programs and replayed for every step: no Python between two operations."""

from typing import NamedTuple

import torch
from torch import Tensor

from archerfish.arch.arch import Arch
from archerfish.execution.inputs import Outline, no_chunks
from archerfish.execution.memory import LOGIT_ROWS_AT_ONCE
from archerfish.execution.passed import Passed
from archerfish.execution.rows import Rows
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.ops.cpu.assembly import StepRoom
from archerfish.ops.cpu.native import NativeOps, make_step
from archerfish.ops.cpu.recording import RECORDED_ROWS, Program, Recording


class RecordedModel:
    """Two programs: from tokens to hidden states and the logits of some, and from hidden states to logits."""

    def __init__(
        self,
        model: Decoder,
        storage: KVStorage,
        native: NativeOps,
        *,
        max_rows: int,
        max_num_seqs: int,
        max_picked: int | None = None,
    ) -> None:
        """A token is drawn after `max_picked` tokens of a step, by default one for each sequence."""
        self.arch: Arch = model.arch
        self._team = native.team
        self._most = _Most(max_rows, max_num_seqs, max_picked or max_num_seqs)
        self._forward = _record_forward(model, storage, native, self._most)
        self._logits = _record_logits(model, native, LOGIT_ROWS_AT_ONCE)
        self._room: StepRoom | None = None
        """Of the rows that it is run with, which are the same every time."""

    def run(self, outline: Outline, rows: Rows) -> Passed:
        """Good until the next step."""
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
        num_rows = self._team.run_chunks(self._forward.instructions, assembly)
        hidden, logits = self._forward.rows
        return Passed(hidden[:num_rows], logits[: len(outline.sampling)])

    def logits(self, states: Tensor) -> Tensor:
        """[rows, vocabulary], good until they are asked for again."""
        room, logits = self._logits.rows
        num_rows = len(states)
        room[:num_rows] = states
        self._team.run(self._logits.instructions, make_step(num_rows, None, None, None))
        return logits[:num_rows]

    def close(self) -> None:
        self._team.close()


class _Most(NamedTuple):
    """Of a step."""

    rows: int
    chunks: int
    picked: int


def _record_forward(model: Decoder, storage: KVStorage, native: NativeOps, most: _Most) -> Program:
    tokens, positions = (torch.zeros(RECORDED_ROWS, dtype=torch.int64) for _ in range(2))
    chunks = no_chunks(len(storage.layout.windows))

    def attend(layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        if k is not None and v is not None:
            storage.write(layer, k, v, chunks)
        spec = model.arch.layers[layer].attention
        return storage.attend(layer, q, chunks, spec.scale, spec.window, spec.softcap)

    recording = Recording(tokens, positions, chunks.slots)
    with native.recording(recording), torch.inference_mode():
        hidden = model(tokens, positions, attend)
        logits = model.logits(native.select(hidden))
    return recording.finish(most.rows, max_picked=most.picked, outputs=(hidden, logits))


def _record_logits(model: Decoder, native: NativeOps, max_rows: int) -> Program:
    recording = Recording()
    states = torch.empty(RECORDED_ROWS, model.arch.hidden_size)
    with native.recording(recording), torch.inference_mode():
        logits = model.logits(states)
    return recording.finish(max_rows, inputs=(states,), outputs=(logits,))
