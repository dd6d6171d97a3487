"""What becomes of requests, as the service hears of it: latencies, goodput, tokens, who used how much."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from archerfish.metrics.aggregates import Histogram, RecentSums, RecentValues, Span
from archerfish.metrics.timing import RequestTiming, judge
from archerfish.request import SLO, FinishReason, Request, TokenEvent

WINDOW = 60
"""Seconds that recent latencies and goodput look back."""
OTHERS = "(others)"
"""Label of tenants and endpoints beyond the number that is counted separately."""
_BETWEEN_TOKENS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0),
    *(40.0, 80.0, 160.0, 640.0, 2560.0),
)
_WHOLE = (
    *(0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request."""

    num_prompt_tokens: int
    num_generated_tokens: int
    """Of all its answers together."""
    num_cached_tokens: int = 0
    """Prompt tokens that did not have to be computed."""


@dataclass(slots=True)
class TenantUsage:
    """What a tenant's ended requests came to."""

    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens that did not have to be computed."""

    def add(self, other: "TenantUsage") -> None:
        self.num_requests += other.num_requests
        self.num_prompt_tokens += other.num_prompt_tokens
        self.num_generated_tokens += other.num_generated_tokens
        self.num_cached_tokens += other.num_cached_tokens


@dataclass(slots=True)
class _Open:
    """A request on its way."""

    arrival_time: float
    num_prompt_tokens: int
    last_times: list[float | None]
    """When each answer last grew."""
    has_begun: bool = False


class RequestMetrics:
    """Hears of every request's start, tokens and end. All times come from the caller's one clock."""

    def __init__(self, now: float) -> None:
        self.ttft = Histogram(_FIRST_TOKEN)
        self.visible_ttft = Histogram(_FIRST_TOKEN)
        self.itl = Histogram(_BETWEEN_TOKENS)
        self.tpot = Histogram(_BETWEEN_TOKENS)
        self.e2e = Histogram(_WHOLE)
        self.queue_time = Histogram(_WHOLE)
        self.prefill_time = Histogram(_WHOLE)
        self.decode_time = Histogram(_WHOLE)
        self.inference_time = Histogram(_WHOLE)
        self.prompt_tokens = Histogram(_TOKENS)
        self.generated_tokens = Histogram(_TOKENS)
        self.recent_ttft = RecentValues(WINDOW)
        self.recent_itl = RecentValues(WINDOW)
        self.recent_tpot = RecentValues(WINDOW)
        self.recent_e2e = RecentValues(WINDOW)
        self.num_started: Counter[str] = Counter()
        """By endpoint."""
        self.num_ended: Counter[FinishReason] = Counter()
        self.num_judged: Counter[tuple[str, bool]] = Counter()
        """By objective (ttft, tpot, all) and whether it was met."""
        self.num_prompt_tokens = 0
        """Of requests that have begun to answer."""
        self.num_cached_tokens = 0
        self.usage: dict[str, TenantUsage] = {}
        """By tenant."""
        self._recent_verdicts = RecentSums(3, WINDOW, now)
        self._open: dict[str, _Open] = {}

    @property
    def num_open(self) -> int:
        return len(self._open)

    def started(self, request: Request, endpoint: str) -> None:
        self._open[request.request_id] = _Open(
            arrival_time=request.arrival_time,
            num_prompt_tokens=len(request.prompt_token_ids),
            last_times=[None] * request.params.n,
        )
        self.num_started[endpoint] += 1

    def tokens(self, events: Iterable[TokenEvent], now: float) -> None:
        """Events of any number of requests that arrived together; those of requests that are not open are ignored."""
        gaps: list[float] = []
        for event in events:
            request, count = self._open.get(event.request_id), len(event.token_ids)
            if request is None or not count:
                continue
            last = request.last_times[event.sequence_index]
            request.last_times[event.sequence_index] = now
            if not request.has_begun:
                self._begin(request, now - request.arrival_time, event.num_cached_tokens, now)
            if last is None:
                continue
            if count == 1:
                gaps.append(now - last)
            else:
                gaps += [(now - last) / count] * count  # They came together, and share what they took.
        self._observe_gaps(gaps, now)

    def finished(
        self,
        request: Request,
        timing: RequestTiming,
        usage: Usage,
        finish_reason: FinishReason,
        gaps: Sequence[float],
        now: float,
    ) -> None:
        """A second end of a request is ignored."""
        known = self._open.pop(request.request_id, None)
        if known is None:
            return
        if not known.has_begun and timing.ttft is not None:
            self._begin(known, timing.ttft, usage.num_cached_tokens, now)
        self.num_ended[finish_reason] += 1
        self._observe_gaps(gaps, now)
        self._observe(timing, usage, now)
        self._judge(request.slo, timing, finish_reason, now)
        self._charge(request.tenant, usage)

    def recent_goodput(self, now: float) -> Span:
        """Good requests, all that were judged, and those of them that had an objective."""
        return self._recent_verdicts.over(WINDOW, now)

    def _begin(self, request: _Open, ttft: float, num_cached_tokens: int, now: float) -> None:
        """The first token of the first answer."""
        request.has_begun = True
        self.ttft.observe(ttft)
        self.recent_ttft.add(ttft, now)
        self.num_prompt_tokens += request.num_prompt_tokens
        self.num_cached_tokens += num_cached_tokens

    def _observe_gaps(self, gaps: Sequence[float], now: float) -> None:
        if gaps:
            self.itl.observe_all(gaps)
            self.recent_itl.extend(gaps, now)

    def _observe(self, timing: RequestTiming, usage: Usage, now: float) -> None:
        for histogram, seconds in (
            (self.visible_ttft, timing.visible_ttft),
            (self.tpot, timing.tpot),
            (self.e2e, timing.total),
            (self.queue_time, timing.queue_time),
            (self.prefill_time, timing.prefill_time),
            (self.decode_time, timing.decode_time),
            (self.inference_time, timing.inference_time),
        ):
            if seconds is not None:
                histogram.observe(seconds)
        if timing.tpot is not None:
            self.recent_tpot.add(timing.tpot, now)
        if timing.total is not None:
            self.recent_e2e.add(timing.total, now)
        self.prompt_tokens.observe(usage.num_prompt_tokens)
        self.generated_tokens.observe(usage.num_generated_tokens)

    def _judge(self, slo: SLO | None, timing: RequestTiming, finish_reason: FinishReason, now: float) -> None:
        verdict = judge(slo, timing, finish_reason)
        if verdict is None:
            return
        for objective, met in (("ttft", verdict.ttft), ("tpot", verdict.tpot), ("all", verdict.good)):
            if met is not None:
                self.num_judged[objective, met] += 1
        self._recent_verdicts.add((verdict.good, 1, slo is not None), now)

    def _charge(self, tenant: str, usage: Usage) -> None:
        charge = TenantUsage(1, usage.num_prompt_tokens, usage.num_generated_tokens, usage.num_cached_tokens)
        self.usage.setdefault(tenant, TenantUsage()).add(charge)


def milliseconds(values: RecentValues, shares: Sequence[float], now: float) -> list[float | None]:
    """Quantiles of seconds; None where there are no values."""
    quantiles = values.quantiles(shares, now)
    return [None] * len(shares) if quantiles is None else [value * 1000 for value in quantiles]
