"""The peak is measured in a short time and only once; what is given is not measured."""

import subprocess
import sys
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from archerfish.machine import measure
from archerfish.machine.measure import measure_peak
from archerfish.machine.peak import Peak


def test_a_given_peak_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measured_flops", None)
    monkeypatch.setattr(measure, "measured_bandwidth", None)
    assert measure_peak("bfloat16", "cuda", flops=1e15, bandwidth=4e12) == Peak(1e15, 4e12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_measured_peak_is_plausible_and_measured_once(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure_peak(dtype, "cpu")
    assert 1e8 < found.flops < 1e16
    assert 1e8 < found.bandwidth < 1e14
    monkeypatch.setattr(measure, "_time_matmul", None)
    monkeypatch.setattr(measure, "read_bandwidth", None)
    assert measure_peak(dtype, "cpu") == found


def test_measuring_ends_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that is 10 ms later whenever it is read."""
    readings, sides = count(), []

    def time_matmul(left: torch.Tensor, _: torch.Tensor) -> float:
        sides.append(len(left))
        return 1e-3 * (len(left) / 256) ** 3

    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: 0.01 * next(readings)))
    monkeypatch.setattr(measure, "_time_matmul", time_matmul)
    assert measure.measured_flops.__wrapped__("float32", "cpu") == 2.0 * 256**3 / 1e-3
    assert sides[:7] == [256, 256, 256, 512, 512, 1024, 1024], "one of 2048 would not fit into the time that is left"
    assert next(readings) <= 32


def test_the_service_never_sees_torch() -> None:
    modules = "archerfish.metrics.service, archerfish.metrics.state, archerfish.machine.measure"
    script = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
