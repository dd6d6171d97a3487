"""Sequences that wait, in the order they are to be admitted. Knows nothing of blocks or steps."""

from bisect import insort
from collections.abc import Iterator

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

    def first(self, kind: RequestClass) -> Sequence | None:
        line = self._lines[kind]
        return line[0] if line else None

    def oldest_arrival(self) -> float | None:
        """When the request that has waited longest arrived."""
        return min((sequence.request.arrival_time for sequence in self), default=None)
