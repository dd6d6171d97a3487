"""How often a method is used in a sequence once it has begun, which must pay back what it takes to begin."""

INITIAL_DRAFTS = 32.0
"""Assumed before anything is known, and again in the end if no sequence begins."""
_NEW_WEIGHT = 0.2
"""Weight of a sequence that has ended against those before it."""
_RETURN_WEIGHT = 0.02
"""How far the expectation returns with each sequence that did not use the method."""


class ExpectedDrafts:
    """Drafts per sequence of one method."""

    def __init__(self) -> None:
        self._mean = INITIAL_DRAFTS
        self._rows: dict[int, int] = {}

    def start(self, row: int) -> None:
        """Begin another sequence on the row: the one before has ended."""
        num_drafts = self._rows.pop(row, None)
        if num_drafts is None:
            self._mean += _RETURN_WEIGHT * (INITIAL_DRAFTS - self._mean)
        else:
            self._mean += _NEW_WEIGHT * (num_drafts - self._mean)

    def record(self, row: int) -> None:
        """Record a draft for the row."""
        self._rows[row] = self._rows.get(row, 0) + 1

    def expected(self, row: int) -> float:
        """Return the drafts still to come for the row, the next one included."""
        return max(1.0, self._mean - self._rows.get(row, 0))
