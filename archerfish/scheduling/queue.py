"""Sequences that wait, in the order they are to be admitted. Knows nothing of blocks or steps."""

from collections.abc import Callable, Iterable, Iterator

from archerfish.request import RequestClass
from archerfish.scheduling.fairness import Line
from archerfish.scheduling.sequence import Sequence


class WaitingQueue:
    """A line for each class and priority, in which tenants take turns.

    Who runs is told here too: whose turn it is depends on what each tenant is being given.
    """

    def __init__(self) -> None:
        self._lines: dict[RequestClass, dict[int, Line]] = {kind: {} for kind in RequestClass}
        """By priority, in its order."""
        self._num_waiting = 0
        self._num_tokens = 0

    @property
    def num_tokens(self) -> int:
        """Of all sequences in line. None of them has been computed; some may be found in the cache."""
        return self._num_tokens

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        for lines in self._lines.values():
            for line in lines.values():
                yield from line

    def turns(self, kind: RequestClass, admits: Callable[[Sequence], bool] = lambda _: True) -> Iterator[Sequence]:
        """Those that may join, in order. Ask for the next only when this one has been started."""
        for line in self._lines[kind].values():
            yield from line.turns(admits)

    def add(self, sequence: Sequence) -> None:
        """To its place in line, whether it is new or was preempted."""
        self._line(sequence).add(sequence)
        self._count(sequence, 1)

    def remove(self, sequence: Sequence) -> None:
        """It ends without running."""
        self._line(sequence).remove(sequence)
        self._count(sequence, -1)
        self._forget_line(sequence)

    def start(self, sequence: Sequence) -> None:
        """From the line to a row, with its cached tokens counted as computed."""
        self._line(sequence).start(sequence)
        self._count(sequence, -1)

    def stop(self, sequence: Sequence) -> None:
        """It leaves its row, and still has its blocks."""
        self._line(sequence).stop(sequence)
        self._forget_line(sequence)

    def check(self, running: Iterable[Sequence]) -> None:
        """The lines know who runs, and nothing is left of lines that nobody is in."""
        by_line: dict[tuple[RequestClass, int], set[Sequence]] = {}
        for sequence in running:
            request = sequence.request
            by_line.setdefault((request.request_class, request.priority), set()).add(sequence)
        for kind, lines in self._lines.items():
            assert list(lines) == sorted(lines), "priorities are out of order"
            for priority, line in lines.items():
                line.check(by_line.pop((kind, priority), set()))
                assert line.num_sequences, "an empty line is kept"
        assert not by_line, "a sequence runs that no line knows"
        waiting = list(self)
        assert len(waiting) == self._num_waiting
        assert sum(len(sequence.tokens) for sequence in waiting) == self._num_tokens

    def _line(self, sequence: Sequence) -> Line:
        request = sequence.request
        lines = self._lines[request.request_class]
        line = lines.get(request.priority)
        if line is None:
            line = lines[request.priority] = Line()
            self._lines[request.request_class] = dict(sorted(lines.items()))
        return line

    def _forget_line(self, sequence: Sequence) -> None:
        """Clients choose priorities: there may be any number of them. Where nobody competes, nobody is ahead."""
        request = sequence.request
        lines = self._lines[request.request_class]
        if not lines[request.priority].num_sequences:
            del lines[request.priority]

    def _count(self, sequence: Sequence, change: int) -> None:
        self._num_waiting += change
        self._num_tokens += change * len(sequence.tokens)
