"""Limits how many lines are answered at once by all running batches, and when an engine failure may be risked again.

Knows neither lines nor batches.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Capacity:
    """Divides the lines in flight evenly between the batches that have lines to start, unless one of them needs all of
    it.
    """

    def __init__(self, max_in_flight: int, max_bytes: int) -> None:
        """`max_bytes` limits the bytes of the lines in flight; one more line may be started while there are fewer."""
        self._max_in_flight = max_in_flight
        self._max_bytes = max_bytes
        self._shares: list[CapacityShare] = []
        """Shares in the order of their last start of a line, the oldest first: they are the first to use what becomes
        free.
        """
        self._trials: deque[CapacityShare] = deque()
        """Shares of batches that need all of it, in their order."""

    def join(self, on_change: Callable[[], None]) -> "CapacityShare":
        """Return a share for one more batch. `on_change` is called when it may be able to start lines."""
        share = CapacityShare(self, on_change)
        self._shares.append(share)
        self.changed()
        return share

    def leave(self, share: "CapacityShare") -> None:
        assert share.num_in_flight == 0, "lines of a batch that has left are in flight"
        self._shares.remove(share)
        self.changed()

    @contextmanager
    def trial(self, share: "CapacityShare") -> Iterator[None]:
        """Let no other batch start lines within the block, and this one only when theirs have ended."""
        self._trials.append(share)
        try:
            yield
        finally:
            self._trials.remove(share)
            self.changed()

    def may_start(self, share: "CapacityShare") -> bool:
        total = sum(share.num_in_flight for share in self._shares)
        total_bytes = sum(share.num_bytes for share in self._shares)
        if total_bytes >= self._max_bytes:
            return False
        # A batch that rests before its trial leaves that time to others.
        trial = next((share for share in self._trials if share.num_in_flight or not share.is_resting), None)
        if trial is not None:
            return trial is share and total == share.num_in_flight < self._max_in_flight
        num_active = max(1, sum(not share.is_resting for share in self._shares))
        if total >= self._max_in_flight or share.num_in_flight >= max(1, self._max_in_flight // num_active):
            return False
        return share.num_bytes < max(1, self._max_bytes // num_active)

    def started(self, share: "CapacityShare") -> None:
        self._shares.remove(share)
        self._shares.append(share)

    def changed(self) -> None:
        for share in self._shares:
            share.on_change()


class CapacityShare:
    """The share of one batch in the capacity."""

    def __init__(self, capacity: Capacity, on_change: Callable[[], None]) -> None:
        self.num_in_flight = 0
        self.num_bytes = 0
        """Bytes of the lines in flight."""
        self.is_resting = False
        """Whether it starts no lines for a while, so that others may start more."""
        self.on_change = on_change
        self._capacity = capacity

    def may_start(self) -> bool:
        """Return whether one more line may be started now."""
        return self._capacity.may_start(self)

    def started(self, num_bytes: int) -> None:
        """Count a line of so many bytes as in flight."""
        self.num_in_flight += 1
        self.num_bytes += num_bytes
        self._capacity.started(self)

    def ended(self, num_bytes: int) -> None:
        """Count a line as ended."""
        self.num_in_flight -= 1
        self.num_bytes -= num_bytes
        self._capacity.changed()

    def rest(self, is_resting: bool) -> None:
        self.is_resting = is_resting
        self._capacity.changed()


class FailurePace:
    """Delays lines after engine failures, so that batches alone never end the service.

    A service whose engine fails too often in a short time ends itself.
    """

    def __init__(self, max_failures: int, window: float, least_seconds: float, clock: Callable[[], float]) -> None:
        """Allow at most `max_failures` in any `window` seconds, with at least `least_seconds` of rest after each."""
        self._window = window
        self._least_seconds = least_seconds
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=max_failures)

    def failed(self) -> float:
        """Record an engine failure, and return how many seconds to wait before the next line."""
        now = self._clock()
        # Every batch with lines in flight reports the same failure.
        if not self._failures or now - self._failures[-1] >= self._least_seconds:
            self._failures.append(now)
        if len(self._failures) < (self._failures.maxlen or 1):
            return self._least_seconds
        return max(self._least_seconds, self._failures[0] + self._window - now)
