"""Room for drafts that the library makes in one call: passes that end with a draw. Knows no network."""

import ctypes
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.ops.arrays import Ints, LongTable
from archerfish.ops.cpu import program
from archerfish.ops.cpu.assembly import StepRoom
from archerfish.ops.cpu.library import Team
from archerfish.ops.cpu.program import Operation
from archerfish.ops.cpu.recording import Program
from archerfish.ops.signatures import DRAW_ROW, ChunkTable, DrawRows

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
            max_chunks=max_rows,
            chunks=self._chunks.ctypes.data,
            rows=self._asked.ctypes.data,
            drawn=self._drawn.ctypes.data,
        )

    def draft(self, team: Team, chunks: ChunkTable, asked: DrawRows, counts: Ints) -> Drafted:
        """Of chunks whose last token is picked, [rows], as many guesses as wanted, [rows], at least one of each."""
        assert len(chunks) == len(asked) == len(counts)
        depth = int(counts.max())
        tokens, nanoseconds = np.zeros((depth, len(chunks)), np.int64), np.zeros(depth, np.int64)
        counts = np.ascontiguousarray(counts)
        # As many as there is memory for: the library refuses more by their number.
        self._asked[: len(chunks)] = asked[: len(self._asked)]
        self._room.take(chunks)
        drafting = self._drafting
        drafting.max_count = depth
        drafting.counts, drafting.tokens, drafting.nanoseconds = (
            array.ctypes.data for array in (counts, tokens, nanoseconds)
        )
        team.draft(drafting)
        return Drafted(tokens, (nanoseconds * _NANOSECOND).tolist())

    def _pass(self, one: DraftPass) -> program.Pass:
        instructions = one.program.instructions.followed_by(self._draw(one), max_picked=len(self._asked))
        self._alive.append(instructions)
        return program.Pass(
            instructions=instructions,
            assembly=ctypes.pointer(one.room.assembly),
            given=program.Rows() if one.given is None else _rows(one.given),
            states=_rows(one.states),
        )

    def _draw(self, one: DraftPass) -> list[program.Line]:
        """A token after each picked one."""
        logits, lines = _rows(one.logits), []
        if self._spread is not None and self._target_ids is not None:
            wide = _rows(self._spread)
            spread = program.Spread(wide, logits, self._target_ids.data_ptr())
            lines.append(program.Line(Operation.SPREAD, spread, selected=True))
            logits = wide
        addresses = (array.ctypes.data for array in (self._asked, self._drawn, self._peaks))
        lines.append(program.Line(Operation.DRAW, program.Draw(logits, *addresses), selected=True))
        self._alive += lines
        return lines


def _rows(x: Tensor) -> program.Rows:
    return program.Rows(x.data_ptr(), x.stride(0), 0, 1, x.shape[1])
