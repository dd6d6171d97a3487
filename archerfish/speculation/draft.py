"""Guessed tokens that hang on a sequence's last one, as a tree. Knows neither who guessed nor what becomes of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from archerfish.request import MAX_DRAFT_TOKENS

ROOT = -1
"""The parent of guesses that follow the sequence's last token."""
MOST_NODES = MAX_DRAFT_TOKENS
"""With the sequence's last token they are 64: a bit of a word for each."""


class Distributions(Protocol):
    """[guesses, vocabulary] float64: a tensor. Only picked from here, so that drafts are there without torch."""

    def __getitem__(self, guesses: list[int], /) -> "Distributions": ...


@dataclass(frozen=True, slots=True)
class Draft:
    """Guesses for one sequence. A chain is the tree in which each hangs on the one before."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    """Which guess each hangs on, always an earlier one, or ROOT. Siblings stand in the order of trust in them."""
    chances: tuple[float, ...] = field(default=(), compare=False)
    """That each stands with all it hangs on, as far as whoever guessed can tell. They never rise."""
    proposals: Distributions | None = field(default=None, compare=False)
    """What each guess was drawn from, as verification.rejection wants it; None where each is certain."""

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.parents) <= MOST_NODES, "every guess hangs on something, and they are few"
        assert all(ROOT <= parent < place for place, parent in enumerate(self.parents)), "a guess hangs on a later one"

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> "Draft":
        return cls(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return all(parent == place - 1 for place, parent in enumerate(self.parents))

    def children(self, node: int) -> list[int]:
        """Of a guess, or of ROOT, in order."""
        return [place for place, parent in enumerate(self.parents) if parent == node]

    def path(self, node: int) -> list[int]:
        """From the first guess down to this one; nothing for ROOT."""
        found: list[int] = []
        while node != ROOT:
            found.append(node)
            node = self.parents[node]
        return found[::-1]

    def first_line(self) -> "Draft":
        """The chain of those that are trusted most."""
        line: list[int] = []
        while found := self.children(line[-1] if line else ROOT):
            line.append(found[0])
        return self._of(line, range(ROOT, len(line) - 1))

    def first(self, count: int) -> "Draft":
        """Without those that come last."""
        if count >= len(self):
            return self
        return self._of(range(count), self.parents[:count])

    def _of(self, guesses: Sequence[int], parents: Iterable[int]) -> "Draft":
        """Some of them, on other parents."""
        return Draft(
            tuple(self.tokens[node] for node in guesses),
            tuple(parents),
            tuple(self.chances[node] for node in guesses) if self.chances else (),
            None if self.proposals is None else self.proposals[list(guesses)],
        )

    @property
    def depths(self) -> list[int]:
        """Of each guess: 1 where it follows the sequence's last token."""
        found: list[int] = []
        for parent in self.parents:
            found.append(1 if parent == ROOT else found[parent] + 1)
        return found


NO_DRAFT = Draft((), ())
