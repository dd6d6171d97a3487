"""When waiting sequences may join: at any step, or only as a whole batch. Says how many; the scheduler says which."""

from dataclasses import dataclass
from typing import ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class Situation:
    """What a policy may look at."""

    num_running: int
    num_waiting: int
    oldest_wait: float
    """Seconds the longest-waiting request has waited."""
    expects_more: bool
    """Whether more requests may still come."""


class BatchingPolicy(Protocol):
    @property
    def looks_at_time(self) -> bool:
        """Whether oldest_wait must be known: finding it costs a walk along the queue."""

    def num_admissible(self, situation: Situation) -> int:
        """How many waiting sequences may join the next step."""

    def seconds_until_start(self, situation: Situation) -> float | None:
        """How long a batch that may not start yet will wait at most; None if only an arrival can start it."""


@dataclass(frozen=True, slots=True)
class ContinuousBatching:
    """Join whenever there is a place: a short answer never waits for a long one."""

    max_num_seqs: int
    looks_at_time: ClassVar[bool] = False

    def num_admissible(self, situation: Situation) -> int:
        return self.max_num_seqs - situation.num_running

    def seconds_until_start(self, situation: Situation) -> float | None:
        return 0.0


@dataclass(frozen=True, slots=True)
class WholeBatches:
    """A batch starts together and must end before the next one starts.

    Static batching (no window) starts a batch when it is full; dynamic batching also when the window has passed since
    its first request came. Where no more requests can come, what is there starts.
    """

    max_num_seqs: int
    window: float | None

    @property
    def looks_at_time(self) -> bool:
        return self.window is not None

    def num_admissible(self, situation: Situation) -> int:
        if situation.num_running:
            return 0
        full = situation.num_waiting >= self.max_num_seqs
        waited = self.window is not None and situation.oldest_wait >= self.window
        return self.max_num_seqs if full or waited or not situation.expects_more else 0

    def seconds_until_start(self, situation: Situation) -> float | None:
        if self.num_admissible(situation):
            return 0.0
        return None if self.window is None or situation.num_running else self.window - situation.oldest_wait


def batching_policy(name: str, max_num_seqs: int, window: float) -> BatchingPolicy:
    if name == "continuous":
        return ContinuousBatching(max_num_seqs)
    assert name in ("dynamic", "static"), name
    return WholeBatches(max_num_seqs, window if name == "dynamic" else None)
