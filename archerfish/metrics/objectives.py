"""What a load test demands of every request, and whether a request met it. Knows nothing of who measured it."""

from collections.abc import Sequence
from dataclasses import dataclass

from archerfish.errors import ConfigError
from archerfish.metrics.goodput import judge
from archerfish.metrics.timing import RequestTiming
from archerfish.request import SLO, FinishReason

_NAMES = ("ttft", "tpot", "e2el")


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
