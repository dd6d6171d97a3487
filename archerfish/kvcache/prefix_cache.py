"""The prefix cache: which block holds the keys and values of which token prefix.

A full block is identified by a hash of its tokens and of its parent's hash, so that a hash identifies a whole prefix.
Hashes are cryptographic: a client cannot make two prefixes collide. A salt in the first one separates tenants.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from archerfish.kvcache.pool import BlockId

BlockHash = bytes


class PrefixMatch(NamedTuple):
    """The longest cached prefix: how many full blocks, and for each group the blocks that it still needs of them."""

    num_blocks: int
    blocks: list[list[BlockId | None]]


NO_MATCH = PrefixMatch(0, [])


def hash_salt(salt: str) -> BlockHash:
    """Return the hash that stands for the parent of a sequence's first block."""
    return blake2b(salt.encode(errors="surrogatepass"), digest_size=16, person=b"salt").digest()


def hash_block(parent: BlockHash, tokens: Sequence[int]) -> BlockHash:
    """Return the hash of a block with these tokens that follows its parent."""
    return blake2b(parent + array("I", tokens).tobytes(), digest_size=16, person=b"block").digest()


class PrefixCache:
    """Finds blocks by hash. Each KV group has its own map: one with a window may have lost blocks that others have."""

    def __init__(self, windows: tuple[int | None, ...], block_size: int) -> None:
        # Blocks a group needs before a position: all of them, or those its window reaches into.
        self._reach = [None if w is None else -(-(w - 1) // block_size) for w in windows]
        self._blocks: list[dict[BlockHash, BlockId]] = [{} for _ in windows]
        self._hashes: dict[BlockId, tuple[int, BlockHash]] = {}

    def __len__(self) -> int:
        return len(self._hashes)

    def publish(self, group: int, block_hash: BlockHash, block: BlockId) -> bool:
        """Enter a block. False if another block already has the hash: the caller's stays private."""
        if block_hash in self._blocks[group]:
            return False
        self._blocks[group][block_hash] = block
        self._hashes[block] = (group, block_hash)
        return True

    def forget(self, block: BlockId) -> None:
        """Remove a block that was evicted."""
        group, block_hash = self._hashes.pop(block)
        del self._blocks[group][block_hash]

    def match(self, hashes: Sequence[BlockHash]) -> PrefixMatch:
        """Return the longest prefix that every group can continue from. Changes nothing."""
        length = len(hashes)
        # A group can only shorten what the others found; repeat until all agree.
        while length and any(
            (shorter := self._longest(group, hashes, length)) < length for group in range(len(self._reach))
        ):
            length = shorter
        if not length:
            return NO_MATCH
        return PrefixMatch(length, [self._path(group, hashes, length) for group in range(len(self._reach))])

    def _longest(self, group: int, hashes: Sequence[BlockHash], limit: int) -> int:
        """Return the longest prefix of at most `limit` blocks that this group can continue from."""
        known, reach = self._blocks[group], self._reach[group]
        if reach == 0:
            return limit
        if reach is None:
            return next((index for index in range(limit) if hashes[index] not in known), limit)
        end = limit  # A window needs an unbroken run of `reach` blocks up to the end, or up to the start.
        run = 0
        for index in reversed(range(limit)):
            if hashes[index] in known:
                run += 1
                if run >= reach:
                    return end
            else:
                end, run = index, 0
        return end

    def _path(self, group: int, hashes: Sequence[BlockHash], length: int) -> list[BlockId | None]:
        reach = self._reach[group]
        first = 0 if reach is None else max(0, length - reach)
        known = self._blocks[group]
        return [None] * first + [known[block_hash] for block_hash in hashes[first:length]]

    def check(self) -> None:
        """Check that hashes and blocks agree."""
        assert sum(len(known) for known in self._blocks) == len(self._hashes), "a block has two hashes or none"
        for block, (group, block_hash) in self._hashes.items():
            assert self._blocks[group][block_hash] == block, "hashes and blocks disagree"
