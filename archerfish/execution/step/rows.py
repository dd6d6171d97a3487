"""The tokens and block tables of rows, which an executor stores between steps."""

from collections.abc import Sequence
from copy import copy

import numpy as np

from archerfish.ops.arrays import Ints, IntTable
from archerfish.scheduling.plan import Chunk, SequenceStart


class Rows:
    """Tokens and block tables of all rows, as arrays that a step's inputs are gathered from."""

    def __init__(self, num_rows: int, max_model_len: int, num_groups: int, block_size: int) -> None:
        self.block_size = block_size
        self.max_model_len = max_model_len
        """Tokens of a row that can be computed."""
        blocks_per_row = -(-max_model_len // block_size)
        # One token more: the one sampled at the very end of the context is stored, though never computed.
        self.tokens: IntTable = np.zeros((num_rows, max_model_len + 1), np.int32)
        self.tables: list[IntTable] = [np.zeros((num_rows, blocks_per_row), np.int32) for _ in range(num_groups)]
        self.num_prompt: Ints = np.zeros(num_rows, np.int64)
        self._num_blocks: Ints = np.zeros(num_rows, np.int64)

    def start(self, start: SequenceStart) -> None:
        """Give a row to a sequence, with the tokens and blocks that it has."""
        row = start.row
        self.tokens[row, : len(start.tokens)] = start.tokens
        self.num_prompt[row] = start.num_prompt_tokens
        self._num_blocks[row] = len(start.blocks[0])
        for table, blocks in zip(self.tables, start.blocks, strict=True):
            # A block that a window has passed is never read: any id will do.
            table[row, : len(blocks)] = [0 if block is None else block for block in blocks]

    def drafter_view(self, group: int, shift: int = 0) -> "Rows":
        """Return the same rows as a drafter reads them: the blocks of one KV group, and tokens `shift` positions on."""
        view = copy(self)
        view.tables, view.tokens = [self.tables[group]], self.tokens[:, shift:]
        return view

    def write_tokens(self, rows: Ints, positions: Ints, tokens: Sequence[int]) -> None:
        """Write one token to each of several rows."""
        self.tokens[rows, positions] = tokens

    def write(self, row: int, first: int, tokens: Sequence[int]) -> None:
        """Write tokens of one row from a position on."""
        self.tokens[row, first : first + len(tokens)] = tokens

    def append_blocks(self, chunk: Chunk) -> None:
        """Append a chunk's new blocks to its row's tables."""
        first = self._num_blocks[chunk.row]
        for table, blocks in zip(self.tables, chunk.new_blocks, strict=True):
            table[chunk.row, first : first + len(blocks)] = blocks
        self._num_blocks[chunk.row] += len(chunk.new_blocks[0])
