"""Mean, spread and percentiles, by hand and against numpy."""

import numpy as np
import pytest

from archerfish.bench.distribution import distribution


def test_one_slow_request_of_ten_moves_the_mean_but_not_the_median() -> None:
    found = distribution([0.1] * 9 + [3.0], (50, 90, 99))
    assert found is not None
    assert found.mean == pytest.approx(0.39)
    assert (found.median, found.percentile(50)) == (0.1, 0.1)
    # Interpolated: a tenth of the way from the ninth value to the tenth.
    assert found.percentile(90) == pytest.approx(0.39)
    assert found.percentile(99) == pytest.approx(2.739)
    assert (found.smallest, found.largest, found.count) == (0.1, 3.0, 10)


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_the_same_as_numpy(count: int) -> None:
    values = np.random.default_rng(count).lognormal(size=count)
    found = distribution(values.tolist(), (0, 50, 90, 95, 99, 99.9, 100))
    assert found is not None
    for one in found.percentiles:
        assert one.value == pytest.approx(np.percentile(values, one.percent))
    assert (found.mean, found.deviation) == (pytest.approx(values.mean()), pytest.approx(values.std()))


def test_nothing_has_no_distribution() -> None:
    assert distribution([]) is None
