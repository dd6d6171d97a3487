"""A time budget for speculation: what it costs is debited, what it saves is credited.

Whether speculation pays can only be learned by trying, and trying takes time. So a small share of all time may be spent
in vain; what drafts save may be spent again, up to a limit; and what is overdrawn has to be waited for.
"""

import math

_ALLOWED_SHARE = 0.005
"""Share of all time that may be spent in vain."""
_INITIAL_STEPS, _MAX_STEPS = 16.0, 64.0
"""Budget at the start, and the most that can be saved up, in steps."""
_MAX_DEBIT = 5.0
"""Steps that one attempt can cost: what takes longer did so by accident, and should not block later attempts."""
_DECAY = 0.99
"""Decay per step of what the price of tokens is computed from."""
_PRIOR_STEPS = 4.0
"""Steps without speculation that the price of tokens begins with."""


class ExplorationBudget:
    """A balance in steps without speculation, whatever they take."""

    def __init__(self) -> None:
        self._balance = _INITIAL_STEPS
        self._steps_worth = self._steps_taken = _PRIOR_STEPS
        """Steps without speculation that the last ones were worth, and that they took."""

    @property
    def token_price(self) -> float:
        """Recent cost of tokens as a share of their cost without speculation; at most 1."""
        return min(1.0, self._steps_taken / self._steps_worth)

    def pass_steps(self, num_steps: int) -> None:
        """Credit the share that is allowed of so many steps."""
        self._add(_ALLOWED_SHARE * num_steps)
        factor = _DECAY**num_steps
        self._steps_worth = _PRIOR_STEPS + factor * (self._steps_worth - _PRIOR_STEPS) + num_steps
        self._steps_taken = _PRIOR_STEPS + factor * (self._steps_taken - _PRIOR_STEPS) + num_steps

    def credit(self, steps: float) -> None:
        """Add steps that drafts saved."""
        self._add(steps)
        self._steps_worth += steps

    def debit(self, steps: float) -> None:
        """Subtract what an attempt cost."""
        cost = min(steps, _MAX_DEBIT)
        self._add(-cost)
        self._steps_taken += cost

    def _add(self, steps: float) -> None:
        self._balance = min(_MAX_STEPS, self._balance + steps)

    def steps_to_wait(self) -> int:
        """Return the steps until the balance is no longer overdrawn."""
        return math.ceil(max(0.0, -self._balance) / _ALLOWED_SHARE)
