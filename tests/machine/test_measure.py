"""The peak is measured in a short time and only once; what is given is not measured."""

import subprocess
import sys
import time

import pytest

from archerfish.machine import measure
from archerfish.machine.measure import measure_peak
from archerfish.machine.peak import Peak


def test_a_given_peak_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measured_flops", None)
    monkeypatch.setattr(measure, "measured_bandwidth", None)
    assert measure_peak("bfloat16", "cuda", flops=1e15, bandwidth=4e12) == Peak(1e15, 4e12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_measured_peak_is_plausible_quick_and_kept(dtype: str) -> None:
    started = time.perf_counter()
    found = measure_peak(dtype, "cpu")
    assert time.perf_counter() - started < 5  # Under a second where nobody else computes.
    assert 1e8 < found.flops < 1e16
    assert 1e8 < found.bandwidth < 1e14
    started = time.perf_counter()
    assert measure_peak(dtype, "cpu") == found
    assert time.perf_counter() - started < 0.01


def test_the_service_never_sees_torch() -> None:
    modules = "archerfish.metrics.service, archerfish.metrics.state, archerfish.machine.measure"
    script = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
