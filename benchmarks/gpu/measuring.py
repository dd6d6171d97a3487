"""Times work on a GPU, and prints rows of a table as they are measured."""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    row: str
    value: float
    goal: float | None = None
    mbu: float | None = None
    """Share of the bandwidth that memory was read with in the same process."""
    mfu: float | None = None
    """Share of the vendor's peak for the dtype."""
    note: str = ""

    def emit(self) -> None:
        """Print the row as JSON to standard output."""
        print(json.dumps(asdict(self)), flush=True)


def median(measure: Callable[[], float]) -> float:
    """Return the median of five measurements, after a warm-up."""
    measure()
    return statistics.median(measure() for _ in range(_REPEATS))


def timed(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def timed_in_graph(work: Callable[[], Any]) -> float:
    """Return the seconds of work that is captured in a graph and replayed five times."""
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = work()
    seconds = median(lambda: timed(lambda: [graph.replay() for _ in range(5)]) / 5)
    del outputs
    return seconds


def read_bandwidth() -> float:
    """Return the bytes per second of the fastest read: a sum over more than any cache holds."""
    bandwidth = _bandwidth_of_sum(torch.ones(2**31, device="cuda"))
    torch.cuda.empty_cache()  # Engines allocate the free memory.
    return bandwidth


def _bandwidth_of_sum(numbers: torch.Tensor) -> float:
    return numbers.nbytes / median(lambda: timed(numbers.sum))
