"""A request is good if it ended well and met what it asked for, in the service and in a load test."""

import pytest

from archerfish.errors import ConfigError
from archerfish.metrics.timing import Objectives, RequestTiming, Verdict, judge, parse_objectives
from archerfish.request import SLO, FinishReason

STOP, LENGTH, ABORT, ERROR = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR


def timing(*, num_answers: int = 1) -> RequestTiming:
    """Arrives at 10, leaves the queue at 10.5, has its first token at 11 and its fifth at 13, ends at 13.25."""
    made = RequestTiming(10.0, scheduled_time=10.5, num_answers=num_answers)
    for now in (11.0, 11.5, 12.0, 12.5, 13.0):
        made.record_tokens(num_answers, now)
    made.finished_time = 13.25
    return made


def test_latencies_of_a_timeline() -> None:
    made = timing()
    assert (made.queue_time, made.ttft, made.tpot, made.total) == (0.5, 1.0, 0.5, 3.25)
    assert (made.prefill_time, made.decode_time, made.inference_time) == (0.5, 2.0, 2.5)


def test_answers_side_by_side_take_no_longer_a_token() -> None:
    assert timing(num_answers=4).tpot == 0.5


def test_what_has_not_happened_has_no_latency() -> None:
    made = RequestTiming(10.0)
    latencies = (made.queue_time, made.ttft, made.tpot, made.total)
    assert latencies == (None,) * 4
    assert (made.prefill_time, made.decode_time, made.inference_time) == (None,) * 3
    made.record_tokens(1, 11.0)
    assert (made.ttft, made.tpot, made.decode_time, made.prefill_time) == (1.0, None, 0.0, None)


@pytest.mark.parametrize(
    ("slo", "verdict"),
    [
        (None, Verdict(None, None, True)),
        (SLO(), Verdict(None, None, True)),
        (SLO(ttft_ms=1000), Verdict(True, None, True)),
        (SLO(ttft_ms=999), Verdict(False, None, False)),
        (SLO(tpot_ms=500), Verdict(None, True, True)),
        (SLO(tpot_ms=499), Verdict(None, False, False)),
        (SLO(ttft_ms=2000, tpot_ms=600), Verdict(True, True, True)),
        (SLO(ttft_ms=2000, tpot_ms=400), Verdict(True, False, False)),
    ],
)
def test_objectives_are_judged_one_by_one_and_together(slo: SLO | None, verdict: Verdict) -> None:
    assert judge(slo, timing(), LENGTH) == verdict
    assert judge(slo, timing(), STOP) == verdict


def test_a_failure_is_never_good() -> None:
    assert judge(None, timing(), ERROR) == Verdict(None, None, False)
    assert judge(SLO(ttft_ms=5000), timing(), ERROR) == Verdict(True, None, False)


def test_a_request_that_was_given_up_is_not_judged() -> None:
    assert judge(SLO(ttft_ms=1), timing(), ABORT) is None


def test_no_token_at_all_is_late_and_one_alone_is_never_slow() -> None:
    nothing, one = RequestTiming(10.0), RequestTiming(10.0)
    one.record_tokens(1, 10.1)
    slo = SLO(ttft_ms=1000, tpot_ms=1)
    assert judge(slo, nothing, ERROR) == Verdict(False, True, False)
    assert judge(slo, one, LENGTH) == Verdict(True, True, True)


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


def test_a_failure_meets_no_objectives() -> None:
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
