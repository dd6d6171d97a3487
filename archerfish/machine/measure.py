"""Measures what a device can do at most: floating-point operations per second, and bytes read per second.

Takes under a second in all, and once in a process: best run when the machine is idle. Torch is imported only when
something is measured.
"""

import time
from functools import cache
from typing import TYPE_CHECKING

from archerfish.machine.memory import available_memory
from archerfish.machine.peak import Peak

if TYPE_CHECKING:
    import torch

_SECONDS = 0.3
"""Duration of each of the two measurements of a peak. Their preparation takes less than as much again."""
_BANDWIDTH_SECONDS = 0.7
"""Default duration of a bandwidth measurement: the best of many short runs is what an idle machine can do."""
_MIN_RUNS = 3
_CPU_SAMPLE_BYTES = 256 << 20
_GPU_SAMPLE_BYTES = 4 << 30
"""A GPU reads so fast that the kernel's launch would count in a smaller sample."""
_SAMPLE_SHARE = 4
"""A sample takes at most one part in so many of the free memory."""
_SMALLEST, _LARGEST = 256, 8192
"""Sides of the matrices: large enough to keep the device busy, small enough for the time there is."""


def measure_peak(dtype: str, device: str, *, flops: float | None = None, bandwidth: float | None = None) -> Peak:
    """Return the peak of a device ("cpu", "cuda") in a number format ("bfloat16"). Given values are not measured."""
    return Peak(
        flops=measured_flops(dtype, device) if flops is None else flops,
        bandwidth=measured_bandwidth(device) if bandwidth is None else bandwidth,
    )


@cache
def measured_flops(dtype: str, device: str) -> float:
    """Return the operations per second of the fastest of many matrix multiplications."""
    import torch

    def matrix(size: int) -> torch.Tensor:
        return torch.rand(size, size, dtype=getattr(torch, dtype), device=device)

    size, best = _SMALLEST, 0.0
    with torch.inference_mode():
        _time_matmul(matrix(size), matrix(size))  # Libraries are loaded, threads and clocks wake up.
        end = time.perf_counter() + _SECONDS
        while True:
            left, right = matrix(size), matrix(size)
            # Twice, because the first of a size also chooses a kernel.
            seconds = min(_time_matmul(left, right) for _ in range(2))
            best = max(best, 2.0 * size**3 / seconds)
            # The next size takes eight times as long, or less where a busy neighbour slowed this one down.
            if size >= _LARGEST or time.perf_counter() + 2 * 8 * seconds > end:
                break
            size *= 2
        while time.perf_counter() + seconds < end:
            seconds = _time_matmul(left, right)
            best = max(best, 2.0 * size**3 / seconds)
    return best


@cache
def measured_bandwidth(device: str) -> float:
    """Return the bytes per second at which a device reads its memory from end to end."""
    import torch

    if device == "cpu":
        return read_bandwidth(min(_CPU_SAMPLE_BYTES, available_memory() // _SAMPLE_SHARE), seconds=_SECONDS)
    free, _ = torch.cuda.mem_get_info(device)
    return read_bandwidth(min(_GPU_SAMPLE_BYTES, free // _SAMPLE_SHARE), device=device, seconds=_SECONDS)


def read_bandwidth(
    num_bytes: int, *, device: str = "cpu", num_threads: int | None = None, seconds: float | None = None
) -> float:
    """Return the bytes per second of summing a buffer, which should be many times as large as the caches."""
    import numpy as np
    import torch

    longest = _BANDWIDTH_SECONDS if seconds is None else seconds
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or before)
    try:
        # Through numpy, which requests huge pages, as weights have them: otherwise page lookups would count, too.
        buffer = torch.from_numpy(np.ones(num_bytes // 4, np.float32)).to(device)
        _time_sum(buffer)  # The first run also wakes the threads, and a GPU's clock.
        started = time.perf_counter()
        runs: list[float] = []
        while len(runs) < _MIN_RUNS or time.perf_counter() - started < longest:
            runs.append(_time_sum(buffer))
        return buffer.nbytes / min(runs)
    finally:
        torch.set_num_threads(before)


def _time_sum(buffer: "torch.Tensor") -> float:
    started = time.perf_counter()
    # Reading the value waits for a GPU to finish.
    buffer.sum().item()
    return time.perf_counter() - started


def _time_matmul(left: "torch.Tensor", right: "torch.Tensor") -> float:
    started = time.perf_counter()
    output = left @ right
    output[0, 0].item()  # Reading a value waits for a GPU to finish.
    return time.perf_counter() - started
