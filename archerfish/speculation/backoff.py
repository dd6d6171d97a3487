"""Backoff of proposals: rows whose drafts fail are drafted for less and less often.

Proposing takes time even if nothing is accepted. Backing off too long loses the start of a copy; proposing in vain
slows every step down a little. Rows without recent success need a hint before anything is proposed, and are checked for
hints less and less often.
"""

from collections.abc import Iterable
from typing import NamedTuple

_MAX_BACKOFF = 16
"""Steps between two proposals for a row, at most."""
_PAUSE, _MAX_PAUSE = 8, 64
"""Steps of a pause of the whole method: each is twice as long as the one before, until something is accepted."""
_BRIEF_PAUSE = 4
"""Steps of a pause where more rows could make it pay."""
_MAX_HINT_INTERVAL = 16
"""Steps between two checks for a hint, at most: at first one, then twice as many each time."""
_INITIAL_BACKOFF = 4
"""Steps before the first proposal for a new sequence, once _NUM_FAILURES consecutive proposals have failed."""
_NUM_FAILURES = 32


class _RowBackoff(NamedTuple):
    """Backoff of a row without recent success."""

    until: int
    """The first step at which the row may be drafted for."""
    length: int = 0
    """Steps of its last backoff after a failed proposal."""
    num_checks: int = 0
    """Consecutive checks that found no hint."""


_NO_BACKOFF = _RowBackoff(0)


class ProposalBackoff:
    """When a method may propose, for which rows. A row begins without backoff."""

    def __init__(self) -> None:
        self._step = 0
        self._rows: dict[int, _RowBackoff] = {}
        self.idle_until = 0
        """The first step at which any row may be drafted for."""
        self._pause = _PAUSE
        self._num_failures = 0
        """Consecutive proposals, of any row, of which nothing was accepted."""

    def begin_step(self, step: int) -> None:
        """Set the number of the next step, which is larger than the last one."""
        self._step = step

    @property
    def is_idle(self) -> bool:
        """Whether no row may be drafted for in this step."""
        return self._step < self.idle_until

    def pause(self, *, is_brief: bool = False) -> None:
        """Propose nothing for a while, because nothing would pay: briefly, if it might with more rows."""
        self.idle_until = self._step + (_BRIEF_PAUSE if is_brief else self._pause)
        if not is_brief:
            self._pause = min(2 * self._pause, _MAX_PAUSE)

    def start(self, row: int) -> None:
        """Begin a new sequence on a row.

        It needs no hint if the last proposal succeeded. After many failures it begins with a backoff.
        """
        if self._num_failures >= _NUM_FAILURES:
            self._rows[row] = _RowBackoff(self._step + 1 + _INITIAL_BACKOFF, _INITIAL_BACKOFF)
        elif self._num_failures:
            self._rows[row] = _NO_BACKOFF
        else:
            self._rows.pop(row, None)
        self.idle_until = 0

    def may_propose(self, row: int) -> bool:
        """Whether the row's backoff is over."""
        return self._step >= self._rows.get(row, _NO_BACKOFF).until

    def needs_hint(self, row: int) -> bool:
        """Whether the row has had no recent success, so that it is drafted for only on a hint."""
        return row in self._rows

    def record_no_hint(self, row: int, num_rows: int) -> None:
        """Back off from a row without a hint. `num_rows` are candidates for checks: with more, each is checked less."""
        _, length, num_checks = self._rows[row]
        interval, longest = 1 << num_checks, min(num_rows, _MAX_HINT_INTERVAL)
        self._rows[row] = _RowBackoff(self._step + min(interval, longest), length, num_checks + (interval < longest))

    def record(self, row: int, *, succeeded: bool) -> None:
        """Record whether any draft token of a proposal for the row was accepted."""
        if succeeded:
            self._rows.pop(row, None)
            self._num_failures, self._pause = 0, _PAUSE
        else:
            self._num_failures += 1
            # A first failure only makes hints necessary.
            backoff = min(_MAX_BACKOFF, 2 * self._rows[row].length or 1) if row in self._rows else 0
            self._rows[row] = _RowBackoff(self._step + 1 + backoff, backoff)

    def update_idle(self, rows: Iterable[int]) -> None:
        """Idle until the first of these rows, all that could be drafted for, ends its backoff."""
        self.idle_until = min((self._rows.get(row, _NO_BACKOFF).until for row in rows), default=0)
