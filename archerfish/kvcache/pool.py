"""Which blocks are free, cached or in use, by reference count."""

from collections import OrderedDict
from collections.abc import Callable
from typing import NewType

BlockId = NewType("BlockId", int)


class BlockPool:
    """A fixed number of blocks. Every operation on a block takes constant time.

    A block is in use while it has references. When the last one is released, a published block stays cached and can be
    retained again, until it is needed for something else: the one released longest ago is evicted first. Sequences
    release their last block first, so a block is always evicted before the blocks its meaning depends on.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[BlockId], None]) -> None:
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._free = [BlockId(block) for block in reversed(range(num_blocks))]
        self._cached: OrderedDict[BlockId, None] = OrderedDict()
        self._references = [0] * num_blocks
        self._published = [False] * num_blocks

    @property
    def num_available(self) -> int:
        """Number of blocks that could be reserved now: free or cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_in_use(self) -> int:
        return self.num_blocks - self.num_available

    def reserve(self, count: int) -> list[BlockId] | None:
        """Reserve blocks for the caller alone. None (and nothing changed) if there are too few."""
        if count > self.num_available:
            return None
        return [self._take() for _ in range(count)]

    def retain(self, block: BlockId) -> None:
        """Add a reference to a block that is in use or cached."""
        if self._references[block] == 0:
            assert self._published[block], "only a published block can be retained again"
            del self._cached[block]
        self._references[block] += 1

    def release(self, block: BlockId) -> None:
        """Drop a reference."""
        assert self._references[block] > 0, "released more often than reserved"
        self._references[block] -= 1
        if self._references[block] == 0:
            if self._published[block]:
                self._cached[block] = None
            else:
                self._free.append(block)

    def publish(self, block: BlockId) -> None:
        """Have the block stay cached after its last reference is dropped; on_evict is called when it is evicted."""
        assert self._references[block] > 0, "only a holder can publish"
        self._published[block] = True

    def drop_cached(self) -> None:
        """Evict every cached block."""
        while self._cached:
            self._free.append(self._evict())

    def check(self) -> None:
        """Check that free, cached and used blocks add up, and that no block is two of them."""
        in_use = {block for block in range(self.num_blocks) if self._references[block] > 0}
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is free twice"
        assert len(free) + len(cached) + len(in_use) == self.num_blocks, "blocks are lost or counted twice"
        assert not (free & cached or free & in_use or cached & in_use), "a block is in two states"
        assert all(self._published[block] for block in cached), "a cached block is not published"
        assert not any(self._published[block] for block in free), "a free block is published"

    def references(self, block: BlockId) -> int:
        """Return the number of references to a block."""
        return self._references[block]

    def states(self) -> bytes:
        """Return one byte for each block: 0 free, 1 cached, 2 in use."""
        states = bytearray(b"\2") * self.num_blocks
        for block in self._free:
            states[block] = 0
        for block in self._cached:
            states[block] = 1
        return bytes(states)

    def _take(self) -> BlockId:
        block = self._free.pop() if self._free else self._evict()
        self._references[block] = 1
        return block

    def _evict(self) -> BlockId:
        block, _ = self._cached.popitem(last=False)
        self._published[block] = False
        self._on_evict(block)
        return block
