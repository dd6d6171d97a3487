"""What steps take is learned, never falls with more tokens, and is told for sizes that were never seen."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.speculation.step_latency import StepLatencyModel


def test_what_was_measured_is_returned_and_interpolated() -> None:
    times = StepLatencyModel()
    assert not times
    times.record(2, 1.0)
    times.record(5, 4.0)
    assert times
    assert times.seconds(2) == 1.0 and times.seconds(5) == 4.0
    assert times.seconds(3) == pytest.approx(2.0)
    assert times.seconds(7) == pytest.approx(6.0), "it goes on as it went last"


def test_with_one_size_alone_more_tokens_are_taken_to_cost_something() -> None:
    times = StepLatencyModel()
    times.record(4, 1.0)
    assert 1.0 < times.seconds(5) < times.seconds(8)
    assert 0.0 < times.seconds(1) < 1.0


def test_a_size_far_away_does_not_keep_from_trying() -> None:
    times = StepLatencyModel()
    times.record(1, 1.0)
    times.record(48, 80.0)
    assert times.seconds(2) == pytest.approx(1.2)
    times.record(2, 2.5)
    assert times.seconds(2) == 2.5, "what was tried is known"


def test_what_took_too_long_once_is_tried_again() -> None:
    times = StepLatencyModel()
    for _ in range(3):
        times.record(4, 1.0)
        times.record(8, 1.4)
    times.record(32, 9.0)
    times.record(100, 20.0)
    assert times.seconds(32) == pytest.approx(3.8), "as it goes on from what is known well"
    assert times.seconds(100) == pytest.approx(20.0, rel=0.05), "of what is far away that says nothing"
    times.record(32, 3.0)
    assert times.seconds(32) == 3.0
    times.record(32, 5.0)
    for _ in range(200):
        times.record(32, 5.0)
    assert times.seconds(32) == pytest.approx(5.0, rel=0.01)


def test_new_measurements_move_it_the_less_the_more_there_were() -> None:
    times = StepLatencyModel()
    for seconds in (5.0, 1.0, 1.2):
        times.record(2, seconds)
    assert times.seconds(2) == 1.0, "a cold start is forgotten"
    times.record(2, 2.0)
    assert times.seconds(2) == pytest.approx(1.25)
    for _ in range(300):
        times.record(2, 2.0)
    assert times.seconds(2) == pytest.approx(2.0, rel=0.01)
    times.record(2, 3.0)
    assert times.seconds(2) == pytest.approx(2.0, rel=0.02)


def test_what_is_expected_stands_until_there_is_a_step_and_then_says_what_others_differ_by() -> None:
    times = StepLatencyModel()
    for num_tokens, seconds in ((1, 3.0), (1, 1.0), (2, 1.5), (4, 2.0)):
        times.expect(num_tokens, seconds)
    assert times and times.seconds(1) == 1.0 and times.seconds(4) == 2.0
    for _ in range(4):
        times.record(1, 9.0)
    assert times.seconds(1) == 1.0, "the first time everything takes longer"
    times.record(1, 1.5)
    assert times.seconds(1) == 1.5 and times.seconds(2) == 2.0 and times.seconds(4) == 2.5
    times.record(4, 1.0)
    assert times.seconds(2) == pytest.approx(1.5, rel=0.2), "steps take longer than what is like them"


def test_sizes_that_contradict_each_other_count_as_much_as_is_known_of_them() -> None:
    times = StepLatencyModel()
    for _ in range(9):
        times.record(4, 2.0)
    for _ in range(3):
        times.record(5, 1.0)
    assert times.seconds(4) == times.seconds(5) == pytest.approx(1.75)


def test_many_tokens_share_sizes() -> None:
    times = StepLatencyModel()
    times.record(100, 1.0)
    times.record(103, 1.03)
    assert times.seconds(96) == pytest.approx(0.96, rel=0.01)


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(1e-4, 10.0)), min_size=1, max_size=30))
def test_more_tokens_never_take_less_time(steps: list[tuple[int, float]]) -> None:
    times = StepLatencyModel()
    for num_tokens, seconds in steps:
        times.record(num_tokens, seconds)
    told = [times.seconds(num_tokens) for num_tokens in range(min(n for n, _ in steps), 320)]
    assert all(before <= after * (1 + 1e-9) for before, after in pairwise(told))
