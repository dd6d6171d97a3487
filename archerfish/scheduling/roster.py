"""Who waits, who runs and on which row, and the blocks they hold. Keeps order; decides nothing."""

from collections.abc import Iterable

from archerfish.kvcache.tables import BlockCopy, BlockTable, KVTables
from archerfish.request import RequestClass
from archerfish.scheduling.queue import WaitingQueue
from archerfish.scheduling.sequence import Sequence


class Roster:
    """Every sequence is in exactly one place: waiting, running on a row, or, having ended, about to leave its row."""

    def __init__(self, num_rows: int, tables: KVTables) -> None:
        self.tables = tables
        self.waiting = WaitingQueue()
        self.running: dict[RequestClass, list[Sequence]] = {kind: [] for kind in RequestClass}
        self.leaving: dict[Sequence, int] = {}
        """Ended, but steps in flight still use row and blocks; the last such step of each."""
        self.drawn_on_host: set[Sequence] = set()
        """Those running whose every draw waits for the last one to be known."""
        self.num_preemptions = 0
        self._num_rows = num_rows
        self._free_rows = list(reversed(range(num_rows)))

    @property
    def num_running(self) -> int:
        """Sequences that have a row, whether they go on or are about to leave it."""
        return sum(len(sequences) for sequences in self.running.values()) + len(self.leaving)

    @property
    def has_free_row(self) -> bool:
        return bool(self._free_rows)

    def num_rows_for(self, kind: RequestClass) -> int:
        """Rows that are free, or would be if lower classes made way."""
        return len(self._free_rows) + sum(len(running) for other, running in self.running.items() if other > kind)

    def last(self) -> Sequence:
        """The running sequence that must make way first: lowest class, lowest priority, youngest."""
        sequences = next(running for running in reversed(self.running.values()) if running)
        return max(sequences, key=lambda sequence: sequence.order)

    def running_below(self, kind: RequestClass) -> list[Sequence]:
        """Running sequences of lower classes."""
        return [sequence for other, running in self.running.items() if other > kind for sequence in running]

    def seat(self, sequence: Sequence, table: BlockTable) -> None:
        """From the queue to a row."""
        self.waiting.start(sequence)
        sequence.table = table
        sequence.row = self._free_rows.pop()
        self.running[sequence.request.request_class].append(sequence)
        if sequence.draws_on_host:
            self.drawn_on_host.add(sequence)

    def unseat(self, sequence: Sequence) -> None:
        """Give row and blocks back."""
        self._remove(sequence)
        self._give_back(sequence)

    def leave(self, sequence: Sequence, last_step: int) -> None:
        """It has ended; row and blocks are given back when its last step in flight is done."""
        self._remove(sequence)
        self.leaving[sequence] = last_step

    def see_off(self, step: int) -> None:
        """This step is done: whoever only waited for that gives row and blocks back."""
        for sequence in [one for one, last in self.leaving.items() if last == step]:
            self._give_back(sequence)
            del self.leaving[sequence]

    def see_off_all(self) -> None:
        """No step in flight counts any more."""
        for sequence in self.leaving:
            self._give_back(sequence)
        self.leaving.clear()

    def _remove(self, sequence: Sequence) -> None:
        self.running[sequence.request.request_class].remove(sequence)
        self.drawn_on_host.discard(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        self.waiting.stop(sequence)
        self.tables.release(sequence.table)
        sequence.table = None
        self._free_rows.append(sequence.row)

    def preempt(self, sequence: Sequence) -> None:
        """Back to the queue; what it computed is forgotten, except for what the prefix tree still holds."""
        self.unseat(sequence)
        sequence.length, sequence.computed, sequence.stored = len(sequence.tokens), 0, 0
        self.num_preemptions += 1
        self.waiting.add(sequence)

    def preempt_all(self) -> None:
        for running in self.running.values():
            for sequence in tuple(running):
                self.preempt(sequence)

    def check(self, max_draft_tokens: int, copies: Iterable[BlockCopy]) -> None:
        """Every row, block and sequence is accounted for exactly once. Room for guesses that fell is used later."""
        running = [sequence for sequences in self.running.values() for sequence in sequences]
        seated, waiting = [*running, *self.leaving], list(self.waiting)
        tables = [sequence.table for sequence in seated if sequence.table is not None]
        assert len(tables) == len(seated), "a sequence on a row has no blocks"
        self.tables.check(tables, copies)
        rows = [sequence.row for sequence in seated] + self._free_rows
        assert sorted(rows) == list(range(self._num_rows)), "a row is lost or taken twice"
        assert len({*seated, *waiting}) == len(seated) + len(waiting), "a sequence is in two places"
        assert not any(sequence.ended for sequence in (*running, *waiting)), "an ended sequence goes on"
        assert self.drawn_on_host == {sequence for sequence in running if sequence.draws_on_host}
        self.waiting.check(seated)
        for sequence in waiting:
            assert sequence.computed == sequence.stored == 0, "a sequence waits with what it has no blocks for"
            assert sequence.length == len(sequence.tokens), "a sequence waits for a draw"
        for sequence, table in zip(seated, tables, strict=True):
            assert 0 <= sequence.computed <= table.capacity, "more computed than there are slots for"
            waste = table.capacity - sequence.computed
            assert waste < self.tables.block_size + max_draft_tokens, "a sequence holds a block it does not use"
