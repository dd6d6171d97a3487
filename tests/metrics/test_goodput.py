"""A request is good if it ended well and met all that was promised; latencies are exact on a timeline made by hand."""

import pytest

from archerfish.metrics.goodput import Verdict, judge
from archerfish.metrics.timing import RequestTiming
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
