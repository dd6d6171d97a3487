"""Recent values and sums are those of the last seconds, to the second."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.metrics.aggregates import Histogram, RecentSums, RecentValues
from tests.lanes import examples


def test_quantiles_lie_between_neighbours() -> None:
    values = RecentValues(60)
    values.extend(range(1, 102), 5.0)
    assert values.quantiles((0.0, 0.5, 0.9, 0.99, 1.0), 5.0) == [1.0, 51.0, 91.0, 100.0, 101.0]
    values.add(102.0, 5.5)
    assert values.quantiles((0.5,), 6.0) == [51.5]


def test_without_values_there_are_no_quantiles() -> None:
    assert RecentValues(60).quantiles((0.5,), 0.0) is None


def test_values_are_forgotten_after_the_window() -> None:
    values = RecentValues(60)
    values.add(1.0, 10.2)
    values.add(3.0, 40.0)
    assert values.quantiles((0.5,), 69.9) == [2.0]
    assert values.quantiles((0.5,), 70.0) == [3.0]
    assert values.quantiles((0.5,), 100.0) is None


def test_of_very_many_values_a_sample_is_near() -> None:
    values = RecentValues(60)
    for second in range(50):
        values.extend(np.linspace(0, 1, 4000), float(second))
    found = values.quantiles((0.5, 0.9, 0.99), 50.0)
    assert found == pytest.approx([0.5, 0.9, 0.99], abs=0.01)
    assert found == values.quantiles((0.5, 0.9, 0.99), 50.0), "the same values give the same answer"


def test_a_rate_is_over_the_time_there_was() -> None:
    sums = RecentSums(2, 60, start=100.0)
    assert sums.over(10, 100.0).rate(0) == 0.0
    sums.add((6, 1), 100.5)
    sums.add((4, 1), 101.9)
    span = sums.over(10, 102.0)
    assert (span.sums, span.seconds) == ([10, 2], 2.0)
    assert span.rate(0) == 5.0


def test_a_rate_is_over_the_window_once_there_was_more() -> None:
    sums = RecentSums(1, 60, start=0.0)
    for second in range(100):
        sums.add((second,), second + 0.25)
    # The seconds from 90 on, of which the last has only begun.
    span = sums.over(10, 99.5)
    assert (span.sums, span.seconds) == ([sum(range(90, 100))], 9.5)
    span = sums.over(60, 99.5)
    assert (span.sums, span.seconds) == ([sum(range(40, 100))], 59.5)


def test_time_that_stands_still_or_is_told_late_loses_nothing() -> None:
    sums, values = RecentSums(1, 60, start=0.0), RecentValues(60)
    for now in (5.0, 5.0, 4.9, 6.0):
        sums.add((1,), now)
        values.add(now, now)
    assert sums.over(60, 6.0).sums == [4]
    assert values.quantiles((0.0, 1.0), 6.0) == [4.9, 6.0]


def test_a_value_on_the_bound_belongs_to_it() -> None:
    histogram = Histogram((1.0, 2.0, 5.0))
    for value in (0.5, 1.0, 1.5, 5.0, 7.0):
        histogram.observe(value)
    assert [bucket.num_values for bucket in histogram.buckets()] == [2, 3, 4, 5]
    assert (histogram.count, histogram.sum) == (5, 15.0)


@examples(50)
@given(st.lists(st.one_of(st.sampled_from([0.1, 0.25, 1.0, 4.0]), st.floats(0, 10)), max_size=100))
def test_many_at_once_are_as_one_by_one(values: list[float]) -> None:
    together, single = Histogram((0.1, 0.25, 1.0, 4.0)), Histogram((0.1, 0.25, 1.0, 4.0))
    together.observe_all(values)
    for value in values:
        single.observe(value)
    assert together.buckets() == single.buckets()
    assert together.sum == pytest.approx(single.sum)
