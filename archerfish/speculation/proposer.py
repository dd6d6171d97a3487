"""The protocol of proposers: what the engine asks of whatever suggests draft tokens."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from archerfish.speculation.draft import Draft


class DraftRequest(NamedTuple):
    """A request for a draft of one sequence."""

    row: int
    """The executor's row of the sequence."""
    max_tokens: int
    """Draft tokens that may be proposed."""
    length: int = 0
    """Tokens of the sequence: the position of the first draft token."""


class Proposer(Protocol):
    """Suggests how sequences may go on. Drafts decide how many tokens a step generates, never which."""

    def start(self, row: int, tokens: Sequence[int], num_prompt_tokens: int, tenant: str) -> None:
        """Begin a sequence on the row, for the first time or after a preemption, with these tokens."""

    def extend(self, row: int, tokens: Sequence[int]) -> None:
        """Append tokens that were written to the row's sequence."""

    def has_hint(self, row: int) -> bool:
        """Whether a draft could succeed for a row without recent success. Much cheaper than a draft.

        It may be true in vain, but is never false in vain.
        """

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return drafts that follow each row's last token; a draft may be empty.

        They depend on the past alone: the same request returns the same draft.
        """

    def observe(self, row: int, draft: Draft, sampled: Sequence[int]) -> None:
        """Learn from what the model sampled after the row's last token and after each node of its last draft.

        `sampled` has 1 + len(draft) tokens. Called before `extend`, however much was accepted.
        """
