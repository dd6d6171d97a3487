"""Rows that a device knows too: their tokens and block tables in its memory, told of what is new before each step."""

from collections.abc import Sequence

import numpy as np
import torch

from archerfish.execution.step.rows import Rows
from archerfish.ops.arrays import Ints
from archerfish.scheduling.plan import Chunk, SequenceStart


class DeviceRows(Rows):
    """One piece of int32 memory on the device: the rows' tokens, then one block table for each KV group."""

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
        self._news: list[tuple[int, Sequence[int]]] = []
        """(place in memory, values from there on) since the last step."""

    @property
    def strides(self) -> tuple[int, int, int]:
        """Of a row's tokens, of a row's blocks; and the tokens of a block."""
        return self.tokens.shape[1], self.tables[0].shape[1], self.block_size

    def start(self, start: SequenceStart) -> None:
        super().start(start)
        self._tell(0, self.tokens, start.row, 0, len(start.tokens))
        for group, (table, blocks) in enumerate(zip(self.tables, start.blocks, strict=True)):
            self._tell(1 + group, table, start.row, 0, len(blocks))

    def append_blocks(self, chunk: Chunk) -> None:
        first = int(self._num_blocks[chunk.row])
        super().append_blocks(chunk)
        for group, (table, blocks) in enumerate(zip(self.tables, chunk.new_blocks, strict=True)):
            self._tell(1 + group, table, chunk.row, first, len(blocks))

    def write_tokens(self, rows: Ints, positions: Ints, tokens: Sequence[int]) -> None:
        """Tokens that the host drew."""
        super().write_tokens(rows, positions, tokens)
        places = (rows * self.tokens.shape[1] + positions).tolist()
        self._news += [(place, (token,)) for place, token in zip(places, tokens, strict=True)]

    def write(self, row: int, first: int, tokens: Sequence[int]) -> None:
        super().write(row, first, tokens)
        self._tell(0, self.tokens, row, first, len(tokens))

    def remember_tokens(self, rows: Ints, positions: Ints, tokens: Sequence[int]) -> None:
        """Tokens that the device drew, and has already."""
        super().write_tokens(rows, positions, tokens)

    def take_news(self) -> "np.ndarray[tuple[int, int], np.dtype[np.int32]]":
        """[n, 2] places in memory and what belongs there, since this was last asked. No place is named twice."""
        news, self._news = self._news, []
        if not news:
            return np.zeros((0, 2), np.int32)
        lengths = np.array([len(values) for _, values in news])
        starts = np.repeat([place for place, _ in news] - (np.cumsum(lengths) - lengths), lengths)
        pairs = np.stack((starts + np.arange(len(starts)), np.concatenate([values for _, values in news])), axis=1)
        # A row may have been started, dropped and started again: what was said last holds.
        _, last = np.unique(pairs[::-1, 0], return_index=True)
        return pairs[len(pairs) - 1 - last].astype(np.int32)

    def _tell(
        self, part: int, table: "np.ndarray[tuple[int, int], np.dtype[np.int32]]", row: int, first: int, count: int
    ) -> None:
        if count:
            place = self._firsts[part] + row * table.shape[1] + first
            self._news.append((place, table[row, first : first + count].tolist()))
