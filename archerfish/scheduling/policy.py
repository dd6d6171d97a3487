"""When waiting sequences may be admitted: at any step, or a whole batch at a time."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from archerfish.scheduling.sequence import Sequence

_CLOCK_GRAIN = 1e-6
"""Seconds below which a wait is over, whatever rounding says."""


class BatchingPolicy(Protocol):
    def open_batch(self, waiting: Iterable[Sequence], now: float, *, expects_more: bool) -> None:
        """Decide, before each plan, what may be admitted from now on. `waiting` is in order of admission."""

    def admits(self, sequence: Sequence) -> bool:
        """Return whether a waiting sequence may be admitted if it fits."""

    def forget(self, request_id: str) -> None:
        """Forget a request that has ended."""

    def seconds_until_start(self, waiting: Iterable[Sequence], now: float) -> float | None:
        """Return, after a plan without chunks, how long to wait; None if only an arrival can change anything."""


class ContinuousBatching:
    """Sequences are admitted whenever they fit: a short answer never waits for a long one."""

    def open_batch(self, waiting: Iterable[Sequence], now: float, *, expects_more: bool) -> None:
        """Every sequence may be admitted."""

    def admits(self, _: Sequence) -> bool:
        return True

    def forget(self, request_id: str) -> None:
        """No request is remembered."""

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
    """Seconds after which an incomplete batch starts; None for static batching."""
    _members: set[str] = field(default_factory=set, init=False, compare=False)
    """Requests of the running batch. Their forks, and sequences that were preempted, are admitted at any time."""

    def open_batch(self, waiting: Iterable[Sequence], now: float, *, expects_more: bool) -> None:
        if self._members:
            return
        queued = list(waiting)
        num_wanted = {sequence.request.request_id: len(sequence.siblings) for sequence in queued}
        full = sum(num_wanted.values()) >= self.max_num_seqs
        if not (full or self._window_passed(queued, now) or not expects_more):
            return
        free_rows = self.max_num_seqs
        for request_id, num_sequences in num_wanted.items():
            if self._members and num_sequences > free_rows:
                break
            self._members.add(request_id)
            free_rows -= num_sequences

    def admits(self, sequence: Sequence) -> bool:
        return sequence.request.request_id in self._members

    def forget(self, request_id: str) -> None:
        self._members.discard(request_id)

    def seconds_until_start(self, waiting: Iterable[Sequence], now: float) -> float | None:
        queued = list(waiting)
        if self._members or self.window is None or not queued:
            return None
        return max(_CLOCK_GRAIN, self.window - _longest_wait(queued, now))

    def _window_passed(self, queued: list[Sequence], now: float) -> bool:
        if self.window is None or not queued:
            return False
        return _longest_wait(queued, now) >= self.window - _CLOCK_GRAIN


def _longest_wait(queued: list[Sequence], now: float) -> float:
    return now - min(sequence.request.arrival_time for sequence in queued)


def batching_policy(name: str, max_num_seqs: int, window: float) -> BatchingPolicy:
    if name == "continuous":
        return ContinuousBatching()
    assert name in ("dynamic", "static"), name
    return WholeBatches(max_num_seqs, window if name == "dynamic" else None)
