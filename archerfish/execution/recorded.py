"""A model recorded once as native programs and replayed for every step: no Python between two operations."""

import numpy as np
import torch
from torch import Tensor

from archerfish.arch.arch import Arch
from archerfish.execution.inputs import StepInputs
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.ops.cpu.native import NativeOps, make_step
from archerfish.ops.cpu.recording import RECORDED_ROWS, Program, Recording
from archerfish.ops.signatures import Chunks


class RecordedModel:
    """The decoder's two halves: tokens to hidden states, hidden states to logits."""

    def __init__(
        self, model: Decoder, storage: KVStorage, native: NativeOps, *, max_rows: int, max_logit_rows: int
    ) -> None:
        self.arch: Arch = model.arch
        self._team = native.team
        self._forward = _record_forward(model, storage, native, max_rows)
        self._logits = _record_logits(model, native, max_logit_rows)

    def hidden(self, inputs: StepInputs) -> Tensor:
        """[T, hidden], good until the next step."""
        num_rows = len(inputs.tokens)
        step = make_step(num_rows, inputs.tokens, inputs.positions, inputs.chunks)
        self._team.run(self._forward.instructions, step)
        return self._forward.rows[0][:num_rows]

    def logits(self, states: Tensor) -> Tensor:
        """[rows, vocabulary], good until they are asked for again."""
        room, logits = self._logits.rows
        num_rows = len(states)
        room[:num_rows] = states
        self._team.run(self._logits.instructions, make_step(num_rows, None, None, None))
        return logits[:num_rows]

    def close(self) -> None:
        self._team.close()


def _record_forward(model: Decoder, storage: KVStorage, native: NativeOps, max_rows: int) -> Program:
    tokens, positions = (torch.zeros(RECORDED_ROWS, dtype=torch.int64) for _ in range(2))
    chunks = _nothing_yet(len(storage.layout.windows))

    def attend(layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        if k is not None and v is not None:
            storage.write(layer, k, v, chunks)
        spec = model.arch.layers[layer].attention
        return storage.attend(layer, q, chunks, spec.scale, spec.window, spec.softcap)

    recording = Recording(tokens, positions, chunks.slots)
    with native.recording(recording), torch.inference_mode():
        hidden = model(tokens, positions, attend)
    return recording.finish(max_rows, outputs=(hidden,))


def _record_logits(model: Decoder, native: NativeOps, max_rows: int) -> Program:
    recording = Recording()
    states = torch.empty(RECORDED_ROWS, model.arch.hidden_size)
    with native.recording(recording), torch.inference_mode():
        logits = model.logits(states)
    return recording.finish(max_rows, inputs=(states,), outputs=(logits,))


def _nothing_yet(num_groups: int) -> Chunks:
    """Stands for the chunks of every step to come: only its tensors' identity matters."""
    empty = torch.zeros(0, dtype=torch.int32)
    return Chunks(
        query_starts=empty,
        lengths=empty,
        ends=empty,
        tables=(empty,) * num_groups,
        slots=tuple(torch.zeros(0, dtype=torch.int64) for _ in range(num_groups)),
        host_lengths=np.zeros(0, np.int64),
        host_ends=np.zeros(0, np.int64),
    )
