"""Room for drafts that the library makes in one call: passes that end with a draw. Knows no network."""

import ctypes
from ctypes import POINTER
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.ops.arrays import Ints, LongTable
from archerfish.ops.cpu import program
from archerfish.ops.cpu.assembly import StepRoom
from archerfish.ops.cpu.library import Team
from archerfish.ops.cpu.program import Instruction, Operation
from archerfish.ops.cpu.recording import Program
from archerfish.ops.signatures import DRAW_ROW, DrawRows

_NANOSECOND = 1e-9


class DraftPass(NamedTuple):
    """A recorded pass over chunks, and where its rows lie."""

    program: Program
    room: StepRoom
    states: Tensor
    """[most rows, hidden] what it makes of tokens."""
    logits: Tensor
    """[most picked, tokens it can guess]"""
    given: Tensor | None
    """[most rows, width] what it takes beside tokens, if anything."""


class Drafted(NamedTuple):
    tokens: LongTable
    """[most wanted, rows] guesses. Beyond what a row wanted they mean nothing."""
    seconds: list[float]
    """That each pass took, with its draw."""


class DraftRoom:
    """For drafts by two passes over the same rows: one over what is new, and one over guess after guess."""

    def __init__(
        self, first: DraftPass, further: DraftPass, max_rows: int, vocab_size: int, target_ids: Tensor | None
    ) -> None:
        """The passes may be one and the same. `target_ids` are the tokens they can guess, where those are not all."""
        assert first.room.assembly.row_tokens == further.room.assembly.row_tokens, (
            "guesses of one are read by the other"
        )
        assert further.given is None or further.given.shape[1] == first.states.shape[1] == further.states.shape[1]
        self._room = first.room
        self._max_rows = max_rows
        self._num_places = min(first.room.num_places, further.room.num_places)
        self._asked: DrawRows = np.zeros(max_rows, DRAW_ROW)
        self._chunks, self._drawn = (np.zeros(max_rows, np.int64) for _ in range(2))
        self._peaks = np.zeros(max_rows, np.float32)
        self._alive: list[Any] = [first, further]
        # Through numpy, whose zeroed pages take no room until they are written.
        if target_ids is not None:
            assert target_ids.is_contiguous() and target_ids.dtype == torch.int64
            assert len(target_ids) == first.logits.shape[1] and 0 <= target_ids.min() <= target_ids.max() < vocab_size
        self._spread = None if target_ids is None else torch.from_numpy(np.zeros((max_rows, vocab_size), np.float32))
        self._target_ids = target_ids
        self._drafting = program.Drafting(
            first=self._pass(first),
            further=self._pass(further),
            chunks=self._chunks.ctypes.data,
            rows=self._asked.ctypes.data,
            drawn=self._drawn.ctypes.data,
        )

    def draft(self, team: Team, chunks: LongTable, asked: DrawRows, counts: Ints) -> Drafted:
        """Of chunks whose last token is picked, [rows, 4], as many guesses as wanted, [rows], at least one of each."""
        assert len(chunks) <= self._max_rows and counts.min() > 0 and (chunks[:, 3] == 1).all()
        assert (chunks[:, 1] + chunks[:, 2] + counts).max() <= self._num_places + 1, "the last guess is never read"
        depth = int(counts.max())
        tokens, nanoseconds = np.zeros((depth, len(chunks)), np.int64), np.zeros(depth, np.int64)
        counts = np.ascontiguousarray(counts)
        self._asked[: len(chunks)] = asked
        self._room.take(chunks)
        drafting = self._drafting
        drafting.counts, drafting.tokens, drafting.nanoseconds = (
            array.ctypes.data for array in (counts, tokens, nanoseconds)
        )
        team.draft(drafting)
        return Drafted(tokens, (nanoseconds * _NANOSECOND).tolist())

    def _pass(self, one: DraftPass) -> program.Pass:
        instructions = self._with_draw(one)
        self._alive.append(instructions)
        return program.Pass(
            instructions=ctypes.cast(instructions, POINTER(Instruction)),
            num_instructions=len(instructions),
            assembly=ctypes.pointer(one.room.assembly),
            given=program.Rows() if one.given is None else _rows(one.given),
            states=_rows(one.states),
        )

    def _with_draw(self, one: DraftPass) -> "ctypes.Array[Instruction]":
        logits = _rows(one.logits)
        operands: list[tuple[Operation, ctypes.Structure]] = []
        if self._spread is not None and self._target_ids is not None:
            wide = _rows(self._spread)
            operands.append((Operation.SPREAD, program.Spread(wide, logits, self._target_ids.data_ptr())))
            logits = wide
        addresses = (array.ctypes.data for array in (self._asked, self._drawn, self._peaks))
        operands.append((Operation.DRAW, program.Draw(logits, *addresses)))
        self._alive += operands
        added = [Instruction(operation, 1, ctypes.addressof(operand)) for operation, operand in operands]
        return (Instruction * (len(one.program.instructions) + len(added)))(*one.program.instructions, *added)


def _rows(x: Tensor) -> program.Rows:
    return program.Rows(x.data_ptr(), x.stride(0), 0, 1, x.shape[1])
