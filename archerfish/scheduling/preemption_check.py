"""Foresees whether the next plan would preempt a sequence: repeats what a plan builder does, and takes nothing."""

from collections.abc import Callable

from archerfish.request import RequestClass
from archerfish.scheduling.plan_builder import cached_prefix
from archerfish.scheduling.sequence import Sequence
from archerfish.scheduling.sequence_table import SequenceTable


def would_preempt(sequences: SequenceTable, budget: int, admits: Callable[[Sequence], bool]) -> bool:
    """Return whether a running sequence lacks a block, or a waiting one a row or blocks, unless another is preempted.

    Of the waiting sequences only the first is looked at. If the one after it lacks blocks, it is the first next time.
    """
    rest = _StepBudget(sequences, budget)
    return any(
        rest.runs_out(kind) or (rest.num_tokens > 0 and _admission_preempts(sequences, kind, admits))
        for kind in RequestClass
    )


class _StepBudget:
    """The next step's tokens and blocks, spent on running sequences."""

    def __init__(self, sequences: SequenceTable, num_tokens: int) -> None:
        tables = sequences.tables
        self.num_tokens = num_tokens
        self._sequences = sequences
        self._block_size = tables.block_size
        self._columns = tables.pool.num_available // len(tables.windows)
        # A sequence begins at most one block that it does not fill: with so many there is nothing to count.
        self._is_ample = self._columns > sequences.num_running + num_tokens // tables.block_size

    def runs_out(self, kind: RequestClass) -> bool:
        """Spend on the running sequences of a class; return whether one lacks a block and another is preempted."""
        if self._is_ample:
            return False
        for sequence in self._sequences.running[kind]:
            table, computed = sequence.table, sequence.computed
            assert table is not None
            if not self.num_tokens:
                return False
            if sequence.length == sequence.length_limit:
                continue
            capacity = table.capacity + self._columns * self._block_size - computed
            if capacity >= 1:
                length = min(sequence.todo, self.num_tokens, capacity)
                self._columns -= max(0, -(-(computed + length - table.capacity) // self._block_size))
                self.num_tokens -= length
            elif sequence is not self._sequences.last():
                return True
        return False


def _admission_preempts(sequences: SequenceTable, kind: RequestClass, admits: Callable[[Sequence], bool]) -> bool:
    """Return whether the first to be admitted needs the row or the blocks of a lower class, and would get enough."""
    lower = sequences.running_below(kind)
    sequence = next(sequences.waiting.turns(kind, admits), None) if lower else None
    if sequence is None:
        return False
    if sequence.parent is not None and not sequences.has_free_row:
        return True  # A fork may need less than what all of its tokens take: leave that to the plan builder.
    tables, match, length = sequences.tables, cached_prefix(sequences.tables, sequence), len(sequence.tokens)
    if tables.can_hold(match, length):
        return not sequences.has_free_row
    return tables.can_hold(match, length, [other.table for other in lower if other.table is not None])
