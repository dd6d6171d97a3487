"""The prefix tree: which block holds the keys and values of which token prefix. Knows block ids, not tensors.

A full block is named by a hash over its tokens and the name of the block before it, so a name stands for a whole
prefix, and a path of the tree is a chain of names. Names are cryptographic: a client cannot make two prefixes collide,
and a salt in the root keeps tenants' trees apart.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from archerfish.kvcache.pool import BlockId

BlockName = bytes


class PrefixMatch(NamedTuple):
    """The longest cached prefix: how many whole blocks, and for each group the block at each place it still needs."""

    num_blocks: int
    blocks: list[list[BlockId | None]]


NO_MATCH = PrefixMatch(0, [])


def root_name(salt: str) -> BlockName:
    return blake2b(salt.encode(errors="surrogatepass"), digest_size=16, person=b"salt").digest()


def child_name(parent: BlockName, tokens: Sequence[int]) -> BlockName:
    return blake2b(parent + array("I", tokens).tobytes(), digest_size=16, person=b"block").digest()


class PrefixTree:
    """Finds blocks by name. Each KV group has its own map: one with a window may have lost blocks that others keep."""

    def __init__(self, windows: tuple[int | None, ...], block_size: int) -> None:
        # Blocks a group needs before a position: all of them, or those its window reaches into.
        self._reach = [None if w is None else -(-(w - 1) // block_size) for w in windows]
        self._blocks: list[dict[BlockName, BlockId]] = [{} for _ in windows]
        self._names: dict[BlockId, tuple[int, BlockName]] = {}

    def __len__(self) -> int:
        return len(self._names)

    def publish(self, group: int, name: BlockName, block: BlockId) -> bool:
        """Enter a block. False if another block already has the name: the caller's stays private."""
        if name in self._blocks[group]:
            return False
        self._blocks[group][name] = block
        self._names[block] = (group, name)
        return True

    def forget(self, block: BlockId) -> None:
        group, name = self._names.pop(block)
        del self._blocks[group][name]

    def match(self, names: Sequence[BlockName]) -> PrefixMatch:
        """Longest prefix that every group can continue from. Does not change the tree."""
        length = len(names)
        # A group can only shorten what the others found; repeat until all agree.
        while length and any(
            (shorter := self._longest(group, names, length)) < length for group in range(len(self._reach))
        ):
            length = shorter
        if not length:
            return NO_MATCH
        return PrefixMatch(length, [self._path(group, names, length) for group in range(len(self._reach))])

    def _longest(self, group: int, names: Sequence[BlockName], limit: int) -> int:
        """Longest prefix of at most `limit` blocks that this group can continue from."""
        known, reach = self._blocks[group], self._reach[group]
        if reach == 0:
            return limit
        if reach is None:
            return next((index for index in range(limit) if names[index] not in known), limit)
        end = limit  # A window needs an unbroken run of `reach` blocks up to the end, or up to the start.
        run = 0
        for index in reversed(range(limit)):
            if names[index] in known:
                run += 1
                if run >= reach:
                    return end
            else:
                end, run = index, 0
        return end

    def _path(self, group: int, names: Sequence[BlockName], length: int) -> list[BlockId | None]:
        reach = self._reach[group]
        first = 0 if reach is None else max(0, length - reach)
        known = self._blocks[group]
        return [None] * first + [known[name] for name in names[first:length]]

    def check(self) -> None:
        assert sum(len(known) for known in self._blocks) == len(self._names), "a block has two names or none"
        for block, (group, name) in self._names.items():
            assert self._blocks[group][name] == block, "names and blocks disagree"
