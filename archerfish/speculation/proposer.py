"""What the engine asks of whoever guesses, and what it tells them. Knows no way of guessing."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from archerfish.speculation.draft import Draft


class Ask(NamedTuple):
    """Guesses wanted for one sequence."""

    row: int
    """Of the executor: where the sequence sits."""
    most: int
    """Tokens that may be guessed."""
    end: int = 0
    """How many tokens the sequence has: where the first guess goes."""


class Proposer(Protocol):
    """Suggests what sequences may go on with. Guesses decide how many tokens a pass writes, never which."""

    @property
    def surest(self) -> float | None:
        """The chance of a guess to stand, if the one before it did, if all goes well. None: only experience tells."""

    def start(self, row: int, tokens: Sequence[int], num_prompt_tokens: int, tenant: str) -> None:
        """A sequence takes up the row, for the first time or after a preemption, with these tokens."""

    def extend(self, row: int, tokens: Sequence[int]) -> None:
        """Tokens that were written to the row's sequence, in order."""

    def hints(self, row: int) -> bool:
        """Whether there is anything to guess by, for a row of which nothing has come lately. Much cheaper than a guess.

        Only ever too hopeful.
        """

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """Guesses that follow each row's last token; a draft may be empty.

        The past alone decides: whoever asks again gets the same.
        """

    def saw(self, row: int, draft: Draft, drawn: Sequence[int]) -> None:
        """What the model drew after the row's last token and after each guess of the last draft: [1 + guesses].

        Called before extend, whatever of it stands.
        """
