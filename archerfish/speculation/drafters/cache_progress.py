"""How far a drafter has computed each block of the KV cache.

Blocks outlive sequences: a cached prefix that the drafter has computed need not be computed again, and one that it has
not is computed when it drafts. Each block counts how many of its tokens are computed, from its first one on.
"""

from collections.abc import Sequence

import numpy as np

from archerfish.ops.arrays import IntTable
from archerfish.scheduling.plan import Plan, SequenceStart


class DraftCacheProgress:
    """Tokens that a drafter has computed, by block."""

    def __init__(self, num_blocks: int, block_size: int, group: int, table: IntTable) -> None:
        """`table` [rows, blocks] is that of the KV group whose blocks the drafter uses; the rows keep it up to date."""
        self._counts = [0] * num_blocks
        self._block_size = block_size
        self._group = group
        self._table = table
        self._num_passed: dict[int, int] = {}
        """Blocks that a row's window had passed when the row started."""

    def apply(self, plan: Plan) -> None:
        """Reset the blocks that a step writes from their start, and follow its copies."""
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
        self._num_passed[start.row] = sum(block is None for block in blocks)
        index, share = divmod(computed, self._block_size)
        if share and (block := blocks[index]) is not None:
            # Copied from a sequence that may have continued differently.
            self._counts[block] = min(self._counts[block], share)

    def num_computed(self, row: int, end: int) -> int:
        """Return how many of a row's first `end` tokens are computed without a gap."""
        first = self._num_passed.get(row, 0)
        blocks = self._table[row, first : -(-end // self._block_size)].tolist()
        num_computed = first * self._block_size
        for block in blocks:
            num_computed += self._counts[block]
            if self._counts[block] < self._block_size:
                break
        return min(num_computed, end)

    def advance(self, row: int, start: int, end: int) -> None:
        """Record that a row's tokens from `start` up to `end` are computed, and those before them."""
        size = self._block_size
        for index in range(start // size, -(-end // size)):
            self._counts[int(self._table[row, index])] = min(size, end - index * size)


def longest_group(windows: Sequence[int | None]) -> int:
    """Return the KV group whose blocks are cached longest: the one without a window, or with the widest."""
    widths = [np.inf if window is None else window for window in windows]
    return int(np.argmax(widths))
