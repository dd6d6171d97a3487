"""What a load test demands, and who met it."""

import pytest

from archerfish.errors import ConfigError
from archerfish.metrics.objectives import Objectives, parse_objectives
from archerfish.metrics.timing import RequestTiming
from archerfish.request import FinishReason


def _timing(ttft: float, tpot: float, num_tokens: int = 11) -> RequestTiming:
    last = ttft + tpot * (num_tokens - 1)
    return RequestTiming(
        0.0, first_token_time=ttft, last_token_time=last, finished_time=last, num_generated_tokens=num_tokens
    )


def test_thirty_of_a_hundred_meet_the_objective() -> None:
    timings = [_timing(0.15 if index % 10 < 3 else 0.25, 0.02) for index in range(100)]
    assert sum(Objectives(ttft_ms=200).met_by(timing, FinishReason.STOP) for timing in timings) == 30


def test_every_objective_must_be_met() -> None:
    timing = _timing(0.1, 0.04)
    assert Objectives(ttft_ms=100, tpot_ms=40.001, e2el_ms=501).met_by(timing, FinishReason.LENGTH)
    assert not Objectives(ttft_ms=99).met_by(timing, FinishReason.LENGTH)
    assert not Objectives(ttft_ms=100, tpot_ms=39).met_by(timing, FinishReason.LENGTH)
    assert not Objectives(e2el_ms=499).met_by(timing, FinishReason.LENGTH)
    assert not Objectives(e2el_ms=499).met_by(RequestTiming(0.0), FinishReason.LENGTH)


def test_a_failure_is_never_good() -> None:
    assert not Objectives(ttft_ms=1000).met_by(_timing(0.1, 0.01), FinishReason.ERROR)


def test_objectives_are_written_as_in_vllm() -> None:
    assert parse_objectives(["ttft:200", "tpot:50.5", "e2el:9e3"]) == Objectives(
        ttft_ms=200, tpot_ms=50.5, e2el_ms=9000
    )
    assert parse_objectives([]) is None


@pytest.mark.parametrize("text", ["tft:3", "ttft", "ttft:", "ttft:x", "ttft:0", "ttft:-3", "ttft:nan"])
def test_others_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--goodput"):
        parse_objectives([text])


def test_none_may_be_given_twice() -> None:
    with pytest.raises(ConfigError, match="at most once"):
        parse_objectives(["ttft:1", "ttft:2"])
