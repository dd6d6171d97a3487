"""Turns a plan's chunks into the tensors of one forward pass."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archerfish.execution.rows import Rows
from archerfish.ops.arrays import Ints
from archerfish.ops.signatures import Chunks
from archerfish.scheduling.plan import Chunk

_ALIGNMENT = 16
"""Bytes."""


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
    described = np.array([(chunk.row, chunk.start, chunk.length) for chunk in chunks], np.int64)
    row, start, length = described[:, 0], described[:, 1], described[:, 2]
    ends, query_ends = start + length, np.cumsum(length)
    offsets = query_ends - length
    # Positions count up from each chunk's start; rows repeat for each of its tokens.
    positions = np.arange(int(query_ends[-1])) + np.repeat(start - offsets, length)
    token_rows = np.repeat(row, length)
    blocks, block_offsets = positions // rows.block_size, positions % rows.block_size
    slots = [table[token_rows, blocks] * np.int64(rows.block_size) + block_offsets for table in rows.tables]
    most_blocks = -(-int(ends.max()) // rows.block_size)
    tables = [table[row, :most_blocks] for table in rows.tables]
    # However many groups and chunks there are, two copies reach the device: what is wide, and what is narrow.
    wide = _copied([rows.tokens[token_rows, positions], positions, *slots], np.int64, device)
    narrow = _copied([np.append(0, query_ends), length, ends, *tables], np.int32, device)
    return StepInputs(
        tokens=wide[0],
        positions=wide[1],
        chunks=Chunks(
            query_starts=narrow[0],
            lengths=narrow[1],
            ends=narrow[2],
            tables=tuple(narrow[3:]),
            slots=tuple(wide[2:]),
            host_lengths=length,
            host_ends=ends,
        ),
        rows=row,
        ends=ends,
        offsets=offsets,
        last_tokens=query_ends - 1,
    )


def _copied(arrays: list[np.ndarray[Any, Any]], dtype: type[np.int32 | np.int64], device: str) -> list[Tensor]:
    """The arrays on the device, side by side in one piece of memory that takes a single copy."""
    # Each begins at an aligned address: a kernel would be compiled once more for those that do not.
    grain = _ALIGNMENT // np.dtype(dtype).itemsize
    firsts = np.cumsum([0, *(-(-array.size // grain) * grain for array in arrays)]).tolist()
    together = np.zeros(firsts[-1], dtype)
    for first, array in zip(firsts, arrays, strict=False):
        together[first : first + array.size] = array.reshape(-1)
    copied = torch.from_numpy(together).to(device)
    return [copied[first : first + array.size].view(array.shape) for first, array in zip(firsts, arrays, strict=False)]
