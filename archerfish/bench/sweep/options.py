"""Options of a sweep, apart from the load itself. Measures nothing."""

from dataclasses import dataclass

from archerfish.bench.sweep.search import SearchPlan
from archerfish.bench.sweep.sweep import Axis, SweepPlan
from archerfish.errors import ConfigError
from archerfish.metrics.timing import Objectives

_AUTO = "auto"
_REQUESTS_PER_CLIENT = 4
"""Requests of a measurement per open request: with fewer, it would be mostly start and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Options of a sweep, validated on creation."""

    request_rates: str | None = None
    """Request rates to measure, such as 1,2,4,8. auto (default) starts at --start and doubles while the load is \
met."""
    concurrencies: str | None = None
    """Numbers of open requests to measure instead, such as 1,8,64, or auto."""
    start: float = 1.0
    """First load of auto; halved if it is not met."""
    goodput_share: float = 0.95
    """Share of requests that must be good for a load to count as met."""
    num_prompts: int = 20
    """Minimum number of requests per measurement."""
    seconds: float = 15.0
    """Minimum duration of arrivals per measurement, with request rates."""
    repeats: int = 3
    """Maximum number of measurements per load; fewer where the majority is certain."""
    tolerance: float = 0.05
    """Precision of the limit, as a share of it."""
    max_points: int = 16
    """Maximum number of loads, where they are not listed."""

    def __post_init__(self) -> None:
        if self.request_rates is not None and self.concurrencies is not None:
            raise ConfigError("--request-rates and --concurrencies exclude each other: leave out one of them")
        for name in ("start", "num_prompts", "repeats", "tolerance", "max_points"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"--{name.replace('_', '-')} must be more than 0")
        if not 0 < self.goodput_share <= 1:
            raise ConfigError("--goodput-share must be more than 0 and at most 1")
        if self.seconds < 0:
            raise ConfigError("--seconds must not be negative")
        loads = (self.start, *self.loads)
        if self.axis == "concurrency" and any(load != int(load) for load in loads):
            raise ConfigError("--concurrencies and --start must be whole numbers of open requests")

    @property
    def axis(self) -> Axis:
        return "request rate" if self.concurrencies is None else "concurrency"

    @property
    def loads(self) -> tuple[float, ...]:
        """Loads that were listed; empty for auto."""
        flag, text = (
            ("--concurrencies", self.concurrencies) if self.concurrencies else ("--request-rates", self.request_rates)
        )
        if text is None or text == _AUTO:
            return ()
        try:
            loads = tuple(float(part) for part in text.split(","))
        except ValueError:
            loads = (0.0,)
        if not all(0 < load < float("inf") for load in loads):
            raise ConfigError(f"{flag}: {text!r} must be auto, or numbers above 0 with commas between them")
        return tuple(sorted(set(loads)))

    def num_requests(self, load: float) -> int:
        """Return the number of requests of a measurement at a load."""
        enough = load * (self.seconds if self.axis == "request rate" else _REQUESTS_PER_CLIENT)
        return max(self.num_prompts, round(enough))

    def plan(self, objectives: Objectives | None, dollars_per_hour: float | None) -> SweepPlan:
        return SweepPlan(
            axis=self.axis,
            objectives=objectives,
            goodput_share=self.goodput_share,
            dollars_per_hour=dollars_per_hour,
            search=SearchPlan(
                loads=self.loads,
                start=self.start,
                is_whole=self.axis == "concurrency",
                num_repeats=self.repeats,
                tolerance=self.tolerance,
                most_points=self.max_points,
            ),
        )
