"""Turns a plan's chunks into what one forward pass is told: an outline on the host, and tensors made from it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from archerfish.execution.step.rows import Rows
from archerfish.execution.step.trees import StepTrees, TokenTree
from archerfish.ops.arrays import Ints
from archerfish.ops.signatures import CHUNK, Chunks, ChunkTable, Trees
from archerfish.scheduling.plan import Chunk

_ALIGNMENT = 16
"""Bytes."""
_chunk_fields = attrgetter("row", "start", "length", "samples")
"""Return the fields of CHUNK of a planned chunk. New blocks belong to the state of its row."""


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """What a step consists of, on the host."""

    chunks: ChunkTable
    """[chunks] A token is drawn after each of the last `num_logits` tokens of a chunk: one where the sequence's last
    token is reached, and one more for each draft token that follows it."""
    ends: Ints
    """[chunks] position after the chunk: where the next token goes."""
    query_ends: Ints
    """[chunks] where each chunk ends among the step's tokens."""
    sampling: Ints
    """[picked] the chunk of each picked token."""
    picked: Ints
    """[picked] where each is among the step's tokens."""
    trees: StepTrees | None = None
    """Where some of the chunks are trees of guesses."""

    @classmethod
    def of(cls, chunks: list[Chunk], num_draft_tokens: Ints | None = None) -> Self:
        """`num_draft_tokens` [chunks] follow the chunks' own tokens."""
        table = np.array([*map(_chunk_fields, chunks)], CHUNK)
        if num_draft_tokens is not None:
            table["length"] += num_draft_tokens
            table["num_logits"] += num_draft_tokens
        start, length, num_picked = table["start"], table["length"], table["num_logits"]
        ends = length.cumsum()
        if num_draft_tokens is None:
            sampling = num_picked.nonzero()[0]
            return cls(table, start + length, ends, sampling, ends[sampling] - 1)
        sampling = np.repeat(np.arange(len(table)), num_picked)
        # Counted down to the chunk's last token.
        left = np.repeat(num_picked.cumsum(), num_picked) - np.arange(len(sampling))
        return cls(table, start + length, ends, sampling, ends[sampling] - left)

    @property
    def rows(self) -> Ints:
        rows: Ints = self.chunks["row"]
        return rows

    @property
    def drawn_positions(self) -> Ints:
        """[picked] where the tokens that are drawn go."""
        if self.trees is not None:
            return self.positions[self.picked] + 1
        return self.ends[self.sampling] - (self.query_ends[self.sampling] - self.picked) + 1

    @property
    def offsets(self) -> Ints:
        """[chunks] where each chunk begins among the step's tokens."""
        offsets: Ints = self.query_ends - self.chunks["length"]
        return offsets

    @property
    def places(self) -> Ints:
        """[T] where tokens, keys and values lie in their rows: counted up from each chunk's start."""
        return np.arange(int(self.query_ends[-1])) + np.repeat(
            self.chunks["start"] - self.offsets, self.chunks["length"]
        )

    @property
    def positions(self) -> Ints:
        """[T] their places in the text: the same, but for guesses that stand side by side."""
        if self.trees is None:
            return self.places
        by_depth = np.repeat(self.chunks["start"], self.chunks["length"]) + self.trees.depths
        return np.where(self.trees.depths < 0, self.places, by_depth)

    def with_trees(self, trees: Sequence[TokenTree | None]) -> "Outline":
        """Add the tree of draft tokens after each chunk's first token; None where tokens follow one another."""
        step_trees = StepTrees.of(self.chunks["length"], trees)
        return self if step_trees is None else replace(self, trees=step_trees)


@dataclass(frozen=True, slots=True)
class StepTensors:
    """The same on a device, for operations that are run one by one."""

    tokens: Tensor
    """[T] all chunks' tokens, one chunk after the other."""
    positions: Tensor
    """[T]"""
    chunks: Chunks
    picked: Tensor
    """[picked] tokens that a token is drawn after, among the step's tokens."""


def step_tensors(outline: Outline, rows: Rows, device: str) -> StepTensors:
    row, length = outline.chunks["row"], outline.chunks["length"]
    ends, query_ends = outline.ends, outline.query_ends
    places, trees = outline.places, outline.trees
    token_rows = np.repeat(row, length)
    blocks, block_offsets = places // rows.block_size, places % rows.block_size
    slots = [table[token_rows, blocks] * np.int64(rows.block_size) + block_offsets for table in rows.tables]
    most_blocks = -(-int(ends.max()) // rows.block_size)
    tables = [table[row, :most_blocks] for table in rows.tables]
    # However many groups and chunks there are, two copies reach the device: what is wide, and what is narrow.
    wide = _copied([rows.tokens[token_rows, places], outline.positions, outline.picked, *slots], np.int64, device)
    lines: list[np.ndarray[Any, Any]] = [] if trees is None else [trees.depths, trees.paths.view(np.int32)]
    narrow = _copied([np.append(0, query_ends), length, ends, *tables, *lines], np.int32, device)
    return StepTensors(
        tokens=wide[0],
        positions=wide[1],
        picked=wide[2],
        chunks=Chunks(
            query_starts=narrow[0],
            lengths=narrow[1],
            ends=narrow[2],
            tables=tuple(narrow[3 : 3 + len(tables)]),
            slots=tuple(wide[3:]),
            host_lengths=length,
            host_ends=ends,
            trees=None if trees is None else _trees(trees, *narrow[-len(lines) :]),
        ),
    )


def _trees(trees: StepTrees, depths: Tensor, words: Tensor) -> Trees:
    return Trees(depths=depths, paths=words.view(torch.uint8), host_depths=trees.depths)


def no_chunks(num_groups: int) -> Chunks:
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
