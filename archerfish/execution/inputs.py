"""Turns a plan's chunks into the tensors of one forward pass."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from archerfish.execution.rows import Rows
from archerfish.ops.signatures import Chunks, EqualChunks
from archerfish.sampling.edits import Ints
from archerfish.scheduling.plan import Chunk


@dataclass(frozen=True, slots=True)
class StepInputs:
    tokens: Tensor
    """[T] all chunks' tokens, one chunk after the other."""
    positions: Tensor
    """[T]"""
    chunks: Chunks
    rows: Ints
    """[chunks] on the host, like everything below."""
    ends: Ints
    """[chunks] position after the chunk: where the next token goes."""
    offsets: Ints
    """[chunks] where each chunk begins among the tokens."""
    last_tokens: Ints
    """[chunks] where each chunk's last token is."""


def step_inputs(chunks: list[Chunk], rows: Rows, device: str) -> StepInputs:
    table = np.array([(chunk.row, chunk.start, chunk.length) for chunk in chunks], np.int64)
    row, start, length = table[:, 0], table[:, 1], table[:, 2]
    offsets = np.cumsum(length) - length
    # Positions count up from each chunk's start; rows repeat for each of its tokens.
    positions = np.arange(int(length.sum())) + np.repeat(start - offsets, length)
    token_rows = np.repeat(row, length)
    blocks = positions // rows.block_size
    slots = tuple(
        torch.from_numpy(table[token_rows, blocks] * np.int64(rows.block_size) + positions % rows.block_size).to(device)
        for table in rows.tables
    )
    return StepInputs(
        tokens=torch.from_numpy(rows.tokens[token_rows, positions].astype(np.int64)).to(device),
        positions=torch.from_numpy(positions).to(device),
        chunks=Chunks(slots, _stack_equal(row, start, length, offsets, rows, device)),
        rows=row,
        ends=start + length,
        offsets=offsets,
        last_tokens=offsets + length - 1,
    )


def _stack_equal(
    row: Ints, start: Ints, length: Ints, offsets: Ints, rows: Rows, device: str
) -> tuple[EqualChunks, ...]:
    """Chunks of one length together, longest context first."""
    stacked = []
    for equal in np.unique(length):
        members = np.flatnonzero(length == equal)
        members = members[np.argsort(-start[members], kind="stable")]
        ends = start[members] + equal
        num_blocks = -(-int(ends[0]) // rows.block_size)
        tables = (table[row[members], :num_blocks].astype(np.int64) for table in rows.tables)
        stacked.append(
            EqualChunks(
                token_rows=torch.from_numpy(offsets[members, None] + np.arange(equal)).to(device),
                starts=torch.from_numpy(start[members]).to(device),
                tables=tuple(torch.from_numpy(table).to(device) for table in tables),
                ends=tuple(ends.tolist()),
            )
        )
    return tuple(stacked)
