"""Whether the next step would throw somebody out. Looks at it as a draft would, and takes nothing."""

from collections.abc import Callable

from archerfish.request import RequestClass
from archerfish.scheduling.draft import cached_prefix
from archerfish.scheduling.roster import Roster
from archerfish.scheduling.sequence import Sequence


def must_preempt(roster: Roster, budget: int, admits: Callable[[Sequence], bool]) -> bool:
    """Whether a running sequence finds no block, or a waiting one no room, unless somebody makes way.

    Only the first to be admitted is looked at. Should the one after it find no room, it is the first the next time.
    """
    walk = _Walk(roster, budget)
    return any(walk.runs_out(kind) or (walk.budget > 0 and _displaces(roster, kind, admits)) for kind in RequestClass)


class _Walk:
    """The next step's tokens and blocks, spent on whoever runs."""

    def __init__(self, roster: Roster, budget: int) -> None:
        tables = roster.tables
        self.budget = budget
        self._roster = roster
        self._block_size = tables.block_size
        self._columns = tables.pool.num_available // len(tables.windows)
        # A sequence begins at most one block that it does not fill: with so many there is nothing to count.
        self._is_ample = self._columns > roster.num_running + budget // tables.block_size

    def runs_out(self, kind: RequestClass) -> bool:
        """Whether one of them finds no block, and is not itself the one to make way."""
        if self._is_ample:
            return False
        for sequence in self._roster.running[kind]:
            table, computed = sequence.table, sequence.computed
            assert table is not None
            if not self.budget:
                return False
            if sequence.length == sequence.length_limit:
                continue
            room = table.capacity + self._columns * self._block_size - computed
            if room >= 1:
                length = min(sequence.todo, self.budget, room)
                self._columns -= max(0, -(-(computed + length - table.capacity) // self._block_size))
                self.budget -= length
            elif sequence is not self._roster.last():
                return True
        return False


def _displaces(roster: Roster, kind: RequestClass, admits: Callable[[Sequence], bool]) -> bool:
    """Whether the first to be admitted needs the row or the blocks of a lower class, and would get enough."""
    lower = roster.running_below(kind)
    sequence = next(roster.waiting.turns(kind, admits), None) if lower else None
    if sequence is None:
        return False
    if sequence.parent is not None and not roster.has_free_row:
        return True  # A fork may need less than what all of its tokens take: leave that to the draft.
    tables, match, length = roster.tables, cached_prefix(roster.tables, sequence), len(sequence.tokens)
    if tables.can_hold(match, length):
        return not roster.has_free_row
    return tables.can_hold(match, length, [other.table for other in lower if other.table is not None])
