"""When things happened to a request, and the latencies that follow. All times come from one clock, in seconds."""

from dataclasses import dataclass


@dataclass(slots=True)
class RequestTiming:
    """Filled in as the request goes its way."""

    arrival_time: float
    scheduled_time: float | None = None
    """When it first left the queue."""
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    num_generated_tokens: int = 0
    """Of all its answers together."""
    num_answers: int = 1
    """Written side by side."""

    def record_tokens(self, count: int, now: float) -> None:
        if self.first_token_time is None:
            self.first_token_time = now
        self.last_token_time = now
        self.num_generated_tokens += count

    @property
    def queue_time(self) -> float | None:
        """From arrival to the first step that computed any of it."""
        return None if self.scheduled_time is None else self.scheduled_time - self.arrival_time

    @property
    def ttft(self) -> float | None:
        """Time to first token: from arrival, queueing included."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None with fewer than two."""
        following = self.num_generated_tokens / self.num_answers - 1
        if self.first_token_time is None or self.last_token_time is None or following <= 0:
            return None
        return (self.last_token_time - self.first_token_time) / following

    @property
    def total(self) -> float | None:
        """From arrival to the end."""
        return None if self.finished_time is None else self.finished_time - self.arrival_time
