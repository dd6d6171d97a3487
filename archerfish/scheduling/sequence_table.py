"""Which sequences wait, which run and on which row, and the blocks they hold."""

from collections.abc import Iterable

from archerfish.kvcache.tables import BlockCopy, BlockTable, KVTables
from archerfish.request import RequestClass
from archerfish.scheduling.sequence import Sequence
from archerfish.scheduling.waiting_queue import WaitingQueue


class SequenceTable:
    """Every sequence is in exactly one state: waiting, running on a row, or retired (ended, its row still in use)."""

    def __init__(self, num_rows: int, tables: KVTables) -> None:
        self.tables = tables
        self.waiting = WaitingQueue()
        self.running: dict[RequestClass, list[Sequence]] = {kind: [] for kind in RequestClass}
        self.retired: dict[Sequence, int] = {}
        """Ended sequences whose row and blocks steps in flight still use, and the last such step of each."""
        self.drawn_on_host: set[Sequence] = set()
        """Running sequences whose every draw waits until the last one is known."""
        self.num_preemptions = 0
        self._num_rows = num_rows
        self._free_rows = list(reversed(range(num_rows)))

    @property
    def num_running(self) -> int:
        """Number of sequences that have a row, including retired ones."""
        return sum(len(sequences) for sequences in self.running.values()) + len(self.retired)

    @property
    def has_free_row(self) -> bool:
        """Whether a row is free."""
        return bool(self._free_rows)

    def num_rows_for(self, kind: RequestClass) -> int:
        """Return how many rows are free, or would be if lower classes were preempted."""
        return len(self._free_rows) + sum(len(running) for other, running in self.running.items() if other > kind)

    def last(self) -> Sequence:
        """Return the running sequence that is preempted first: lowest class, lowest priority, youngest."""
        sequences = next(running for running in reversed(self.running.values()) if running)
        return max(sequences, key=lambda sequence: sequence.order)

    def running_below(self, kind: RequestClass) -> list[Sequence]:
        """Return the running sequences of lower classes."""
        return [sequence for other, running in self.running.items() if other > kind for sequence in running]

    def admit(self, sequence: Sequence, table: BlockTable) -> None:
        """Move a sequence from the queue to a row."""
        self.waiting.start(sequence)
        sequence.table = table
        sequence.row = self._free_rows.pop()
        self.running[sequence.request.request_class].append(sequence)
        if sequence.draws_on_host:
            self.drawn_on_host.add(sequence)

    def release(self, sequence: Sequence) -> None:
        """Free the row and blocks of a running sequence."""
        self._remove(sequence)
        self._free(sequence)

    def retire(self, sequence: Sequence, last_step: int) -> None:
        """Take out an ended sequence; its row and blocks are freed when its last step in flight is done."""
        self._remove(sequence)
        self.retired[sequence] = last_step

    def free_retired(self, step: int) -> None:
        """Free the rows and blocks of retired sequences whose last step this was."""
        for sequence in [sequence for sequence, last in self.retired.items() if last == step]:
            self._free(sequence)
            del self.retired[sequence]

    def free_all_retired(self) -> None:
        """Free the rows and blocks of all retired sequences: the steps in flight were dropped."""
        for sequence in self.retired:
            self._free(sequence)
        self.retired.clear()

    def _remove(self, sequence: Sequence) -> None:
        self.running[sequence.request.request_class].remove(sequence)
        self.drawn_on_host.discard(sequence)

    def _free(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        self.waiting.stop(sequence)
        self.tables.release(sequence.table)
        sequence.table = None
        self._free_rows.append(sequence.row)

    def preempt(self, sequence: Sequence) -> None:
        """Move a running sequence back to the queue: only what the prefix cache still holds need not be recomputed."""
        self.release(sequence)
        sequence.length, sequence.computed, sequence.stored = len(sequence.tokens), 0, 0
        self.num_preemptions += 1
        self.waiting.add(sequence)

    def preempt_all(self) -> None:
        """Move all running sequences back to the queue."""
        for running in self.running.values():
            for sequence in tuple(running):
                self.preempt(sequence)

    def check(self, max_draft_tokens: int, copies: Iterable[BlockCopy]) -> None:
        """Check that every row, block and sequence is accounted for exactly once.

        A sequence may hold blocks for `max_draft_tokens` more than it has computed: rejected ones leave them for later.
        """
        running = [sequence for sequences in self.running.values() for sequence in sequences]
        on_rows, waiting = [*running, *self.retired], list(self.waiting)
        tables = [sequence.table for sequence in on_rows if sequence.table is not None]
        assert len(tables) == len(on_rows), "a sequence on a row has no blocks"
        self.tables.check(tables, copies)
        rows = [sequence.row for sequence in on_rows] + self._free_rows
        assert sorted(rows) == list(range(self._num_rows)), "a row is lost or taken twice"
        assert len({*on_rows, *waiting}) == len(on_rows) + len(waiting), "a sequence is in two states"
        assert not any(sequence.ended for sequence in (*running, *waiting)), "an ended sequence goes on"
        assert self.drawn_on_host == {sequence for sequence in running if sequence.draws_on_host}
        self.waiting.check(on_rows)
        for sequence in waiting:
            assert sequence.computed == sequence.stored == 0, "a waiting sequence has progress but no blocks"
            assert sequence.length == len(sequence.tokens), "a sequence waits for a draw"
        for sequence, table in zip(on_rows, tables, strict=True):
            assert 0 <= sequence.computed <= table.capacity, "more computed than there are slots for"
            waste = table.capacity - sequence.computed
            assert waste < self.tables.block_size + max_draft_tokens, "a sequence holds a block it does not use"
