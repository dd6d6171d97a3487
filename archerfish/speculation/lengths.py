"""How many guesses of each row are worth checking: what they will probably save against what they will cost.

A guess is worth its chance to stand times what a token costs without guesses; it costs what one token more adds to the
step. Both are learned from the past, so what is chosen says nothing about the draw to come.
"""

from collections.abc import Sequence
from typing import NamedTuple

from archerfish.speculation.times import StepTimes

_FIRST_TRUST = 0.5
"""In guesses of which none was checked yet."""
_PRIOR = 3.0
"""Checks that trust in a row begins with, as if they had gone as those of all rows."""
_MEMORY = 0.9
"""Of a row's checks, each time new ones come."""
_LONG_MEMORY = 0.995
"""Of all rows' checks; and of a row's, with every step that passes it by: nobody is mistrusted for ever."""
_PATIENCE = 256
"""Steps after which it is tried again whether guesses pay: times that say no may have been an accident."""
_MARGIN = 1.1
"""What a guess must save of what it costs: estimates are not exact."""


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


class Step(NamedTuple):
    """What a step has without guesses."""

    num_tokens: int
    num_drawn: int
    """Sequences that it draws a token for."""


class Lengths:
    """Chooses, and learns from what became of it."""

    def __init__(self) -> None:
        self.times = StepTimes()
        self._all = _Record()
        self._rows: dict[int, _Record] = {}
        self._num_refused = 0
        """Steps in which no guess could have paid, since one was last tried all the same."""

    def start(self, row: int) -> None:
        """Another sequence takes up the row."""
        self._rows.pop(row, None)

    def checked(self, row: int, num_guesses: int, num_stood: int) -> None:
        """So many of a row's guesses stood, one after the other."""
        num_checked = min(num_guesses, num_stood + 1)
        record = self._rows.setdefault(row, _Record())
        for one, memory in ((record, _MEMORY), (self._all, _LONG_MEMORY)):
            one.fade(memory)
            one.checked += num_checked
            one.stood += num_stood

    def trust(self, row: int) -> float:
        """The chance that a guess for the row stands, if the one before it did."""
        general = self._all.trust(_FIRST_TRUST)
        record = self._rows.get(row)
        return general if record is None else record.trust(general)

    def may_pay(self, num_drawn: int) -> bool:
        """Whether a guess could pay in a step that draws for so many sequences, even one that surely stands."""
        if not self.times or not num_drawn:
            return True
        surest = max((record.trust(_FIRST_TRUST) for record in self._rows.values()), default=1.0)
        worth = surest * self.times.of(num_drawn) / num_drawn
        if worth > _MARGIN * (self.times.of(num_drawn + 1) - self.times.of(num_drawn)):
            return True
        self.pass_by(list(self._rows))
        self._num_refused += 1
        if self._num_refused >= _PATIENCE:
            self._num_refused = 0
            self.times.forget_beyond(num_drawn)
        return False

    def choose(self, step: Step, rows: Sequence[int], most: Sequence[int]) -> list[int]:
        """How many of each row's guesses to check, given how many there are."""
        if not self.times or not step.num_drawn:
            return [min(1, count) for count in most]
        # Likeliest first; a row's own guesses are in order by themselves, since chances only fall along a draft.
        chances = sorted(
            (
                (trust**depth, -depth, place)
                for place, (row, count) in enumerate(zip(rows, most, strict=True))
                for trust in (self.trust(row),)
                for depth in range(1, count + 1)
            ),
            reverse=True,
        )
        worth = self.times.of(step.num_drawn) / step.num_drawn
        before = self.times.of(step.num_tokens)
        best, chosen, expected = 0.0, 0, 0.0
        for count, (chance, *_) in enumerate(chances, 1):
            expected += chance
            saved = expected * worth - _MARGIN * (self.times.of(step.num_tokens + count) - before)
            if saved > best:
                best, chosen = saved, count
        lengths = [0] * len(rows)
        for _, _, place in chances[:chosen]:
            lengths[place] += 1
        return lengths

    def pass_by(self, rows: Sequence[int]) -> None:
        """A step went by in which nothing of these rows was checked."""
        self._all.fade(_LONG_MEMORY)
        for row in rows:
            record = self._rows.get(row)
            if record is not None:
                record.fade(_LONG_MEMORY)
