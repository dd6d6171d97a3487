"""Drafts of several sequences that the native library makes in one call, pass after pass."""

import ctypes
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.ops.arrays import Ints, LongTable
from archerfish.ops.cpu import program
from archerfish.ops.cpu.arguments import strided_rows
from archerfish.ops.cpu.library import Team
from archerfish.ops.cpu.program import Operation, RecordedCall
from archerfish.ops.cpu.recording import CpuProgram
from archerfish.ops.cpu.step_assembler import StepAssembler
from archerfish.ops.signatures import DRAW_ROW, ChunkTable, DrawRows

_NANOSECOND = 1e-9


class DraftPass(NamedTuple):
    """A recorded pass of a drafter over chunks, with its inputs and outputs."""

    program: CpuProgram
    assembler: StepAssembler
    output_states: Tensor
    """[most rows, hidden] computed for each token."""
    logits: Tensor
    """[most logit rows, draft vocabulary]"""
    input_states: Tensor | None
    """[most rows, width] read alongside each token, if any."""


class Drafted(NamedTuple):
    """The draft tokens of several sequences."""

    tokens: LongTable
    """[most draft tokens, sequences]. Entries beyond a sequence's number mean nothing."""
    seconds: list[float]
    """Duration of each pass, its draw included."""


class NativeDrafting:
    """Drafts by two passes over the same rows: one over new tokens, then one for each further draft token."""

    def __init__(
        self, first: DraftPass, further: DraftPass, max_rows: int, vocab_size: int, target_ids: Tensor | None
    ) -> None:
        """Both passes may be the same. `target_ids` are the ids of a draft vocabulary that is not the target's."""
        assert first.assembler.assembly.row_tokens == further.assembler.assembly.row_tokens, (
            "both passes read and write the same rows of tokens"
        )
        hidden_size = first.output_states.shape[1]
        assert further.input_states is None or further.input_states.shape[1] == hidden_size
        assert further.output_states.shape[1] == hidden_size
        self._assembler = first.assembler
        self._draw_rows: DrawRows = np.zeros(max_rows, DRAW_ROW)
        self._chunk_ids, self._drawn = (np.zeros(max_rows, np.int64) for _ in range(2))
        self._max_logits = np.zeros(max_rows, np.float32)
        self._referenced: list[Any] = [first, further]
        if target_ids is not None:
            assert target_ids.is_contiguous() and target_ids.dtype == torch.int64
            assert len(target_ids) == first.logits.shape[1] and 0 <= target_ids.min() <= target_ids.max() < vocab_size
        # Zeroed by numpy, whose pages take no memory until they are written.
        has_ids = target_ids is not None
        self._target_logits = torch.from_numpy(np.zeros((max_rows, vocab_size), np.float32)) if has_ids else None
        self._target_ids = target_ids
        self._drafting = program.Drafting(
            first=self._drafting_pass(first),
            next=self._drafting_pass(further),
            max_chunks=max_rows,
            chunk_ids=self._chunk_ids.ctypes.data,
            draw_rows=self._draw_rows.ctypes.data,
            drawn=self._drawn.ctypes.data,
        )

    def draft(self, team: Team, chunks: ChunkTable, draw_rows: DrawRows, counts: Ints) -> Drafted:
        """Draft `counts` tokens, at least one, after each chunk. Logits are computed of the last token of each."""
        assert len(chunks) == len(draw_rows) == len(counts)
        depth = int(counts.max())
        tokens, nanoseconds = np.zeros((depth, len(chunks)), np.int64), np.zeros(depth, np.int64)
        counts = np.ascontiguousarray(counts)
        # The library rejects more chunks than there is memory for by their number.
        self._draw_rows[: len(chunks)] = draw_rows[: len(self._draw_rows)]
        self._assembler.set_chunks(chunks)
        drafting = self._drafting
        drafting.max_draft_tokens = depth
        drafting.num_draft_tokens, drafting.draft_tokens, drafting.nanoseconds = (
            array.ctypes.data for array in (counts, tokens, nanoseconds)
        )
        team.draft(drafting)
        return Drafted(tokens, (nanoseconds * _NANOSECOND).tolist())

    def _drafting_pass(self, draft_pass: DraftPass) -> program.DraftingPass:
        instructions = draft_pass.program.instructions.followed_by(
            self._draw_calls(draft_pass), max_logits=len(self._draw_rows)
        )
        self._referenced.append(instructions)
        inputs = draft_pass.input_states
        return program.DraftingPass(
            instructions=instructions,
            assembly=ctypes.pointer(draft_pass.assembler.assembly),
            input_states=program.StridedRows() if inputs is None else strided_rows(inputs),
            output_states=strided_rows(draft_pass.output_states),
        )

    def _draw_calls(self, draft_pass: DraftPass) -> list[RecordedCall]:
        """Draw a token from the logits of a pass, those of tokens outside the draft vocabulary being -inf."""
        logits, calls = strided_rows(draft_pass.logits), []
        if self._target_logits is not None and self._target_ids is not None:
            target_logits = strided_rows(self._target_logits)
            scatter = program.ScatterArgs(target_logits, logits, self._target_ids.data_ptr())
            calls.append(RecordedCall(Operation.SCATTER, scatter, selected=True))
            logits = target_logits
        addresses = (array.ctypes.data for array in (self._draw_rows, self._drawn, self._max_logits))
        calls.append(RecordedCall(Operation.DRAW, program.DrawArgs(logits, *addresses), selected=True))
        self._referenced += calls
        return calls
