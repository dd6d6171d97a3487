"""Who is asked for guesses: rows for which asking was in vain rest for some steps, the more the more often it was.

Asking takes time, even where nothing comes of it. What is lost by resting is the start of a copy; what is lost by
asking is a little of every step. Rows of which nothing has come lately are cold: they are asked on a hint alone, and if
there is none they doze.
"""

from collections.abc import Iterable
from typing import NamedTuple

_LONGEST = 16
"""Steps."""
_PAUSE, _LONGEST_PAUSE = 8, 64
"""Steps: each pause is twice as long as the one before, until something is gained."""
_BRIEF_PAUSE = 4
"""Steps: where more rows to be asked might make it pay."""
_LONGEST_DOZE = 16
"""Steps from one look for a hint to the next: at first one, then twice as many each time."""
_LATE = 4
"""Steps that a new row rests, after this many in vain for all rows:"""
_LONG_IN_VAIN = 32


class _Rest(NamedTuple):
    """Of a row that is cold."""

    until: int
    """The step it wakes at."""
    length: int = 0
    """Steps that it rested last because it was asked in vain."""
    num_looks: int = 0
    """Times in a row that there was no hint."""


_COLD = _Rest(0)
"""And awake."""


class Rests:
    """A row is awake until it was asked in vain."""

    def __init__(self) -> None:
        self._step = 0
        self._rests: dict[int, _Rest] = {}
        self.quiet_until = 0
        """The step before which nobody need be asked."""
        self._pause = _PAUSE
        self._num_in_vain = 0
        """Times that somebody was asked since it last brought a token, whoever it was."""

    def begin(self, step: int) -> bool:
        """A step is planned, a later one than the last: whether anybody is awake."""
        self._step = step
        return step >= self.quiet_until

    def pause(self, *, is_brief: bool = False) -> None:
        """Nobody need be asked for a while: nothing would pay. Briefly, if it might with more rows to be asked."""
        self.quiet_until = self._step + (_BRIEF_PAUSE if is_brief else self._pause)
        if not is_brief:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def start(self, row: int) -> None:
        """Another sequence takes up the row.

        If whoever was asked last gained, it needs no hint; where nobody has gained for long, it need not begin at once.
        """
        if self._num_in_vain >= _LONG_IN_VAIN:
            self._rests[row] = _Rest(self._step + 1 + _LATE, _LATE)
        elif self._num_in_vain:
            self._rests[row] = _COLD
        else:
            self._rests.pop(row, None)
        self.quiet_until = 0

    def is_awake(self, row: int) -> bool:
        return self._step >= self._rests.get(row, _COLD).until

    def is_cold(self, row: int) -> bool:
        return row in self._rests

    def doze(self, row: int, num_rows: int) -> None:
        """There was no hint for a cold row, one of so many that may be looked at.

        The more there are, the seldomer: looking takes as long for each of them.
        """
        _, length, num_looks = self._rests[row]
        doze, longest = 1 << num_looks, min(num_rows, _LONGEST_DOZE)
        self._rests[row] = _Rest(self._step + min(doze, longest), length, num_looks + (doze < longest))

    def went(self, row: int, *, gained: bool) -> None:
        """The row was asked, and it brought a token or did not."""
        if gained:
            self._rests.pop(row, None)
            self._num_in_vain, self._pause = 0, _PAUSE
        else:
            self._num_in_vain += 1
            # Whoever was not cold yet is cold now, and needs no rest to be asked on a hint alone.
            rest = min(_LONGEST, 2 * self._rests[row].length or 1) if row in self._rests else 0
            self._rests[row] = _Rest(self._step + 1 + rest, rest)

    def settle(self, rows: Iterable[int]) -> None:
        """These are all that could be asked: if all of them rest, so does everybody."""
        self.quiet_until = min((self._rests.get(row, _COLD).until for row in rows), default=0)
