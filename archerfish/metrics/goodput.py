"""Whether a request got what it was promised."""

from typing import NamedTuple

from archerfish.metrics.timing import RequestTiming
from archerfish.request import SLO, FinishReason

_ENDED_WELL = (FinishReason.STOP, FinishReason.LENGTH)


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
