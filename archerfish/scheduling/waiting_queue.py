"""Sequences that wait, in the order in which they are to be admitted."""

from collections.abc import Callable, Iterable, Iterator

from archerfish.request import RequestClass
from archerfish.scheduling.fair_queue import FairQueue
from archerfish.scheduling.sequence import Sequence


class WaitingQueue:
    """A fair queue for each class and priority, in which tenants take turns.

    Starts and stops of running sequences are reported here, too: whose turn it is depends on what each tenant receives.
    """

    def __init__(self) -> None:
        self._queues: dict[RequestClass, dict[int, FairQueue]] = {kind: {} for kind in RequestClass}
        """Queues by priority, in its order."""
        self._num_waiting = 0
        self._num_tokens = 0

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all waiting sequences. None has been computed; some may be found in the cache."""
        return self._num_tokens

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        for queues in self._queues.values():
            for queue in queues.values():
                yield from queue

    def turns(self, kind: RequestClass, admits: Callable[[Sequence], bool] = lambda _: True) -> Iterator[Sequence]:
        """Yield the sequences that may be admitted, in order. Take the next only when this one has been started."""
        for queue in self._queues[kind].values():
            yield from queue.turns(admits)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence by its order, whether it is new or was preempted."""
        self._queue_of(sequence).add(sequence)
        self._count(sequence, 1)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that ends without running."""
        self._queue_of(sequence).remove(sequence)
        self._count(sequence, -1)
        self._drop_empty_queue(sequence)

    def start(self, sequence: Sequence) -> None:
        """Take out a sequence that gets a row, with its cached tokens counted as computed."""
        self._queue_of(sequence).start(sequence)
        self._count(sequence, -1)

    def stop(self, sequence: Sequence) -> None:
        """Record that a sequence leaves its row; it still has its blocks."""
        self._queue_of(sequence).stop(sequence)
        self._drop_empty_queue(sequence)

    def check(self, running: Iterable[Sequence]) -> None:
        """Check that the queues know what runs, and that empty ones were dropped."""
        by_queue: dict[tuple[RequestClass, int], set[Sequence]] = {}
        for sequence in running:
            request = sequence.request
            by_queue.setdefault((request.request_class, request.priority), set()).add(sequence)
        for kind, queues in self._queues.items():
            assert list(queues) == sorted(queues), "priorities are out of order"
            for priority, queue in queues.items():
                queue.check(by_queue.pop((kind, priority), set()))
                assert queue.num_sequences, "an empty queue was not dropped"
        assert not by_queue, "a sequence runs that no queue knows"
        waiting = list(self)
        assert len(waiting) == self._num_waiting
        assert sum(len(sequence.tokens) for sequence in waiting) == self._num_tokens

    def _queue_of(self, sequence: Sequence) -> FairQueue:
        request = sequence.request
        queues = self._queues[request.request_class]
        queue = queues.get(request.priority)
        if queue is None:
            queue = queues[request.priority] = FairQueue()
            self._queues[request.request_class] = dict(sorted(queues.items()))
        return queue

    def _drop_empty_queue(self, sequence: Sequence) -> None:
        """Clients choose priorities, so there may be any number of them. Without competition no tenant is ahead."""
        request = sequence.request
        queues = self._queues[request.request_class]
        if not queues[request.priority].num_sequences:
            del queues[request.priority]

    def _count(self, sequence: Sequence, change: int) -> None:
        self._num_waiting += change
        self._num_tokens += change * len(sequence.tokens)
