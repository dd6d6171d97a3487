"""Trees of guesses among a step's chunks, as tables over its tokens. Knows nothing of rows, blocks or tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from archerfish.ops.arrays import ByteTable, Ints
from archerfish.ops.signatures import MOST_TREE_TOKENS

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
    """On the host: what `ops.Trees` says of a step's tokens."""

    depths: Ints
    """[T] NO_TREE for tokens of chunks that are none."""
    paths: ByteTable
    """[T, MOST_TREE_TOKENS]"""

    @classmethod
    def of(cls, lengths: Ints, drafts: Sequence[TokenTree | None]) -> Self | None:
        """A draft for each chunk, whose first token is the one that the draft hangs on; or none.

        A chain needs no tree: it is what every other chunk is, too.
        """
        trees = [None if draft is None or draft.is_chain else draft for draft in drafts]
        if all(tree is None for tree in trees):
            return None
        num_tokens = int(lengths.sum())
        depths = np.full(num_tokens, NO_TREE, np.int64)
        paths = np.zeros((num_tokens, MOST_TREE_TOKENS), np.uint8)
        first = 0
        for length, tree in zip(lengths.tolist(), trees, strict=True):
            if tree is not None:
                assert length == 1 + len(tree), f"a chunk of {length} tokens for a draft of {len(tree)}"
                depths[first : first + length] = (0, *tree.depths)
                _write_paths(paths[first : first + length], tree)
            first += length
        return cls(depths, paths)


def _write_paths(paths: ByteTable, tree: TokenTree) -> None:
    """A line is that of the guess it hangs on, and its own number."""
    paths[:] = np.arange(len(paths))[:, None]
    for node, (parent, depth) in enumerate(zip(tree.parents, tree.depths, strict=True)):
        paths[1 + node, :depth] = paths[1 + parent, :depth]
