"""Shares of a peak, against sums worked out by hand."""

import pytest

from archerfish.machine.peak import Peak
from archerfish.metrics.utilization import Work, prefill_share, utilization


def _decode(num_tokens: int, bytes_per_token: float) -> Work:
    return Work(prefill_flops=0, decode_flops=0, prefill_bytes=0, decode_bytes=num_tokens * bytes_per_token)


@pytest.mark.parametrize(
    ("tokens_per_second", "bandwidth", "mbu"), [(100, 2e12, 0.70), (50, 2e12, 0.35), (100, 4e12, 0.35)]
)
def test_seven_billion_weights_of_two_bytes_are_read_for_every_token(
    tokens_per_second: int, bandwidth: float, mbu: float
) -> None:
    found = utilization(_decode(tokens_per_second, 7e9 * 2), 1.0, Peak(1e15, bandwidth))
    assert found.decode_mbu == found.mbu == pytest.approx(mbu)


def test_phases_add_up() -> None:
    work = Work(prefill_flops=3e12, decode_flops=1e12, prefill_bytes=1e9, decode_bytes=5e9)
    found = utilization(work, 2.0, Peak(4e12, 10e9))
    assert (found.prefill_mfu, found.decode_mfu, found.mfu) == pytest.approx((0.375, 0.125, 0.5))
    assert (found.prefill_mbu, found.decode_mbu, found.mbu) == pytest.approx((0.05, 0.25, 0.3))


def test_each_phase_takes_the_time_that_its_roof_demands() -> None:
    """Prefill 0.75 s of operations, decode 0.5 s of reading."""
    work = Work(prefill_flops=3e12, decode_flops=1e12, prefill_bytes=1e9, decode_bytes=5e9)
    assert prefill_share(work, Peak(4e12, 10e9)) == pytest.approx(0.6)
    assert prefill_share(_decode(0, 1.0), Peak(4e12, 10e9)) is None
