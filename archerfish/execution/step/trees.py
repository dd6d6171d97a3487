"""Draft trees of a step's chunks, as tables over the step's tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from archerfish.ops.arrays import ByteTable, Ints
from archerfish.ops.signatures import MAX_TREE_TOKENS

NO_TREE = -1


class TokenTree(Protocol):
    """Tokens that follow a sequence's last one, each after an earlier one of them or after that last token."""

    @property
    def parents(self) -> tuple[int, ...]:
        """The index of the token that each follows; -1 for the sequence's last token."""

    @property
    def depths(self) -> list[int]:
        """1 for tokens that follow the sequence's last one."""

    @property
    def is_chain(self) -> bool:
        """Whether each token follows the one before it."""

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class StepTrees:
    """The tables of `ops.Trees` on the host."""

    depths: Ints
    """[T] depth of each token in its chunk's tree; NO_TREE for tokens of chunks without one."""
    paths: ByteTable
    """[T, MAX_TREE_TOKENS] indices within the chunk of each token's ancestors and itself, from the root."""

    @classmethod
    def of(cls, lengths: Ints, drafts: Sequence[TokenTree | None]) -> Self | None:
        """Return the tables of a step, given the draft after each chunk's first token; None if no chunk has a tree.

        A chain needs no tree: its tokens follow one another as those of any chunk do.
        """
        trees = [None if draft is None or draft.is_chain else draft for draft in drafts]
        if all(tree is None for tree in trees):
            return None
        num_tokens = int(lengths.sum())
        depths = np.full(num_tokens, NO_TREE, np.int64)
        paths = np.zeros((num_tokens, MAX_TREE_TOKENS), np.uint8)
        first = 0
        for length, tree in zip(lengths.tolist(), trees, strict=True):
            if tree is not None:
                assert length == 1 + len(tree), f"a chunk of {length} tokens for a draft of {len(tree)}"
                depths[first : first + length] = (0, *tree.depths)
                _write_paths(paths[first : first + length], tree)
            first += length
        return cls(depths, paths)


def _write_paths(paths: ByteTable, tree: TokenTree) -> None:
    """Write for each token its parent's path and its own index."""
    paths[:] = np.arange(len(paths))[:, None]
    for node, (parent, depth) in enumerate(zip(tree.parents, tree.depths, strict=True)):
        paths[1 + node, :depth] = paths[1 + parent, :depth]
