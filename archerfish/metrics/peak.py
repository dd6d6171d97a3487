"""Measures what a device can do at most: operations per second, and bytes read per second. Knows no model.

Takes under a second in all, and once in a process: to be run when there is nothing better to do. Torch is imported only
by whoever measures.
"""

import time
from functools import cache
from typing import TYPE_CHECKING

from archerfish.machine import available_memory
from archerfish.metrics.state import Peak

if TYPE_CHECKING:
    import torch

_SECONDS = 0.3  # For each of the two; what comes before and after stays well below as much again.
_CPU_SAMPLE = 256 << 20
_GPU_SAMPLE = 4 << 30  # A GPU reads so fast that starting the kernel would count in a smaller one.
_SAMPLE_SHARE = 4  # A sample takes at most this part of what is free.
_SMALLEST, _LARGEST = 256, 8192
"""Sides of the matrices: large enough to keep the device busy, small enough for the time there is."""


def measure_peak(dtype: str, device: str, *, flops: float | None = None, bandwidth: float | None = None) -> Peak:
    """The peak of a device ("cpu", "cuda") in a number format ("bfloat16"). What is given is taken as it is."""
    return Peak(
        flops=measured_flops(dtype, device) if flops is None else flops,
        bandwidth=measured_bandwidth(device) if bandwidth is None else bandwidth,
    )


@cache
def measured_flops(dtype: str, device: str) -> float:
    """Of the best of many matrix products, which is what the device can do when nobody disturbs it."""
    import torch

    def matrix(size: int) -> torch.Tensor:
        return torch.rand(size, size, dtype=getattr(torch, dtype), device=device)

    size, best = _SMALLEST, 0.0
    with torch.inference_mode():
        _time_product(matrix(size), matrix(size))  # Libraries are loaded, threads and clocks wake up.
        ends = time.perf_counter() + _SECONDS
        while True:
            left, right = matrix(size), matrix(size)
            # Twice, because the first of a size also chooses a kernel.
            seconds = min(_time_product(left, right) for _ in range(2))
            best = max(best, 2.0 * size**3 / seconds)
            # The next size takes eight times as long, or less where a busy neighbour held up this one.
            if size >= _LARGEST or time.perf_counter() + 2 * 8 * seconds > ends:
                break
            size *= 2
        while time.perf_counter() + seconds < ends:
            seconds = _time_product(left, right)
            best = max(best, 2.0 * size**3 / seconds)
    return best


@cache
def measured_bandwidth(device: str) -> float:
    """Bytes per second, reading a stretch of memory from end to end."""
    import torch

    from archerfish.metrics.bandwidth import read_bandwidth

    if device == "cpu":
        return read_bandwidth(min(_CPU_SAMPLE, available_memory() // _SAMPLE_SHARE), seconds=_SECONDS)
    free, _ = torch.cuda.mem_get_info(device)
    return read_bandwidth(min(_GPU_SAMPLE, free // _SAMPLE_SHARE), device=device, seconds=_SECONDS)


def _time_product(left: "torch.Tensor", right: "torch.Tensor") -> float:
    started = time.perf_counter()
    product = left @ right
    product[0, 0].item()  # Asking for a value waits for a GPU to finish.
    return time.perf_counter() - started
