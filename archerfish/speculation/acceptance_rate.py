"""How likely guesses are to stand, learned from those that were checked. Knows rows, and nothing of what is guessed."""

from collections.abc import Iterable

FIRST_TRUST = 0.5
"""In guesses of which none was checked yet."""
_PRIOR = 3.0
"""Checks that trust in a row begins with, as if they had gone as those of all rows."""
_MEMORY = 0.9
"""Of a row's checks, each time new ones come."""
_LONG_MEMORY = 0.995
"""Of all rows' checks; and of a row's, with every step that passes it by: nobody is mistrusted for ever."""


class _Record:
    """How guesses went: checks, and those that stood. A guess is checked if all before it stood."""

    __slots__ = ("checked", "stood")

    def __init__(self) -> None:
        self.checked = 0.0
        self.stood = 0.0

    def fade(self, share: float) -> None:
        self.checked *= share
        self.stood *= share

    def trust(self, prior: float) -> float:
        return (self.stood + _PRIOR * prior) / (self.checked + _PRIOR)


class Trust:
    """In one way of guessing."""

    def __init__(self, first: float = FIRST_TRUST) -> None:
        """`first` is what it begins with, before anything was checked, and what it comes back to if nothing is."""
        self._first = first
        self._all = _Record()
        self._rows: dict[int, _Record] = {}

    def start(self, row: int) -> None:
        """Another sequence takes up the row."""
        self._rows.pop(row, None)

    def checked(self, row: int, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """So many of a row's guesses stood, one after the other."""
        num_checked = min(num_draft_tokens, num_accepted_tokens + 1)
        record = self._rows.setdefault(row, _Record())
        for one, memory in ((record, _MEMORY), (self._all, _LONG_MEMORY)):
            one.fade(memory)
            one.checked += num_checked
            one.stood += num_accepted_tokens

    def pass_by(self, rows: Iterable[int]) -> None:
        """A step went by in which nothing of these rows was checked."""
        self._all.fade(_LONG_MEMORY)
        for row in rows:
            record = self._rows.get(row)
            if record is not None:
                record.fade(_LONG_MEMORY)

    def of(self, row: int) -> float:
        """The chance that a guess for the row stands, if the one before it did."""
        general = self._all.trust(self._first)
        record = self._rows.get(row)
        return general if record is None else record.trust(general)

    @property
    def surest(self) -> float:
        """The largest of any row."""
        general = self._all.trust(self._first)
        return max((record.trust(general) for record in self._rows.values()), default=general)

    @property
    def rows(self) -> list[int]:
        """Those whose guesses were checked."""
        return list(self._rows)
