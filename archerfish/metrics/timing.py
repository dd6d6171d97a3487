"""When things happened to a request, and the latencies that follow; and its draft tokens.

All times come from one clock, in seconds.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class RequestTiming:
    """Filled in as the request goes its way."""

    arrival_time: float
    scheduled_time: float | None = None
    """When it first left the queue."""
    first_token_time: float | None = None
    last_token_time: float | None = None
    first_visible_time: float | None = None
    """When the first token came that is no reasoning, of models that show theirs."""
    finished_time: float | None = None
    num_generated_tokens: int = 0
    """Of all its answers together."""
    num_answers: int = 1
    """Written side by side."""
    num_drafts: int = 0
    """Steps of its answers that had draft tokens."""
    num_draft_tokens: int = 0
    """Draft tokens that were verified."""
    num_accepted_tokens: int = 0
    """Draft tokens that were accepted."""

    def record_tokens(self, count: int, now: float) -> None:
        if self.first_token_time is None:
            self.first_token_time = now
        self.last_token_time = now
        self.num_generated_tokens += count

    def record_drafts(self, count: int, num_accepted_tokens: int) -> None:
        """Of one answer in one step."""
        self.num_drafts += 1
        self.num_draft_tokens += count
        self.num_accepted_tokens += num_accepted_tokens

    @property
    def acceptance_length(self) -> float | None:
        """Mean number of tokens that a step with draft tokens added; None where there were none."""
        return acceptance_length(self.num_drafts, self.num_accepted_tokens)

    @property
    def queue_time(self) -> float | None:
        """From arrival to the first step that computed any of it."""
        return _between(self.arrival_time, self.scheduled_time)

    @property
    def prefill_time(self) -> float | None:
        """From the first step to the first token."""
        return _between(self.scheduled_time, self.first_token_time)

    @property
    def decode_time(self) -> float | None:
        """From the first token to the last."""
        return _between(self.first_token_time, self.last_token_time)

    @property
    def inference_time(self) -> float | None:
        """From the first step to the last token."""
        return _between(self.scheduled_time, self.last_token_time)

    @property
    def ttft(self) -> float | None:
        """Time to first token: from arrival, queueing included."""
        return _between(self.arrival_time, self.first_token_time)

    @property
    def visible_ttft(self) -> float | None:
        """Time to first visible token: from arrival to the first that is no reasoning. None where none is read."""
        return _between(self.arrival_time, self.first_visible_time)

    @property
    def reasoning_time(self) -> float | None:
        """From the first token to the first that is no reasoning."""
        return _between(self.first_token_time, self.first_visible_time)

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None with fewer than two."""
        following = self.num_generated_tokens / self.num_answers - 1
        decode_time = self.decode_time
        return None if decode_time is None or following <= 0 else decode_time / following

    @property
    def total(self) -> float | None:
        """From arrival to the end."""
        return _between(self.arrival_time, self.finished_time)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def acceptance_length(num_drafts: float, num_accepted: float) -> float | None:
    """Return the mean number of accepted draft tokens per draft, plus the token that follows them."""
    return 1 + num_accepted / num_drafts if num_drafts else None
