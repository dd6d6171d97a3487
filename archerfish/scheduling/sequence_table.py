"""Which sequences wait, which run and on which row, the blocks they hold, and the steps in flight that use them."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from archerfish.kvcache.tables import BlockCopy, BlockTable, KVTables
from archerfish.request import RequestClass
from archerfish.scheduling.plan import Chunk, Plan
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


class _InFlightStep(NamedTuple):
    number: int
    chunks: Mapping[Sequence, Chunk]
    """The step's chunks in the plan's order."""
    copies: list[BlockCopy]
    """The source blocks are retained until the step is done, whatever becomes of the sequences that hold them."""


class InFlightSteps:
    """Oldest first: executors run steps in the order of their plans, and results are committed in that order."""

    def __init__(self) -> None:
        self._steps: deque[_InFlightStep] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def has_draft_tokens(self) -> bool:
        """Whether a step may return more than one token for a draw."""
        return any(chunk.max_draft_tokens for step in self._steps for chunk in step.chunks.values())

    @property
    def copies(self) -> list[BlockCopy]:
        """The block copies of all steps in flight."""
        return [copy for step in self._steps for copy in step.copies]

    def push(self, number: int, chunks: Mapping[Sequence, Chunk], copies: list[BlockCopy]) -> None:
        """Add a step that was planned."""
        self._steps.append(_InFlightStep(number, chunks, copies))

    def pop(self, plan: Plan) -> Iterable[Sequence]:
        """Remove the oldest step, which is done, and return the sequences of its chunks in their order."""
        assert self._steps and self._steps[0].number == plan.step, "commit every plan once, in the order of the plans"
        return self._steps.popleft().chunks

    def clear(self) -> None:
        """Forget all steps."""
        self._steps.clear()

    def last_step(self, sequence: Sequence) -> int | None:
        """Return the last step that uses the sequence's row and blocks; None if none does."""
        return next((step.number for step in reversed(self._steps) if sequence in step.chunks), None)

    def check(self, running: Iterable[Sequence], retired: Mapping[Sequence, int]) -> None:
        """Check that sequences count on what steps in flight bring, and that none is freed before its last step."""
        numbers = [step.number for step in self._steps]
        assert numbers == sorted(set(numbers)), "steps are out of order"
        in_flight = {sequence for step in self._steps for sequence in step.chunks}
        assert in_flight <= {*running, *retired}, "a step uses a row that was released"
        for sequence in running:
            chunks = [step.chunks[sequence] for step in self._steps if sequence in step.chunks]
            num_drawn = sum(chunk.samples for chunk in chunks)
            assert sequence.length == len(sequence.tokens) + num_drawn, "a token is expected that no step draws"
            assert sequence.length <= sequence.length_limit, "a sequence is planned beyond its end"
            ends = [chunk.start + chunk.length for chunk in chunks]
            assert [chunk.start for chunk in chunks[1:]] == ends[:-1], "a chunk must continue where the last one ends"
            start, end = (chunks[0].start, ends[-1]) if chunks else (sequence.computed, sequence.computed)
            assert (sequence.stored, sequence.computed) == (start, end), "progress is not what is planned"
        for sequence, number in retired.items():
            assert sequence.ended and self.last_step(sequence) == number, "an ended sequence is freed at the wrong time"
