"""Draft tokens that follow a sequence's last one, as a tree."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from archerfish.request import MAX_DRAFT_TOKENS

ROOT = -1
"""The parent of draft tokens that follow the sequence's last token."""
MAX_NODES = MAX_DRAFT_TOKENS
"""Draft tokens of one draft. With the sequence's last token they are 64: one bit of a word for each."""


class Distributions(Protocol):
    """A tensor [draft tokens, vocabulary] float64. Only indexed here, so that drafts can be used without torch."""

    def __getitem__(self, nodes: list[int], /) -> "Distributions": ...


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft tokens for one sequence. A chain is the tree in which each follows the one before it."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    """The node that each follows, always an earlier one, or ROOT. Siblings are ordered by confidence."""
    probabilities: tuple[float, ...] = field(default=(), compare=False)
    """The proposer's estimate that each is accepted together with all its ancestors. They never rise."""
    proposals: Distributions | None = field(default=None, compare=False)
    """The distribution that each was sampled from, as `rejection` needs it; None where each is certain."""

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.parents) <= MAX_NODES, "a draft has a parent per token, and few tokens"
        assert all(ROOT <= parent < node for node, parent in enumerate(self.parents)), "a parent comes after its child"

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> "Draft":
        return cls(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def children(self, node: int) -> list[int]:
        """Return the children of a node, or of ROOT, in order."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def path(self, node: int) -> list[int]:
        """Return the nodes from the first draft token down to this one; none for ROOT."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def main_chain(self) -> "Draft":
        """Return the chain of first children."""
        nodes: list[int] = []
        while children := self.children(nodes[-1] if nodes else ROOT):
            nodes.append(children[0])
        return self._select(nodes, range(ROOT, len(nodes) - 1))

    def truncated(self, count: int) -> "Draft":
        """Return the draft of the first `count` nodes."""
        if count >= len(self):
            return self
        return self._select(range(count), self.parents[:count])

    def _select(self, nodes: Sequence[int], parents: Iterable[int]) -> "Draft":
        return Draft(
            tuple(self.tokens[node] for node in nodes),
            tuple(parents),
            tuple(self.probabilities[node] for node in nodes) if self.probabilities else (),
            None if self.proposals is None else self.proposals[list(nodes)],
        )

    @property
    def depths(self) -> list[int]:
        """The depth of each node: 1 where it follows the sequence's last token."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths


NO_DRAFT = Draft((), ())
