"""How often a way of guessing is used in a sequence once it has begun: what it takes to begin is paid back by that."""

FIRST_USES = 32.0
"""Before anything is known, and what is expected again in the end if nobody begins."""
_WEIGHT = 0.2
"""Of a sequence that has ended against those before it."""
_RETURN = 0.02
"""How far expectations come back, with each sequence that did not begin."""


class Uses:
    def __init__(self) -> None:
        self._mean = FIRST_USES
        self._rows: dict[int, int] = {}

    def start(self, row: int) -> None:
        """Another sequence takes up the row: the one before has ended."""
        ended = self._rows.pop(row, None)
        if ended is None:
            self._mean += _RETURN * (FIRST_USES - self._mean)
        else:
            self._mean += _WEIGHT * (ended - self._mean)

    def used(self, row: int) -> None:
        self._rows[row] = self._rows.get(row, 0) + 1

    def expected(self, row: int) -> float:
        """Uses still to come, the next one included."""
        return max(1.0, self._mean - self._rows.get(row, 0))
