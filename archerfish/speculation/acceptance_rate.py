"""The acceptance rate of a method's draft tokens, learned per row and overall from those that were verified."""

from collections.abc import Iterable

INITIAL_ACCEPTANCE_RATE = 0.5
"""Assumed before any draft token was verified."""
_PRIOR_WEIGHT = 3.0
"""Verifications that a row's estimate begins with, as if they had gone as those of all rows."""
_ROW_DECAY = 0.9
"""Decay of a row's statistics with each of its verifications."""
_SLOW_DECAY = 0.995
"""Decay of the overall statistics with each verification, and of any per step without one: bad estimates expire."""


class _Counts:
    """Decayed counts. A draft token is verified if all before it were accepted."""

    __slots__ = ("num_accepted", "num_verified")

    def __init__(self) -> None:
        self.num_verified = 0.0
        self.num_accepted = 0.0

    def decay(self, factor: float) -> None:
        self.num_verified *= factor
        self.num_accepted *= factor

    def rate(self, prior: float) -> float:
        return (self.num_accepted + _PRIOR_WEIGHT * prior) / (self.num_verified + _PRIOR_WEIGHT)


class AcceptanceRate:
    """The chance that a draft token of one method is accepted, given that the one before it was."""

    def __init__(self, initial: float = INITIAL_ACCEPTANCE_RATE) -> None:
        """`initial` is the estimate before anything was verified, to which it returns while nothing is."""
        self._initial = initial
        self._overall = _Counts()
        self._rows: dict[int, _Counts] = {}

    def start(self, row: int) -> None:
        """Forget a row: another sequence has taken it."""
        self._rows.pop(row, None)

    def record(self, row: int, num_draft_tokens: int, num_accepted: int) -> None:
        """Record that so many draft tokens of a row's chain were accepted, one after the other."""
        num_verified = min(num_draft_tokens, num_accepted + 1)
        own = self._rows.setdefault(row, _Counts())
        for counts, factor in ((own, _ROW_DECAY), (self._overall, _SLOW_DECAY)):
            counts.decay(factor)
            counts.num_verified += num_verified
            counts.num_accepted += num_accepted

    def decay(self, rows: Iterable[int]) -> None:
        """Record that a step verified nothing of these rows."""
        self._overall.decay(_SLOW_DECAY)
        for row in rows:
            counts = self._rows.get(row)
            if counts is not None:
                counts.decay(_SLOW_DECAY)

    def of(self, row: int) -> float:
        """Return the estimate for a row."""
        overall = self._overall.rate(self._initial)
        counts = self._rows.get(row)
        return overall if counts is None else counts.rate(overall)

    @property
    def highest(self) -> float:
        """The highest estimate of any row."""
        overall = self._overall.rate(self._initial)
        return max((counts.rate(overall) for counts in self._rows.values()), default=overall)

    @property
    def rows(self) -> list[int]:
        """The rows of which draft tokens were verified."""
        return list(self._rows)
