"""How far a network beside the model has come in each block of the cache. Knows blocks and rows' tables, no tensors.

Blocks outlive sequences: a cached prefix that the network has seen need not be computed again, and one that it has not
seen is caught up with. A block says how many of its tokens are done, from its first one on.
"""

from collections.abc import Sequence

import numpy as np

from archerfish.ops.arrays import IntTable
from archerfish.scheduling.plan import Plan, SequenceStart


class Filled:
    def __init__(self, num_blocks: int, block_size: int, group: int, table: IntTable) -> None:
        """`table` [rows, blocks] is that of the KV group whose blocks the network uses, and is kept by the rows."""
        self._counts = [0] * num_blocks
        self._block_size = block_size
        self._group = group
        self._table = table
        self._passed: dict[int, int] = {}
        """Of rows whose window has passed blocks when they started: how many."""

    def take_in(self, plan: Plan) -> None:
        """What is new since the last step: blocks that are written from their start, and copies of others."""
        for chunk in plan.chunks:
            if chunk.new_blocks:
                for block in chunk.new_blocks[self._group]:
                    self._counts[block] = 0
        if plan.copies:
            counts = [self._counts[copy.source] for copy in plan.copies]
            for copy, count in zip(plan.copies, counts, strict=True):
                self._counts[copy.target] = count
        if plan.starts:
            firsts = {chunk.row: chunk.start for chunk in plan.chunks}
            for start in plan.starts:
                self._start(start, firsts.get(start.row, 0))

    def _start(self, start: SequenceStart, computed: int) -> None:
        blocks = start.blocks[self._group]
        self._passed[start.row] = sum(block is None for block in blocks)
        place, share = divmod(computed, self._block_size)
        if share and (block := blocks[place]) is not None:
            # Copied from a sequence that may have gone on in another way.
            self._counts[block] = min(self._counts[block], share)

    def upto(self, row: int, end: int) -> int:
        """How many of a row's first `end` tokens are done, one after the other."""
        first = self._passed.get(row, 0)
        blocks = self._table[row, first : -(-end // self._block_size)].tolist()
        done = first * self._block_size
        for block in blocks:
            done += self._counts[block]
            if self._counts[block] < self._block_size:
                break
        return min(done, end)

    def mark(self, row: int, start: int, end: int) -> None:
        """A row's tokens from `start` up to `end` are done, and those before them were."""
        size = self._block_size
        for place in range(start // size, -(-end // size)):
            self._counts[int(self._table[row, place])] = min(size, end - place * size)


def kept_group(windows: Sequence[int | None]) -> int:
    """The KV group of a model whose blocks are kept longest: what sees everything, else what sees farthest."""
    reach = [np.inf if window is None else window for window in windows]
    return int(np.argmax(reach))
