"""Buffers for steps that the native library assembles from chunks, tokens and block tables."""

from ctypes import c_void_p
from typing import Any

import numpy as np

from archerfish.ops.arrays import ByteTable, Ints, IntTable
from archerfish.ops.cpu.program import StepAssembly
from archerfish.ops.signatures import CHUNK, MAX_TREE_TOKENS, ChunkTable


class StepAssembler:
    """Describes steps over rows whose tokens and block tables never move."""

    def __init__(
        self,
        tokens: IntTable,
        tables: list[IntTable],
        block_size: int,
        *,
        max_tokens: int,
        max_chunks: int,
        max_logits: int,
    ) -> None:
        """Take tokens [rows, longest], which may be part of wider rows, and tables [rows, blocks] of the KV groups."""
        num_groups, blocks_per_row = len(tables), tables[0].shape[1]
        self._chunks = np.zeros(max_chunks, CHUNK)
        self._referenced: list[Any] = [tokens, tables]
        self._trees: tuple[Any, ...] = ()

        def buffer(count: int, dtype: type[np.int32 | np.int64]) -> int:
            array = np.zeros(count, dtype)
            self._referenced.append(array)
            return array.ctypes.data

        pointers = c_void_p * num_groups
        self.assembly = StepAssembly(
            chunks=self._chunks.ctypes.data,
            num_rows=min(len(tokens), *map(len, tables)),
            max_length=min(tokens.shape[1], blocks_per_row * block_size),
            row_tokens=_address(tokens),
            tokens_per_row=tokens.strides[0] // tokens.itemsize,
            row_tables=pointers(*map(_address, tables)),
            blocks_per_row=blocks_per_row,
            num_kv_groups=num_groups,
            block_size=block_size,
            max_tokens=max_tokens,
            max_chunks=max_chunks,
            max_logits=max_logits,
            tokens=buffer(max_tokens, np.int64),
            positions=buffer(max_tokens, np.int64),
            query_starts=buffer(max_chunks + 1, np.int32),
            ends=buffer(max_chunks, np.int32),
            tables=pointers(*(buffer(max_chunks * blocks_per_row, np.int32) for _ in tables)),
            slots=pointers(*(buffer(max_tokens, np.int64) for _ in tables)),
            logit_indices=buffer(max_logits, np.int64),
        )

    def set_chunks(self, chunks: ChunkTable) -> StepAssembly:
        """Describe a step of these chunks."""
        # The library rejects more chunks than there is memory for by their number.
        self._chunks[: len(chunks)] = chunks[: len(self._chunks)]
        assembly = self.assembly
        assembly.num_chunks = len(chunks)
        assembly.num_tree_depths, assembly.tree_depths, assembly.tree_paths = 0, None, None
        return assembly

    def set_trees(self, chunks: ChunkTable, depths: Ints, paths: ByteTable) -> StepAssembly:
        """Describe a step in which some chunks are trees, with depths [T] and paths [T, tree tokens]: see `Trees`."""
        assembly = self.set_chunks(chunks)
        assert paths.shape == (len(depths), MAX_TREE_TOKENS) and paths.dtype == np.uint8
        self._trees = (depths.astype(np.int32), np.ascontiguousarray(paths))
        assembly.num_tree_depths = len(depths)
        assembly.tree_depths, assembly.tree_paths = (array.ctypes.data for array in self._trees)
        return assembly


def _address(array: IntTable) -> int:
    assert array.dtype == np.int32 and array.strides[1] == array.itemsize
    return array.ctypes.data
