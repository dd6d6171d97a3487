"""Measures the peak of the machine, also for the integer GEMMs of quantized matrices."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from archerfish.bench.kernels.cases import KernelCase
from archerfish.bench.kernels.matrices import QuantizedMatrices
from archerfish.machine.peak import Peak
from archerfish.ops.choose import Implementation, KernelTarget
from archerfish.quant import WeightFormat

_SECONDS = 0.3
_ROWS, _SIDE = 96, 1024
"""Sides of the matrices: large enough to keep every core busy, small enough for the caches."""


@dataclass(frozen=True, slots=True)
class Roofs:
    peak: Peak
    """Peak in the model's number format."""
    integer_flops: float | None
    """Operations per second of integer GEMMs; None if no kernel has any."""

    def flops(self, case: KernelCase) -> float:
        if case.format is None:
            return self.peak.flops
        assert self.integer_flops is not None, "kernels with quantized matrices have a roof"
        return self.integer_flops


def measure_roofs(peak: Peak, implementations: Iterable[Implementation], target: KernelTarget) -> Roofs:
    """Measure the peak. Torch's integer GEMMs are slower than its others, so our own kernel sets the integer roof."""
    packed = (
        implementation
        for implementation in implementations
        if implementation.operation == "linear" and implementation.takes_packed
    )
    linear = next((implementation for implementation in packed if implementation.supports(target) is None), None)
    if linear is None:
        return Roofs(peak, None)
    rows = torch.randn(_ROWS, _SIDE)
    matrix = QuantizedMatrices(WeightFormat(name="w8a8")).make(_SIDE, _SIDE)
    best, ends = float("inf"), time.perf_counter() + _SECONDS
    while best == float("inf") or time.perf_counter() < ends:
        started = time.perf_counter()
        linear.function(rows, matrix, None)
        best = min(best, time.perf_counter() - started)
    return Roofs(peak, 2.0 * _ROWS * _SIDE * _SIDE / best)
