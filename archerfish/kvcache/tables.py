"""Each sequence's blocks: growing, sharing, publishing, sliding, releasing. Ids only; storage.py holds the tensors.

Layers whose attention reaches equally far form a group; each group has its own table, and all tables of a sequence grow
together, one block of every group at a time.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from archerfish.kvcache.pool import BlockId, BlockPool
from archerfish.kvcache.prefix import BlockName, PrefixMatch, PrefixTree, child_name, root_name

Blocks = tuple[tuple[BlockId, ...], ...]
"""New blocks, one tuple for each group."""


class BlockCopy(NamedTuple):
    """Copy one block's keys and values before the step, because two sequences are about to differ in it."""

    source: BlockId
    target: BlockId


class Fork(NamedTuple):
    table: "BlockTable"
    copies: list[BlockCopy]


@dataclass(slots=True)
class BlockTable:
    """The blocks of one sequence."""

    groups: list[list[BlockId | None]]
    """For each group, the block of every block-sized stretch of positions; None where a window has passed it."""
    capacity: int = 0
    """Tokens the blocks can hold."""
    num_published: int = 0
    """Leading blocks that are in the prefix tree, or were found there."""
    first_kept: list[int] = field(default_factory=list)
    """For each group, the first place that is not None."""


def blocks_held(num_tokens: int, windows: tuple[int | None, ...], block_size: int, step_tokens: int) -> int:
    """Most blocks a sequence of this length ever holds at once, if it grows by at most step_tokens a step."""
    return sum(_held(num_tokens, window, block_size, step_tokens) for window in windows)


def _held(num_tokens: int, window: int | None, block_size: int, step_tokens: int) -> int:
    """The same for one group."""
    kept = num_tokens if window is None else min(num_tokens, window - 1 + step_tokens)
    # A window rarely starts on a block's first token, so it can touch one block more.
    return min(-(-num_tokens // block_size), -(-kept // block_size) + (window is not None))


class BlockNames:
    """Names of a sequence's full blocks, made as the sequence grows."""

    def __init__(self, salt: str, block_size: int) -> None:
        self._root = root_name(salt)
        self._block_size = block_size
        self._names: list[BlockName] = []

    def upto(self, tokens: Sequence[int], num_blocks: int) -> list[BlockName]:
        """Names of the first num_blocks blocks, which must be full; tokens must only ever grow at the end."""
        names, size = self._names, self._block_size
        while len(names) < num_blocks:
            block = tokens[len(names) * size : (len(names) + 1) * size]
            assert len(block) == size, "a block whose tokens are not all known has no name"
            names.append(child_name(names[-1] if names else self._root, block))
        return names[:num_blocks]


class KVTables:
    """Hands blocks to sequences. The only owner of the pool and the prefix tree."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        windows: tuple[int | None, ...],
        *,
        step_tokens: int,
        prefix_caching: bool,
    ) -> None:
        self.block_size = block_size
        self.windows = windows
        self.step_tokens = step_tokens
        """Most tokens a sequence grows by in one step."""
        self.prefix_caching = prefix_caching
        self.tree = PrefixTree(windows, block_size)
        self.pool = BlockPool(num_blocks, on_evict=self.tree.forget)
        self.slides = any(window is not None for window in windows)
        """Whether blocks are given back while a sequence runs."""

    @property
    def usage(self) -> float:
        """Share of the blocks in use."""
        return self.pool.num_in_use / self.pool.num_blocks

    def match(self, names: Sequence[BlockName]) -> PrefixMatch:
        """Longest cached prefix. Changes nothing."""
        return self.tree.match(names)

    def can_hold(self, match: PrefixMatch, num_tokens: int, leaving: Sequence[BlockTable] = ()) -> bool:
        """Whether the pool has what a sequence of num_tokens that starts from a match will need at any time.

        `leaving` are tables whose blocks would be given back before.
        """
        given_back = Counter(block for table in leaving for blocks in table.groups for block in blocks)
        del given_back[None]

        def is_idle(block: BlockId | None) -> bool:
            """Nobody else holds it, so that taking it up takes it from the pool."""
            return block is not None and self.pool.references(block) == given_back[block]

        available = self.pool.num_available + sum(is_idle(block) for block in given_back)
        new = -(-num_tokens // self.block_size) - match.num_blocks
        needed = 0
        for group, window in enumerate(self.windows):
            idle = sum(is_idle(block) for block in match.blocks[group]) if match.blocks else 0
            # What others hold too costs nothing, but does not come back either when a window passes it.
            needed += min(new + idle, _held(num_tokens, window, self.block_size, self.step_tokens))
        return needed <= available

    def open(self, match: PrefixMatch) -> BlockTable:
        """A table that shares the matched blocks."""
        table = BlockTable([[] for _ in self.windows], first_kept=[0] * len(self.windows))
        for group, blocks in enumerate(match.blocks):
            for block in blocks:
                if block is not None:
                    self.pool.retain(block)
            table.groups[group] = list(blocks)
            table.first_kept[group] = sum(block is None for block in blocks)
        table.capacity = match.num_blocks * self.block_size
        table.num_published = match.num_blocks
        return table

    def fork(self, parent: BlockTable, num_tokens: int) -> Fork | None:
        """Return a table that shares the parent's first num_tokens tokens; the block they end in is copied.

        None if the parent's window has passed what the fork would need, or no block is left for the copy. The copied
        blocks are retained: call release_sources when the step that copies them is done.
        """
        num_shared, partial = divmod(num_tokens, self.block_size)
        first = [self._first_needed(window, num_tokens) for window in self.windows]
        if any(kept > needed for kept, needed in zip(parent.first_kept, first, strict=True)):
            return None
        targets = self.pool.reserve(len(self.windows) if partial else 0)
        if targets is None:
            return None
        table = BlockTable(
            [], (num_shared + bool(partial)) * self.block_size, min(parent.num_published, num_shared), first
        )
        copies = []
        for group, blocks in enumerate(parent.groups):
            shared = [block if place >= first[group] else None for place, block in enumerate(blocks[:num_shared])]
            for block in shared:
                if block is not None:
                    self.pool.retain(block)
            if partial:
                source = blocks[num_shared]
                assert source is not None
                self.pool.retain(source)
                copies.append(BlockCopy(source, targets[group]))
                shared.append(targets[group])
            table.groups.append(shared)
        return Fork(table, copies)

    def release_sources(self, copies: Iterable[BlockCopy]) -> None:
        """Release the blocks that forks retained for copying."""
        for copy in copies:
            self.pool.release(copy.source)

    def room(self, table: BlockTable) -> int:
        """Tokens the sequence could hold if it took every block that is left."""
        return table.capacity + self.pool.num_available // len(self.windows) * self.block_size

    def reserve(self, table: BlockTable, num_tokens: int) -> Blocks | None:
        """Make room for num_tokens in all; the new blocks, or None (and nothing changed) if there are too few."""
        columns = -(-num_tokens // self.block_size) - table.capacity // self.block_size
        if columns <= 0:
            return ()
        taken = self.pool.reserve(columns * len(self.windows))
        if taken is None:
            return None
        new = tuple(tuple(taken[group * columns : (group + 1) * columns]) for group in range(len(self.windows)))
        for blocks, added in zip(table.groups, new, strict=True):
            blocks.extend(added)
        table.capacity += columns * self.block_size
        return new

    def advance(self, table: BlockTable, computed: int, names: BlockNames, tokens: Sequence[int]) -> None:
        """After a step: publish blocks that became full, let go of blocks that windows have passed."""
        if self.prefix_caching and computed // self.block_size > table.num_published:
            self._publish(table, names.upto(tokens, computed // self.block_size))
        if self.slides:
            self._slide(table, computed)

    def release(self, table: BlockTable) -> None:
        """Give everything back, last block first: a block must be evicted before those it builds on."""
        for place in reversed(range(table.capacity // self.block_size)):
            for blocks in table.groups:
                block = blocks[place]
                if block is not None:
                    self.pool.release(block)
        table.groups = [[] for _ in self.windows]
        table.capacity = table.num_published = 0

    def check(self, tables: Sequence[BlockTable], copies: Iterable[BlockCopy] = ()) -> None:
        """Check the reference counts against what the sequences, and the copies of steps in flight, hold."""
        self.pool.check()
        self.tree.check()
        holders = Counter(copy.source for copy in copies)
        for table in tables:
            for blocks in table.groups:
                assert len(blocks) * self.block_size == table.capacity, "tables of a sequence grow together"
                for block in blocks:
                    if block is not None:
                        holders[block] += 1
        for number in range(self.pool.num_blocks):
            held = holders[BlockId(number)]
            assert self.pool.references(BlockId(number)) == held, f"block {number} has {held} holders"

    def _publish(self, table: BlockTable, names: list[BlockName]) -> None:
        for place in range(table.num_published, len(names)):
            for group, blocks in enumerate(table.groups):
                block = blocks[place]
                if block is not None and self.tree.publish(group, names[place], block):
                    self.pool.publish(block)
        table.num_published = len(names)

    def _slide(self, table: BlockTable, computed: int) -> None:
        for group, window in enumerate(self.windows):
            first = self._first_needed(window, computed)
            for place in range(table.first_kept[group], first):
                block = table.groups[group][place]
                assert block is not None
                self.pool.release(block)
                table.groups[group][place] = None
            table.first_kept[group] = max(table.first_kept[group], first)

    def _first_needed(self, window: int | None, position: int) -> int:
        """The first block that a query at this position, or a later one, can still see."""
        return 0 if window is None else max(0, position - window + 1) // self.block_size
