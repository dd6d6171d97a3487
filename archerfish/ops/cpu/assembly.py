"""Room for what a step tells the kernels, which the library itself fills from chunks, tokens and block tables."""

from ctypes import c_void_p
from typing import Any

import numpy as np

from archerfish.ops.arrays import ByteTable, Ints, IntTable
from archerfish.ops.cpu.program import Assembly
from archerfish.ops.signatures import CHUNK, MOST_TREE_TOKENS, ChunkTable


class StepRoom:
    """For steps of rows whose tokens and tables stay where they are."""

    def __init__(
        self,
        tokens: IntTable,
        tables: list[IntTable],
        block_size: int,
        *,
        max_tokens: int,
        max_chunks: int,
        max_picked: int,
    ) -> None:
        """tokens [rows, longest], which may be a part of wider rows, and for each KV group a table [rows, blocks]."""
        num_groups, blocks_per_row = len(tables), tables[0].shape[1]
        self._chunks = np.zeros(max_chunks, CHUNK)
        self._alive: list[Any] = [tokens, tables]
        self._trees: tuple[Any, ...] = ()

        def room(count: int, dtype: type[np.int32 | np.int64]) -> int:
            array = np.zeros(count, dtype)
            self._alive.append(array)
            return array.ctypes.data

        pointers = c_void_p * num_groups
        self.assembly = Assembly(
            chunks=self._chunks.ctypes.data,
            num_rows=min(len(tokens), *map(len, tables)),
            max_length=min(tokens.shape[1], blocks_per_row * block_size),
            row_tokens=_address(tokens),
            tokens_per_row=tokens.strides[0] // tokens.itemsize,
            row_tables=pointers(*map(_address, tables)),
            blocks_per_row=blocks_per_row,
            num_groups=num_groups,
            block_size=block_size,
            max_tokens=max_tokens,
            max_chunks=max_chunks,
            max_picked=max_picked,
            tokens=room(max_tokens, np.int64),
            positions=room(max_tokens, np.int64),
            query_starts=room(max_chunks + 1, np.int32),
            ends=room(max_chunks, np.int32),
            tables=pointers(*(room(max_chunks * blocks_per_row, np.int32) for _ in tables)),
            slots=pointers(*(room(max_tokens, np.int64) for _ in tables)),
            picked=room(max_picked, np.int64),
        )

    def take(self, chunks: ChunkTable) -> Assembly:
        """Of the next step."""
        # As many as there is memory for: the library refuses more by their number.
        self._chunks[: len(chunks)] = chunks[: len(self._chunks)]
        self.assembly.num_chunks = len(chunks)
        self.assembly.num_depths, self.assembly.depths, self.assembly.lines = 0, None, None
        return self.assembly

    def take_trees(self, chunks: ChunkTable, depths: Ints, paths: ByteTable) -> Assembly:
        """Of a step in which some chunks are trees: depths [T] and paths [T, MOST_TREE_TOKENS], as `ops.Trees` says."""
        assembly = self.take(chunks)
        assert paths.shape == (len(depths), MOST_TREE_TOKENS) and paths.dtype == np.uint8
        self._trees = (depths.astype(np.int32), np.ascontiguousarray(paths))
        assembly.num_depths = len(depths)
        assembly.depths, assembly.lines = (array.ctypes.data for array in self._trees)
        return assembly


def _address(array: IntTable) -> int:
    assert array.dtype == np.int32 and array.strides[1] == array.itemsize
    return array.ctypes.data
