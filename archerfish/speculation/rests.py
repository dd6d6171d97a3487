"""Who is asked for guesses: rows for which asking was in vain rest for some steps, the more the more often it was.

Asking takes time, even where nothing comes of it. What is lost by resting is the start of a copy; what is lost by
asking is a little of every step.
"""

from collections.abc import Iterable

_LONGEST = 16
"""Steps."""


class Rests:
    """Counts steps; a row is awake until it was asked in vain."""

    def __init__(self) -> None:
        self._step = 0
        self._rests: dict[int, tuple[int, int]] = {}
        """Of each row that was asked in vain: the step it wakes at, and how long it rested last."""
        self._quiet_until = 0
        """Nobody need be asked before."""

    def begin(self) -> bool:
        """A step is planned: whether anybody is awake."""
        self._step += 1
        return self._step >= self._quiet_until

    def start(self, row: int) -> None:
        """Another sequence takes up the row."""
        self._rests.pop(row, None)
        self._quiet_until = 0

    def is_awake(self, row: int) -> bool:
        until, _ = self._rests.get(row, (0, 0))
        return self._step >= until

    def went(self, row: int, *, gained: bool) -> None:
        """The row was asked, and it brought a token or did not."""
        if gained:
            self._rests.pop(row, None)
        else:
            _, last = self._rests.get(row, (0, 0))
            rest = min(_LONGEST, 2 * last or 1)
            self._rests[row] = (self._step + 1 + rest, rest)

    def settle(self, rows: Iterable[int]) -> None:
        """These are all that could be asked: if all of them rest, so does everybody."""
        self._quiet_until = min((self._rests.get(row, (0, 0))[0] for row in rows), default=0)
