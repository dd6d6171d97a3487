"""The service's metrics, in the API process: hears of requests, steps and responses; tells Prometheus and the page.

Not for several threads: to be called from the event loop.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.core import Metric

from archerfish.machine.energy import EnergyMeter
from archerfish.machine.peak import Peak
from archerfish.metrics import prometheus
from archerfish.metrics.aggregates import RecentValues
from archerfish.metrics.engines import EngineMetrics
from archerfish.metrics.requests import OTHERS, RequestMetrics, TenantUsage, Usage, milliseconds
from archerfish.metrics.state import EngineInfo, EngineState, StepRecord
from archerfish.metrics.timing import RequestTiming
from archerfish.request import FinishReason, Request, TokenEvent

__all__ = [
    "CONTENT_TYPE",
    "EngineState",
    "Peak",
    "RequestTiming",
    "ServiceMetrics",
    "StepRecord",
    "TenantUsage",
    "Usage",
]

CONTENT_TYPE = CONTENT_TYPE_LATEST
"""Of what prometheus() gives."""

Clock = Callable[[], float]

_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_BETWEEN_ENERGY_READINGS = 60.0
_MOST_ENDPOINTS = 100
_ENDED_BY_THEMSELVES = (FinishReason.STOP, FinishReason.LENGTH)


class ServiceMetrics:
    """Everything measured of one service."""

    def __init__(
        self,
        clock: Clock = time.monotonic,
        *,
        wall_clock: Clock = time.time,
        model: str = "",
        version: str = "",
        energy: EnergyMeter | None = None,
    ) -> None:
        self.model = model
        self.version = version
        self.status = "loading"
        """In a word, for the page."""
        self.peak: Peak | None = None
        """To be set once it is known; until then there is no utilization."""
        self.engine_info: EngineInfo | None = None
        """Settings of the engine, once it is ready."""
        self.num_open_answers = 0
        """Answers that count towards --max-queued-requests; set by the service whenever it changes."""
        self._clock = clock
        self._wall_clock = wall_clock
        self._started = clock()
        self._requests = RequestMetrics(self._started)
        self._engine = EngineMetrics(self._started)
        self._responses: Counter[tuple[str, int]] = Counter()
        self._endpoints: set[str] = set()
        self._energy = energy if energy is not None else EnergyMeter()
        self._energy_read = self._started

    # -- what it hears --------------------------------------------------------------------------------------------

    def request_started(self, request: Request, endpoint: str = "") -> None:
        """A request was accepted. Every one that starts must finish, too, whatever becomes of it."""
        self._requests.started(request, endpoint)

    def tokens(self, events: Iterable[TokenEvent], now: float | None = None) -> None:
        """Events as they arrive, of one request or of many: first tokens and gaps count at once, not at the end."""
        self._requests.tokens(events, self._clock() if now is None else now)

    def request_finished(
        self,
        request: Request,
        timing: RequestTiming,
        usage: Usage,
        finish_reason: FinishReason | str,
        gaps: Sequence[float] = (),
    ) -> None:
        """All answers of a request have ended, or its client is gone.

        `gaps` are the seconds between its tokens, from callers that do not report `tokens`.
        """
        self._requests.finished(request, timing, usage, FinishReason(finish_reason), gaps, self._clock())

    def state(self, state: EngineState) -> None:
        """What the engine tells after each step."""
        now = self._clock()
        self._engine.hear(state, now)
        if now - self._energy_read > _BETWEEN_ENERGY_READINGS:
            self._energy_read = now
            self._energy.joules()

    def engine_restarted(self) -> None:
        """The engine is gone and a new one is on its way: from now on its totals count from zero."""
        self._engine.restarted()

    def http_response(self, endpoint: str, status: int) -> None:
        """An HTTP response was begun."""
        if endpoint not in self._endpoints:
            # Each is a time series in whatever scrapes us, and clients can make up paths without end.
            if len(self._endpoints) >= _MOST_ENDPOINTS:
                endpoint = OTHERS
            self._endpoints.add(endpoint)
        self._responses[endpoint, status] += 1

    # -- what it tells --------------------------------------------------------------------------------------------

    def prometheus(self, tenant: str | None = None) -> bytes:
        """All metrics, in Prometheus' text format; with a tenant, its own usage and no other tenant's."""
        usage = self.usage if tenant is None else {tenant: self.usage.get(tenant, TenantUsage())}
        return prometheus.text(self._families(usage))

    def retry_after(self, num_tokens_waiting: int) -> int:
        """Whole seconds until so many tokens are computed, from how fast recent steps were."""
        return self._engine.retry_after(num_tokens_waiting, self._clock())

    @property
    def usage(self) -> Mapping[str, TenantUsage]:
        """By tenant."""
        return self._requests.usage

    @property
    def last_state(self) -> EngineState | None:
        """The engine's last reported state; None while there is none."""
        return self._engine.state

    def snapshot(self) -> dict[str, Any]:
        """How things are, for the live page. Ready to become JSON."""
        now = self._clock()
        state, requests, rates = self._engine.state, self._requests, self._engine.token_rates(now)
        goodput = requests.recent_goodput(now)
        good, judged, num_with_objective = goodput.sums
        return {
            "time": self._wall_clock(),
            "model": self.model,
            "status": self.status,
            "uptime_s": now - self._started,
            "requests": {
                "running": state.num_running if state is not None else 0,
                "waiting": state.num_waiting if state is not None else 0,
                "finished": sum(requests.num_ended[reason] for reason in _ENDED_BY_THEMSELVES),
                "failed": requests.num_ended[FinishReason.ERROR],
            },
            "tokens": {"prompt_per_s": rates.prompt, "generated_per_s": rates.generated},
            "latency": {
                "ttft_ms": _percentiles(requests.recent_ttft, now),
                "tpot_ms": _percentiles(requests.recent_tpot, now),
                "itl_ms": _percentiles(requests.recent_itl, now),
                "e2e_ms": _percentiles(requests.recent_e2e, now),
            },
            "goodput": {"per_s": goodput.rate(0), "share": good / judged if num_with_objective else None},
            "kv": _kv(state),
            "steps": [
                {
                    "prefill": step.prefill_tokens,
                    "decode": step.decode_tokens,
                    "draft": step.draft_tokens,
                    "ms": step.seconds * 1000,
                }
                for step in self._engine.steps
            ],
            "roofline": self._roofline(now),
        }

    def _roofline(self, now: float) -> dict[str, Any]:
        utilization = self._engine.utilization(self.peak, now)
        return {
            "peak_flops": self.peak.flops if self.peak is not None else None,
            "peak_bandwidth": self.peak.bandwidth if self.peak is not None else None,
            "points": [point for step in self._engine.steps for point in _points(step)],
            "mfu": utilization.mfu if utilization is not None else None,
            "mbu": utilization.mbu if utilization is not None else None,
        }

    def _families(self, usage: Mapping[str, TenantUsage]) -> list[Metric]:
        now = self._clock()
        families = prometheus.Families({"model_name": self.model})
        prometheus.add_requests(families, self._requests, usage)
        families.gauge("num_open_answers", "Answers that count towards the queue's limit.", self.num_open_answers)
        prometheus.add_engine(families, self._engine, now)
        prometheus.add_info(families, self.engine_info)
        prometheus.add_utilization(families, self._engine.utilization(self.peak, now))
        if self.peak is not None:
            families.gauge("peak_flops", "Operations per second that the device can do.", self.peak.flops)
            families.gauge("peak_bandwidth_bytes", "Bytes per second that it can read.", self.peak.bandwidth)
        responses = [
            ({"endpoint": endpoint, "status": str(status)}, count)
            for (endpoint, status), count in self._responses.items()
        ]
        families.counter("http_responses", "HTTP responses.", responses)
        if self._energy.can_read:
            families.counter("energy_joules", "Used by the processor's packages.", self._energy.joules())
        families.gauge("uptime_seconds", "Since the service was started.", now - self._started)
        families.gauge("build_info", "What runs, in labels.", [({"version": self.version}, 1)])
        return families.metrics


def _percentiles(values: RecentValues, now: float) -> dict[str, float | None]:
    return dict(zip(_SHARES, milliseconds(values, tuple(_SHARES.values()), now), strict=True))


def _kv(state: EngineState | None) -> dict[str, int]:
    if state is None:
        return {"num_blocks": 0, "free": 0, "cached": 0, "in_use": 0}
    return {
        "num_blocks": state.num_blocks,
        "free": state.num_free_blocks,
        "cached": state.num_cached_blocks,
        "in_use": state.num_blocks_in_use,
    }


def _points(step: StepRecord) -> list[dict[str, Any]]:
    """Where the step's phases lie under the roof: both took all of its time."""
    phases = (("prefill", step.prefill_flops, step.prefill_bytes), ("decode", step.decode_flops, step.decode_bytes))
    return [
        {"phase": phase, "intensity": flops / num_bytes, "flops": flops / step.seconds}
        for phase, flops, num_bytes in phases
        if num_bytes > 0 and step.seconds > 0
    ]
