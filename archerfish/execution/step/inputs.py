"""Turns a plan's chunks into the inputs of one forward pass: a batch on the host, and tensors made from it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from archerfish.execution.step.rows import Rows
from archerfish.ops.arrays import ByteTable, Ints
from archerfish.ops.signatures import CHUNK, MAX_TREE_TOKENS, Chunks, ChunkTable, Trees
from archerfish.scheduling.plan import Chunk

NO_TREE = -1

_ALIGNMENT = 16
"""Bytes."""
_chunk_fields = attrgetter("row", "start", "length", "samples")
"""Return the fields of CHUNK of a planned chunk. New blocks belong to the state of its row."""


class TokenTree(Protocol):
    """Tokens that follow a sequence's last one, each after an earlier one of them or after that last token."""

    @property
    def parents(self) -> tuple[int, ...]:
        """The index of the token that each follows; -1 for the sequence's last token."""

    @property
    def depths(self) -> list[int]:
        """1 for tokens that follow the sequence's last one."""

    @property
    def is_chain(self) -> bool:
        """Whether each token follows the one before it."""

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class StepTrees:
    """The tables of `ops.Trees` on the host."""

    depths: Ints
    """[T] depth of each token in its chunk's tree; NO_TREE for tokens of chunks without one."""
    paths: ByteTable
    """[T, MAX_TREE_TOKENS] indices within the chunk of each token's ancestors and itself, from the root."""

    @classmethod
    def of(cls, lengths: Ints, drafts: Sequence[TokenTree | None]) -> Self | None:
        """Return the tables of a step, given the draft after each chunk's first token; None if no chunk has a tree.

        A chain needs no tree: its tokens follow one another as those of any chunk do.
        """
        trees = [None if draft is None or draft.is_chain else draft for draft in drafts]
        if all(tree is None for tree in trees):
            return None
        num_tokens = int(lengths.sum())
        depths = np.full(num_tokens, NO_TREE, np.int64)
        paths = np.zeros((num_tokens, MAX_TREE_TOKENS), np.uint8)
        first = 0
        for length, tree in zip(lengths.tolist(), trees, strict=True):
            if tree is not None:
                assert length == 1 + len(tree), f"a chunk of {length} tokens for a draft of {len(tree)}"
                depths[first : first + length] = (0, *tree.depths)
                _write_paths(paths[first : first + length], tree)
            first += length
        return cls(depths, paths)


def _write_paths(paths: ByteTable, tree: TokenTree) -> None:
    """Write for each token its parent's path and its own index."""
    paths[:] = np.arange(len(paths))[:, None]
    for node, (parent, depth) in enumerate(zip(tree.parents, tree.depths, strict=True)):
        paths[1 + node, :depth] = paths[1 + parent, :depth]


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """The chunks of one step as arrays on the host."""

    chunks: ChunkTable
    """[chunks] A token is sampled after each of the last `num_logits` tokens of a chunk: one where the sequence's last
    token is reached, and one more for each draft token that follows it."""
    ends: Ints
    """[chunks] position after the chunk: that of the next token."""
    query_ends: Ints
    """[chunks] index after the chunk's last token among the step's tokens."""
    sampled_chunks: Ints
    """[logits] the chunk of each token that has logits."""
    logit_indices: Ints
    """[logits] the index of each of these tokens among the step's tokens."""
    trees: StepTrees | None = None
    """Draft trees, where some of the chunks have any."""

    @classmethod
    def of(cls, chunks: list[Chunk], num_draft_tokens: Ints | None = None) -> Self:
        """Make the batch of a plan's chunks, each followed by `num_draft_tokens` [chunks] draft tokens."""
        table = np.array([*map(_chunk_fields, chunks)], CHUNK)
        if num_draft_tokens is not None:
            table["length"] += num_draft_tokens
            table["num_logits"] += num_draft_tokens
        start, length, num_logits = table["start"], table["length"], table["num_logits"]
        ends = length.cumsum()
        if num_draft_tokens is None:
            sampled_chunks = num_logits.nonzero()[0]
            return cls(table, start + length, ends, sampled_chunks, ends[sampled_chunks] - 1)
        sampled_chunks = np.repeat(np.arange(len(table)), num_logits)
        # Counted down to the chunk's last token.
        left = np.repeat(num_logits.cumsum(), num_logits) - np.arange(len(sampled_chunks))
        return cls(table, start + length, ends, sampled_chunks, ends[sampled_chunks] - left)

    @property
    def num_tokens(self) -> int:
        return int(self.query_ends[-1])

    @property
    def rows(self) -> Ints:
        rows: Ints = self.chunks["row"]
        return rows

    @property
    def sample_positions(self) -> Ints:
        """[logits] the position of each token that is sampled."""
        if self.trees is not None:
            return self.positions[self.logit_indices] + 1
        return self.ends[self.sampled_chunks] - (self.query_ends[self.sampled_chunks] - self.logit_indices) + 1

    @property
    def query_starts(self) -> Ints:
        """[chunks] the index of each chunk's first token among the step's tokens."""
        starts: Ints = self.query_ends - self.chunks["length"]
        return starts

    @property
    def row_offsets(self) -> Ints:
        """[T] offsets within their rows of tokens, keys and values: counted up from each chunk's start."""
        return np.arange(self.num_tokens) + np.repeat(self.chunks["start"] - self.query_starts, self.chunks["length"])

    @property
    def positions(self) -> Ints:
        """[T] positions in the text: the row offsets, except for draft tokens that are siblings in a tree."""
        if self.trees is None:
            return self.row_offsets
        by_depth = np.repeat(self.chunks["start"], self.chunks["length"]) + self.trees.depths
        return np.where(self.trees.depths < 0, self.row_offsets, by_depth)

    def with_trees(self, trees: Sequence[TokenTree | None]) -> "StepBatch":
        """Add the tree of draft tokens after each chunk's first token; None where tokens follow one another."""
        step_trees = StepTrees.of(self.chunks["length"], trees)
        return self if step_trees is None else replace(self, trees=step_trees)


@dataclass(frozen=True, slots=True)
class StepTensors:
    """A batch on a device, for backends that run operations one by one."""

    tokens: Tensor
    """[T] all chunks' tokens, one chunk after the other."""
    positions: Tensor
    """[T]"""
    chunks: Chunks
    logit_indices: Tensor
    """[logits] indices among the step's tokens of those that have logits."""


def step_tensors(batch: StepBatch, rows: Rows, device: str) -> StepTensors:
    """Gather a batch's inputs from the rows and copy them to the device."""
    row, length = batch.chunks["row"], batch.chunks["length"]
    ends, query_ends = batch.ends, batch.query_ends
    offsets, trees = batch.row_offsets, batch.trees
    token_rows = np.repeat(row, length)
    blocks, block_offsets = offsets // rows.block_size, offsets % rows.block_size
    slots = [table[token_rows, blocks] * np.int64(rows.block_size) + block_offsets for table in rows.tables]
    max_blocks = -(-int(ends.max()) // rows.block_size)
    tables = [table[row, :max_blocks] for table in rows.tables]
    # However many groups and chunks there are, two copies reach the device: of int64 arrays and of int32 arrays.
    wide = _to_device(
        [rows.tokens[token_rows, offsets], batch.positions, batch.logit_indices, *slots], np.int64, device
    )
    lines: list[np.ndarray[Any, Any]] = [] if trees is None else [trees.depths, trees.paths.view(np.int32)]
    narrow = _to_device([np.append(0, query_ends), length, ends, *tables, *lines], np.int32, device)
    return StepTensors(
        tokens=wide[0],
        positions=wide[1],
        logit_indices=wide[2],
        chunks=Chunks(
            query_starts=narrow[0],
            lengths=narrow[1],
            ends=narrow[2],
            tables=tuple(narrow[3 : 3 + len(tables)]),
            slots=tuple(wide[3:]),
            host_lengths=length,
            host_ends=ends,
            trees=None if trees is None else _tree_tensors(trees, *narrow[-len(lines) :]),
        ),
    )


def _tree_tensors(trees: StepTrees, depths: Tensor, words: Tensor) -> Trees:
    return Trees(depths=depths, paths=words.view(torch.uint8), host_depths=trees.depths)


def no_chunks(num_groups: int) -> Chunks:
    """Return placeholders for the chunks of every step to come: only their tensors' identity matters."""
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


def _to_device(arrays: list[np.ndarray[Any, Any]], dtype: type[np.int32 | np.int64], device: str) -> list[Tensor]:
    """Copy arrays to the device as one allocation and one transfer, and return a view of each."""
    # Each begins at an aligned address: a kernel would be compiled once more for those that do not.
    grain = _ALIGNMENT // np.dtype(dtype).itemsize
    firsts = np.cumsum([0, *(-(-array.size // grain) * grain for array in arrays)]).tolist()
    packed = np.zeros(firsts[-1], dtype)
    for first, array in zip(firsts, arrays, strict=False):
        packed[first : first + array.size] = array.reshape(-1)
    copied = torch.from_numpy(packed).to(device)
    return [copied[first : first + array.size].view(array.shape) for first, array in zip(firsts, arrays, strict=False)]
