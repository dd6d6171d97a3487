"""The block tables of sequences: growing, sharing, publishing, sliding, releasing. Ids only; storage.py has tensors.

Layers whose attention reaches equally far form a group; each group has its own table, and all tables of a sequence grow
together, one block of every group at a time.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from archerfish.kvcache.pool import BlockId, BlockPool
from archerfish.kvcache.prefix_cache import BlockHash, PrefixCache, PrefixMatch, hash_block, hash_salt

Blocks = tuple[tuple[BlockId, ...], ...]
"""New blocks, a tuple for each group."""


class BlockCopy(NamedTuple):
    """Copy one block's keys and values before the step, because two sequences are about to differ in it."""

    source: BlockId
    target: BlockId


class Fork(NamedTuple):
    """A table that shares blocks with another, and the blocks that must be copied before it is used."""

    table: "BlockTable"
    copies: list[BlockCopy]


@dataclass(slots=True)
class BlockTable:
    """The blocks of one sequence."""

    groups: list[list[BlockId | None]]
    """For each group, the blocks in the order of their positions; None where a window has passed one."""
    capacity: int = 0
    """Tokens the blocks can hold."""
    num_published: int = 0
    """Leading blocks that are in the prefix cache, or were found there."""
    first_retained: list[int] = field(default_factory=list)
    """For each group, the index of the first block that is not None."""


def blocks_held(num_tokens: int, windows: tuple[int | None, ...], block_size: int, step_tokens: int) -> int:
    """Return the most blocks a sequence of this length ever holds, if it grows by at most step_tokens a step."""
    return sum(_held(num_tokens, window, block_size, step_tokens) for window in windows)


def _held(num_tokens: int, window: int | None, block_size: int, step_tokens: int) -> int:
    """Return the most blocks that a sequence holds in one group."""
    num_retained = num_tokens if window is None else min(num_tokens, window - 1 + step_tokens)
    # A window rarely starts on a block's first token, so it can touch one block more.
    return min(-(-num_tokens // block_size), -(-num_retained // block_size) + (window is not None))


class BlockHashes:
    """The hashes of a sequence's full blocks, computed as the sequence grows."""

    def __init__(self, salt: str, block_size: int) -> None:
        self._root = hash_salt(salt)
        self._block_size = block_size
        self._hashes: list[BlockHash] = []

    def prefix(self, tokens: Sequence[int], num_blocks: int) -> list[BlockHash]:
        """Return the hashes of the first num_blocks blocks, which must be full. Tokens may only grow at the end."""
        hashes, size = self._hashes, self._block_size
        while len(hashes) < num_blocks:
            block = tokens[len(hashes) * size : (len(hashes) + 1) * size]
            assert len(block) == size, "a block whose tokens are not all known has no hash"
            hashes.append(hash_block(hashes[-1] if hashes else self._root, block))
        return hashes[:num_blocks]


class KVTables:
    """Assigns blocks to sequences. The only owner of the pool and the prefix cache."""

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
        self.prefix_cache = PrefixCache(windows, block_size)
        self.pool = BlockPool(num_blocks, on_evict=self.prefix_cache.forget)
        self.slides = any(window is not None for window in windows)
        """Whether blocks are released while a sequence runs."""

    @property
    def usage(self) -> float:
        """Share of the blocks in use."""
        return self.pool.num_in_use / self.pool.num_blocks

    def match(self, hashes: Sequence[BlockHash]) -> PrefixMatch:
        """Return the longest cached prefix. Changes nothing."""
        return self.prefix_cache.match(hashes)

    def can_hold(self, match: PrefixMatch, num_tokens: int, preempted: Sequence[BlockTable] = ()) -> bool:
        """Return whether the pool has all that a sequence of num_tokens that starts from a match will ever need.

        The blocks of `preempted` tables would be released before.
        """
        released = Counter(block for table in preempted for blocks in table.groups for block in blocks)
        del released[None]

        def is_idle(block: BlockId | None) -> bool:
            """Return whether no other sequence holds the block, so that retaining it takes it from the pool."""
            return block is not None and self.pool.references(block) == released[block]

        available = self.pool.num_available + sum(is_idle(block) for block in released)
        new = -(-num_tokens // self.block_size) - match.num_blocks
        needed = 0
        for group, window in enumerate(self.windows):
            idle = sum(is_idle(block) for block in match.blocks[group]) if match.blocks else 0
            # What others hold too costs nothing, but is not freed either when a window passes it.
            needed += min(new + idle, _held(num_tokens, window, self.block_size, self.step_tokens))
        return needed <= available

    def open(self, match: PrefixMatch) -> BlockTable:
        """Return a table that shares the matched blocks."""
        table = BlockTable([[] for _ in self.windows], first_retained=[0] * len(self.windows))
        for group, blocks in enumerate(match.blocks):
            for block in blocks:
                if block is not None:
                    self.pool.retain(block)
            table.groups[group] = list(blocks)
            table.first_retained[group] = sum(block is None for block in blocks)
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
        if any(retained > needed for retained, needed in zip(parent.first_retained, first, strict=True)):
            return None
        targets = self.pool.reserve(len(self.windows) if partial else 0)
        if targets is None:
            return None
        table = BlockTable(
            [], (num_shared + bool(partial)) * self.block_size, min(parent.num_published, num_shared), first
        )
        copies = []
        for group, blocks in enumerate(parent.groups):
            shared = [block if index >= first[group] else None for index, block in enumerate(blocks[:num_shared])]
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

    def max_capacity(self, table: BlockTable) -> int:
        """Return how many tokens the sequence could hold if it took every block that is left."""
        return table.capacity + self.pool.num_available // len(self.windows) * self.block_size

    def reserve(self, table: BlockTable, num_tokens: int) -> Blocks | None:
        """Reserve blocks for num_tokens in all and return the new ones; None, changing nothing, if too few are left."""
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

    def advance(self, table: BlockTable, computed: int, hashes: BlockHashes, tokens: Sequence[int]) -> None:
        """After a step, publish blocks that became full and release blocks that windows have passed."""
        if self.prefix_caching and computed // self.block_size > table.num_published:
            self._publish(table, hashes.prefix(tokens, computed // self.block_size))
        if self.slides:
            self._slide(table, computed)

    def release(self, table: BlockTable) -> None:
        """Release all blocks, the last one first: a block must be evicted before those it builds on."""
        for index in reversed(range(table.capacity // self.block_size)):
            for blocks in table.groups:
                block = blocks[index]
                if block is not None:
                    self.pool.release(block)
        table.groups = [[] for _ in self.windows]
        table.capacity = table.num_published = 0

    def check(self, tables: Sequence[BlockTable], copies: Iterable[BlockCopy] = ()) -> None:
        """Check the reference counts against what the sequences, and the copies of steps in flight, hold."""
        self.pool.check()
        self.prefix_cache.check()
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

    def _publish(self, table: BlockTable, hashes: list[BlockHash]) -> None:
        for index in range(table.num_published, len(hashes)):
            for group, blocks in enumerate(table.groups):
                block = blocks[index]
                if block is not None and self.prefix_cache.publish(group, hashes[index], block):
                    self.pool.publish(block)
        table.num_published = len(hashes)

    def _slide(self, table: BlockTable, computed: int) -> None:
        for group, window in enumerate(self.windows):
            first = self._first_needed(window, computed)
            for index in range(table.first_retained[group], first):
                block = table.groups[group][index]
                assert block is not None
                self.pool.release(block)
                table.groups[group][index] = None
            table.first_retained[group] = max(table.first_retained[group], first)

    def _first_needed(self, window: int | None, position: int) -> int:
        """Return the first block that a query at this position, or a later one, can still see."""
        return 0 if window is None else max(0, position - window + 1) // self.block_size
