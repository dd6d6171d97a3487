"""Times every implementation of every operation against the machine's roofline. Knows no shapes and prints nothing."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from archerfish.bench.kernels.cases import KernelCase
from archerfish.bench.kernels.roofs import Roofs
from archerfish.ops.choose import Implementation, KernelTarget
from archerfish.ops.packed import PackedExperts, PackedWeight
from archerfish.ops.signatures import LayerCache, Ops

_ROTATED_BYTES = 256 << 20
"""Bytes of the inputs that calls use in turn: as in a model, a call does not read what the last one left in a cache."""
_LEAST_TIMED = 1e-3
"""Seconds; shorter calls are timed several together."""

_HAVE_BYTES = (torch.Tensor, PackedWeight, PackedExperts, LayerCache)

Progress = Callable[[float], None]
"""Called with the cases done so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTiming:
    """The timing of one implementation at one shape."""

    operation: str
    shape: str
    format: str | None
    """Format of quantized matrices; None for those in the model's own format, and for operations without matrices."""
    kernel: str
    seconds: float
    """Fastest of many calls: other load on the machine only adds time."""
    flops_per_second: float | None
    """Operations per second; None where only memory counts."""
    bytes_per_second: float
    roof_share: float
    """Time at the measured peak / measured time. Above 1 if inputs stay in the caches."""
    limit: str
    """What bounds this shape at the peak: compute or bandwidth."""
    ratio: float = 1.0
    """Time / time of the fastest implementation."""


@dataclass(frozen=True, slots=True)
class KernelRefusal:
    """An implementation that does not run here, and the reason."""

    operation: str
    kernel: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBenchReport:
    integer_flops: float | None
    """Measured peak of integer GEMMs; None if nothing is quantized here."""
    timings: tuple[KernelTiming, ...]
    refusals: tuple[KernelRefusal, ...]
    unused: tuple[str, ...]
    """Operations that were not timed, because the model does not use them or they were left out."""


class KernelTimer:
    """Times calls on one device, for about so many seconds each."""

    def __init__(self, device: str, seconds: float) -> None:
        self._device = device
        self._seconds = seconds

    def best(self, function: Callable[..., Any], inputs: Sequence[tuple[Any, ...]]) -> float:
        """Return the seconds of the fastest call. Calls use the inputs in turn."""
        for arguments in inputs:  # Loads libraries, compiles kernels, touches memory.
            function(*arguments)
        once = self._time(function, inputs, 1)
        count = max(1, round(_LEAST_TIMED / max(once, 1e-9)))
        best, ends = once, time.perf_counter() + self._seconds
        while time.perf_counter() < ends:
            best = min(best, self._time(function, inputs, count))
        return best

    def _time(self, function: Callable[..., Any], inputs: Sequence[tuple[Any, ...]], count: int) -> float:
        """Return the mean seconds of a call over so many rounds of all inputs."""
        self._wait()
        started = time.perf_counter()
        for _ in range(count):
            for arguments in inputs:
                function(*arguments)
        self._wait()
        return (time.perf_counter() - started) / (count * len(inputs))

    def _wait(self) -> None:
        if self._device != "cpu":
            torch.cuda.synchronize()


@torch.inference_mode()
def measure_kernels(
    cases: Sequence[KernelCase],
    implementations: Iterable[Implementation],
    target: KernelTarget,
    roofs: Roofs,
    stopwatch: KernelTimer,
    most_inputs: int,
    progress: Progress = lambda _: None,
) -> KernelBenchReport:
    """Time every case with every implementation that supports the target.

    `most_inputs` limits how many inputs of a case calls use in turn, as layers do in a model.
    """
    supported, refusals = _sort_out(implementations, target)
    timings: list[KernelTiming] = []
    for done, case in enumerate(cases, 1):
        inputs = _make_inputs(case, most_inputs)  # The same for every implementation.
        timings += _compare(
            [
                _timing(
                    case,
                    kernel.name,
                    stopwatch.best(kernel.function, [kernel.adapt(*arguments) for arguments in inputs]),
                    roofs,
                )
                for kernel in supported
                if kernel.operation == case.operation and (case.format is None or kernel.takes_packed)
            ]
        )
        progress(done)
    used = {case.operation for case in cases}
    unused = tuple(field.name for field in fields(Ops) if field.name not in used)
    return KernelBenchReport(
        integer_flops=roofs.integer_flops, timings=tuple(timings), refusals=tuple(refusals), unused=unused
    )


def _make_inputs(case: KernelCase, most: int) -> list[tuple[Any, ...]]:
    first = case.make()
    num_bytes = sum(argument.nbytes for argument in first if isinstance(argument, _HAVE_BYTES))
    return [first, *(case.make() for _ in range(min(most, _ROTATED_BYTES // num_bytes) - 1))]


def _sort_out(
    implementations: Iterable[Implementation], target: KernelTarget
) -> tuple[list[Implementation], list[KernelRefusal]]:
    supported, refusals = [], []
    for kernel in implementations:
        reason = kernel.supports(target)
        if reason is None:
            supported.append(kernel)
        else:
            refusals.append(KernelRefusal(kernel.operation, kernel.name, reason))
    return supported, refusals


def _timing(case: KernelCase, kernel: str, seconds: float, roofs: Roofs) -> KernelTiming:
    computing, reading = case.flops / roofs.flops(case), case.num_bytes / roofs.peak.bandwidth
    return KernelTiming(
        operation=case.operation,
        shape=case.shape,
        format=case.format,
        kernel=kernel,
        seconds=seconds,
        flops_per_second=case.flops / seconds if case.flops else None,
        bytes_per_second=case.num_bytes / seconds,
        roof_share=max(computing, reading) / seconds,
        limit="compute" if computing > reading else "bandwidth",
    )


def _compare(timings: list[KernelTiming]) -> list[KernelTiming]:
    """Return timings with their ratios to the fastest, fastest first."""
    ordered = sorted(timings, key=lambda timing: timing.seconds)
    return [replace(timing, ratio=timing.seconds / ordered[0].seconds) for timing in ordered]
