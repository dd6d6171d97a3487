"""Who may join the running sequences: anyone at any step, or a whole batch at a time. Knows no rows and no blocks."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from archerfish.scheduling.sequence import Sequence

_CLOCK_GRAIN = 1e-6  # Seconds: a wait that is shorter than this is over, whatever rounding says.


class BatchingPolicy(Protocol):
    def open_batch(self, waiting: Iterable[Sequence], now: float, *, expects_more: bool) -> None:
        """Before each plan: decide who may join from now on. `waiting` is in order of admission."""

    def admits(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence may join, if there is room."""

    def forget(self, request_id: str) -> None:
        """A request has ended."""

    def seconds_until_start(self, waiting: Iterable[Sequence], now: float) -> float | None:
        """After a plan that found nothing to run: how long to wait; None if only an arrival can change anything."""


class ContinuousBatching:
    """Join whenever there is room: a short answer never waits for a long one."""

    def open_batch(self, waiting: Iterable[Sequence], now: float, *, expects_more: bool) -> None:
        """Everyone may join."""

    def admits(self, _: Sequence) -> bool:
        return True

    def forget(self, request_id: str) -> None:
        """Nobody is kept."""

    def seconds_until_start(self, waiting: Iterable[Sequence], _: float) -> float | None:
        return 0.0 if any(True for _ in waiting) else None


@dataclass(slots=True)
class WholeBatches:
    """Requests start together, and the next batch starts when all of them have ended.

    Static batching (no window) starts a batch when it is full; dynamic batching also when the window has passed since
    its first request came. Where no more requests can come, what is there starts.
    """

    max_num_seqs: int
    window: float | None
    """Seconds."""
    _members: set[str] = field(default_factory=set, init=False, compare=False)
    """Requests of the batch that runs. Their forks, and what had to make way, join it again."""

    def open_batch(self, waiting: Iterable[Sequence], now: float, *, expects_more: bool) -> None:
        if self._members:
            return
        line = list(waiting)
        wanted = {sequence.request.request_id: len(sequence.siblings) for sequence in line}
        full = sum(wanted.values()) >= self.max_num_seqs
        if not (full or self._window_passed(line, now) or not expects_more):
            return
        seats = self.max_num_seqs
        for request_id, num_sequences in wanted.items():
            if self._members and num_sequences > seats:
                break
            self._members.add(request_id)
            seats -= num_sequences

    def admits(self, sequence: Sequence) -> bool:
        return sequence.request.request_id in self._members

    def forget(self, request_id: str) -> None:
        self._members.discard(request_id)

    def seconds_until_start(self, waiting: Iterable[Sequence], now: float) -> float | None:
        line = list(waiting)
        if self._members or self.window is None or not line:
            return None
        return max(_CLOCK_GRAIN, self.window - _longest_wait(line, now))

    def _window_passed(self, line: list[Sequence], now: float) -> bool:
        if self.window is None or not line:
            return False
        return _longest_wait(line, now) >= self.window - _CLOCK_GRAIN


def _longest_wait(line: list[Sequence], now: float) -> float:
    return now - min(sequence.request.arrival_time for sequence in line)


def batching_policy(name: str, max_num_seqs: int, window: float) -> BatchingPolicy:
    if name == "continuous":
        return ContinuousBatching()
    assert name in ("dynamic", "static"), name
    return WholeBatches(max_num_seqs, window if name == "dynamic" else None)
