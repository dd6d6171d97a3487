"""When requests come: the right rate, the right spread, the same for the same seed."""

import numpy as np
import pytest

from archerfish.bench.serve import arrivals


def test_constant_and_at_once() -> None:
    assert arrivals.constant(4, 2.0).tolist() == [0.0, 0.5, 1.0, 1.5]
    assert arrivals.at_once(3).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_has_its_rate_and_its_spread(burstiness: float) -> None:
    times = arrivals.gamma(20_000, 10.0, burstiness, seed=1)
    gaps = np.diff(times)
    assert times[0] == 0 and gaps.min() >= 0
    assert gaps.mean() == pytest.approx(0.1)
    # A gamma distribution of shape k varies by 1 / sqrt(k) of its mean; a Poisson process by all of it.
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_few_requests_come_at_their_rate_too() -> None:
    assert arrivals.gamma(11, 2.0, 0.5, seed=3)[-1] == pytest.approx(5.0)
    assert arrivals.gamma(1, 2.0, 0.5, seed=3).tolist() == [0.0]
    assert arrivals.gamma(0, 2.0, 0.5, seed=3).tolist() == []


def test_the_same_seed_gives_the_same_times() -> None:
    assert arrivals.gamma(50, 3.0, 1.0, seed=4).tolist() == arrivals.gamma(50, 3.0, 1.0, seed=4).tolist()
    assert arrivals.gamma(50, 3.0, 1.0, seed=4).tolist() != arrivals.gamma(50, 3.0, 1.0, seed=5).tolist()


@pytest.mark.parametrize(("growth", "middle"), [("linear", 5.5), ("exponential", 10**0.5)])
def test_a_ramp_goes_from_one_rate_to_the_other(growth: str, middle: float) -> None:
    gaps = np.diff(arrivals.ramp(10_001, (1.0, 10.0), 1000.0, seed=0, growth=growth))
    assert 1 / gaps[:100].mean() == pytest.approx(1.0, rel=0.1)
    assert 1 / gaps[4950:5050].mean() == pytest.approx(middle, rel=0.05)
    assert 1 / gaps[-100:].mean() == pytest.approx(10.0, rel=0.1)


def test_a_trace_is_played_again_at_another_speed() -> None:
    assert arrivals.replay([100.0, 100.5, 103.0], 2.0).tolist() == [0.0, 1.0, 6.0]
    assert arrivals.replay([], 2.0).tolist() == []
