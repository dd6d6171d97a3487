"""What guessing has cost so far, against what it brought: how much more may be tried before something is gained.

Whoever guesses must ask to learn whether it pays, and asking takes time. So a small share of all time may be spent on
it; what guesses save may be spent again, up to a little, and what is overdrawn has to be waited for.
"""

import math

_ALLOWED = 0.005
"""The share of all time that may be spent in vain."""
_FIRST, _MOST = 16.0, 64.0
"""Steps: time that is there to begin with, and that can be saved up."""
_MOST_AT_ONCE = 5.0
"""Steps that asking once can cost: what takes longer took so long by accident, and the work may change while all wait
to have it back."""
_MEMORY = 0.99
"""Of what tokens cost, with every step."""
_PRIOR = 4.0
"""Steps, as if they had been made without guesses."""


class Account:
    """In steps without guesses, whatever they take."""

    def __init__(self) -> None:
        self._balance = _FIRST
        self._made = self._taken = _PRIOR
        """Steps without guesses that the last ones were worth, and that they took."""

    @property
    def price(self) -> float:
        """What tokens cost lately, as a part of what they cost without guesses; never more."""
        return min(1.0, self._taken / self._made)

    def passed(self, num_steps: int) -> None:
        """So many steps went by."""
        self._add(_ALLOWED * num_steps)
        kept = _MEMORY**num_steps
        self._made = _PRIOR + kept * (self._made - _PRIOR) + num_steps
        self._taken = _PRIOR + kept * (self._taken - _PRIOR) + num_steps

    def saved(self, steps: float) -> None:
        """By guesses."""
        self._add(steps)
        self._made += steps

    def spent(self, steps: float) -> None:
        """Somebody was asked, or it was seen whether somebody should be."""
        cost = min(steps, _MOST_AT_ONCE)
        self._add(-cost)
        self._taken += cost

    def _add(self, steps: float) -> None:
        self._balance = min(_MOST, self._balance + steps)

    def wait(self) -> int:
        """Steps until somebody may be asked again."""
        return math.ceil(max(0.0, -self._balance) / _ALLOWED)
