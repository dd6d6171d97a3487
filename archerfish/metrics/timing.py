"""The times of one request, and whether they meet its objectives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from archerfish.errors import ConfigError
from archerfish.request import SLO, FinishReason

_ENDED_WELL = (FinishReason.STOP, FinishReason.LENGTH)

_NAMES = ("ttft", "tpot", "e2el")


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


class Verdict(NamedTuple):
    """How a request did. What was not asked for is None."""

    ttft: bool | None
    tpot: bool | None
    good: bool
    """It ended well and met all that was asked for."""


def judge(slo: SLO | None, timing: RequestTiming, finish_reason: FinishReason) -> Verdict | None:
    """None for a request that its client cancelled: whether it would have met its SLO is unknown."""
    if finish_reason is FinishReason.ABORT:
        return None
    ttft = tpot = None
    if slo is not None and slo.ttft_ms is not None:
        ttft = timing.ttft is not None and timing.ttft * 1000 <= slo.ttft_ms
    if slo is not None and slo.tpot_ms is not None:
        # With fewer than two tokens there is no time between them to be late in.
        tpot = timing.tpot is None or timing.tpot * 1000 <= slo.tpot_ms
    return Verdict(ttft, tpot, finish_reason in _ENDED_WELL and ttft is not False and tpot is not False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """Upper bounds in milliseconds; what is None is not asked for."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None
    """For the whole answer."""

    def met_by(self, timing: RequestTiming, finish_reason: FinishReason) -> bool:
        verdict = judge(SLO(ttft_ms=self.ttft_ms, tpot_ms=self.tpot_ms), timing, finish_reason)
        if verdict is None or not verdict.good:
            return False
        return self.e2el_ms is None or (timing.total is not None and timing.total * 1000 <= self.e2el_ms)


def parse_objectives(texts: Sequence[str]) -> Objectives | None:
    """From "ttft:200", "tpot:50", "e2el:5000"; None where there are none."""
    given: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition(":")
        if name not in _NAMES or name in given:
            raise ConfigError(f"--goodput: {text!r} must be one of ttft:MS, tpot:MS, e2el:MS, each at most once")
        try:
            given[name] = float(value)
        except ValueError:
            raise ConfigError(f"--goodput: {value!r} in {text!r} is not a number of milliseconds") from None
        if not given[name] > 0:
            raise ConfigError(f"--goodput: {text!r} must be more than 0 ms")
    if not given:
        return None
    return Objectives(ttft_ms=given.get("ttft"), tpot_ms=given.get("tpot"), e2el_ms=given.get("e2el"))
