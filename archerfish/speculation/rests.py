"""Who is asked for guesses: rows for which asking was in vain rest for some steps, the more the more often it was.

Asking takes time, even where nothing comes of it. What is lost by resting is the start of a copy; what is lost by
asking is a little of every step.
"""

from collections.abc import Iterable

_LONGEST = 16
"""Steps."""
_PAUSE = 8
"""Steps."""
_LATE = 4
"""Steps that a new row rests, after this many in vain for all rows:"""
_LONG_IN_VAIN = 32


class Rests:
    """Counts steps; a row is awake until it was asked in vain."""

    def __init__(self) -> None:
        self._step = 0
        self._rests: dict[int, tuple[int, int]] = {}
        """Of each row that was asked in vain: the step it wakes at, and how long it rested last."""
        self._quiet_until = 0
        """Nobody need be asked before."""
        self._num_in_vain = 0
        """Times that somebody was asked since it last brought a token, whoever it was."""

    def begin(self) -> bool:
        """A step is planned: whether anybody is awake."""
        self._step += 1
        return self._step >= self._quiet_until

    def pause(self) -> None:
        """Nobody need be asked for a while: nothing would pay."""
        self._quiet_until = self._step + _PAUSE

    def start(self, row: int) -> None:
        """Another sequence takes up the row. Where nobody has gained for long, it need not begin at once."""
        self._rests.pop(row, None)
        if self._num_in_vain >= _LONG_IN_VAIN:
            self._rests[row] = (self._step + 1 + _LATE, _LATE)
        self._quiet_until = 0

    def is_awake(self, row: int) -> bool:
        until, _ = self._rests.get(row, (0, 0))
        return self._step >= until

    def went(self, row: int, *, gained: bool) -> None:
        """The row was asked, and it brought a token or did not."""
        if gained:
            self._rests.pop(row, None)
            self._num_in_vain = 0
        else:
            self._num_in_vain += 1
            _, last = self._rests.get(row, (0, 0))
            rest = min(_LONGEST, 2 * last or 1)
            self._rests[row] = (self._step + 1 + rest, rest)

    def settle(self, rows: Iterable[int]) -> None:
        """These are all that could be asked: if all of them rest, so does everybody."""
        self._quiet_until = min((self._rests.get(row, (0, 0))[0] for row in rows), default=0)
