"""Measures how fast memory can be read, the bound on every decoding step. Knows no model."""

import time

import numpy as np
import torch

_LONGEST = 0.7  # Seconds; the best of many short runs is what the machine can do when nobody disturbs it.
_FEWEST_RUNS = 3


def read_bandwidth(
    num_bytes: int, *, device: str = "cpu", num_threads: int | None = None, seconds: float | None = None
) -> float:
    """Bytes per second, summing a buffer that should be many times the caches. Takes about a second, or as told."""
    longest = _LONGEST if seconds is None else seconds
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or before)
    try:
        # Through numpy, which asks for huge pages, as weights have them: without, looking pages up would count too.
        buffer = torch.from_numpy(np.ones(num_bytes // 4, np.float32)).to(device)
        _time_one_run(buffer)  # The first run also wakes the threads, and a GPU's clock.
        started = time.perf_counter()
        runs: list[float] = []
        while len(runs) < _FEWEST_RUNS or time.perf_counter() - started < longest:
            runs.append(_time_one_run(buffer))
        return buffer.nbytes / min(runs)
    finally:
        torch.set_num_threads(before)


def _time_one_run(buffer: torch.Tensor) -> float:
    started = time.perf_counter()
    # Asking for the value waits for a GPU to finish.
    buffer.sum().item()
    return time.perf_counter() - started
