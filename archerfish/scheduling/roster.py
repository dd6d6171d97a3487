"""Who waits, who runs and on which row, and the blocks they hold. Keeps order; decides nothing."""

from archerfish.kvcache.tables import BlockTable, KVTables
from archerfish.request import RequestClass
from archerfish.scheduling.queue import WaitingQueue
from archerfish.scheduling.sequence import Sequence


class Roster:
    """Every sequence that is not ended is in exactly one place: waiting, or running on a row."""

    def __init__(self, num_rows: int, tables: KVTables) -> None:
        self.tables = tables
        self.waiting = WaitingQueue()
        self.running: dict[RequestClass, list[Sequence]] = {kind: [] for kind in RequestClass}
        self.num_preemptions = 0
        self._num_rows = num_rows
        self._free_rows = list(reversed(range(num_rows)))

    @property
    def num_running(self) -> int:
        return sum(len(sequences) for sequences in self.running.values())

    @property
    def has_free_row(self) -> bool:
        return bool(self._free_rows)

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

    def unseat(self, sequence: Sequence) -> None:
        """Give row and blocks back."""
        assert sequence.table is not None
        self.waiting.stop(sequence)
        self.tables.release(sequence.table)
        sequence.table = None
        self._free_rows.append(sequence.row)
        self.running[sequence.request.request_class].remove(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Back to the queue; what it computed is forgotten, except for what the prefix tree still holds."""
        self.unseat(sequence)
        sequence.computed = 0
        self.num_preemptions += 1
        self.waiting.add(sequence)

    def preempt_all(self) -> None:
        for running in self.running.values():
            for sequence in tuple(running):
                self.preempt(sequence)

    def check(self, *, in_flight: bool) -> None:
        """Every row, block and sequence is accounted for exactly once."""
        running = [sequence for sequences in self.running.values() for sequence in sequences]
        tables = [sequence.table for sequence in running if sequence.table is not None]
        assert len(tables) == len(running), "a running sequence has no blocks"
        self.tables.check(tables)
        rows = [sequence.row for sequence in running] + self._free_rows
        assert sorted(rows) == list(range(self._num_rows)), "a row is lost or taken twice"
        assert not set(self.waiting) & set(running), "a sequence runs and waits"
        self.waiting.check(running)
        for sequence, table in zip(running, tables, strict=True):
            assert 0 <= sequence.computed <= table.capacity, "more computed than there are slots for"
            waste = table.capacity - sequence.computed
            assert in_flight or waste < self.tables.block_size, "a sequence holds a block it does not use"
