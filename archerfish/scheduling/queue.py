"""Sequences that wait, in the order they are to be admitted. Knows nothing of blocks or steps."""

from bisect import insort
from collections.abc import Callable, Iterator

from archerfish.request import RequestClass
from archerfish.scheduling.sequence import Sequence


class WaitingQueue:
    """One sorted line for each class; a preempted sequence, being older, lines up before newer ones by itself."""

    def __init__(self) -> None:
        self._lines: dict[RequestClass, list[Sequence]] = {kind: [] for kind in RequestClass}

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def __iter__(self) -> Iterator[Sequence]:
        for line in self._lines.values():
            yield from line

    def add(self, sequence: Sequence) -> None:
        insort(self._lines[sequence.request.request_class], sequence, key=lambda s: s.order)

    def remove(self, sequence: Sequence) -> None:
        self._lines[sequence.request.request_class].remove(sequence)

    def first(self, kind: RequestClass, admits: Callable[[Sequence], bool] = lambda _: True) -> Sequence | None:
        """The first in line that may join."""
        return next((sequence for sequence in self._lines[kind] if admits(sequence)), None)
