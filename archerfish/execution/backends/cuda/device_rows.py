"""Rows that are mirrored on a device: tokens and block tables in its memory, updated before each step."""

from collections.abc import Sequence

import numpy as np
import torch

from archerfish.execution.step.rows import Rows
from archerfish.ops.arrays import Ints
from archerfish.scheduling.plan import Chunk, SequenceStart


class DeviceRows(Rows):
    """Rows with a copy in one int32 buffer on the device: the tokens, then one block table for each KV group."""

    def __init__(self, num_rows: int, max_model_len: int, num_groups: int, block_size: int, device: str) -> None:
        super().__init__(num_rows, max_model_len, num_groups, block_size)
        sizes = [self.tokens.size, *(table.size for table in self.tables)]
        self.memory = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self._firsts = np.cumsum([0, *sizes[:-1]]).tolist()
        self.device_tables = tuple(
            self.memory[first : first + table.size].view(table.shape)
            for first, table in zip(self._firsts[1:], self.tables, strict=True)
        )
        self.table_starts = torch.tensor(self._firsts[1:], dtype=torch.int64, device=device)
        self._updates: list[tuple[int, Sequence[int]]] = []
        """(offset in memory, values from there on) that the device does not have yet."""

    @property
    def strides(self) -> tuple[int, int, int]:
        """The numbers of tokens of a row, of blocks of a row, and of tokens of a block."""
        return self.tokens.shape[1], self.tables[0].shape[1], self.block_size

    def start(self, start: SequenceStart) -> None:
        super().start(start)
        self._queue_update(0, self.tokens, start.row, 0, len(start.tokens))
        for group, (table, blocks) in enumerate(zip(self.tables, start.blocks, strict=True)):
            self._queue_update(1 + group, table, start.row, 0, len(blocks))

    def append_blocks(self, chunk: Chunk) -> None:
        first = int(self._num_blocks[chunk.row])
        super().append_blocks(chunk)
        for group, (table, blocks) in enumerate(zip(self.tables, chunk.new_blocks, strict=True)):
            self._queue_update(1 + group, table, chunk.row, first, len(blocks))

    def write_tokens(self, rows: Ints, positions: Ints, tokens: Sequence[int]) -> None:
        """Write tokens that the host sampled."""
        super().write_tokens(rows, positions, tokens)
        offsets = (rows * self.tokens.shape[1] + positions).tolist()
        self._updates += [(offset, (token,)) for offset, token in zip(offsets, tokens, strict=True)]

    def write(self, row: int, first: int, tokens: Sequence[int]) -> None:
        super().write(row, first, tokens)
        self._queue_update(0, self.tokens, row, first, len(tokens))

    def record_device_tokens(self, rows: Ints, positions: Ints, tokens: Sequence[int]) -> None:
        """Write tokens that the device sampled and stored already."""
        super().write_tokens(rows, positions, tokens)

    def take_updates(self) -> "np.ndarray[tuple[int, int], np.dtype[np.int32]]":
        """Return and forget the pending updates: [n, 2] offsets in memory and values. No offset occurs twice."""
        updates, self._updates = self._updates, []
        if not updates:
            return np.zeros((0, 2), np.int32)
        lengths = np.array([len(values) for _, values in updates])
        starts = np.repeat([offset for offset, _ in updates] - (np.cumsum(lengths) - lengths), lengths)
        pairs = np.stack((starts + np.arange(len(starts)), np.concatenate([values for _, values in updates])), axis=1)
        # A row may have been started, dropped and started again: the last value counts.
        _, last = np.unique(pairs[::-1, 0], return_index=True)
        return pairs[len(pairs) - 1 - last].astype(np.int32)

    def _queue_update(
        self, part: int, table: "np.ndarray[tuple[int, int], np.dtype[np.int32]]", row: int, first: int, count: int
    ) -> None:
        if count:
            offset = self._firsts[part] + row * table.shape[1] + first
            self._updates.append((offset, table[row, first : first + count].tolist()))
