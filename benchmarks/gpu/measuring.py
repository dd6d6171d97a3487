"""Times on a GPU, and rows of a table told as they are measured. Knows no model."""

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
    """Share of the operations that the maker names for the number format."""
    note: str = ""

    def tell(self) -> None:
        """To whoever reads standard output, at once."""
        print(json.dumps(asdict(self)), flush=True)


def median(measure: Callable[[], float]) -> float:
    """Of five, after one that warms up."""
    measure()
    return statistics.median(measure() for _ in range(_REPEATS))


def timed(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def timed_in_graph(work: Callable[[], Any]) -> float:
    """Of work that was captured, and is replayed five times."""
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = work()
    seconds = median(lambda: timed(lambda: [graph.replay() for _ in range(5)]) / 5)
    del kept
    return seconds


def read_bandwidth() -> float:
    """Bytes a second, of the fastest read there is: a sum over more than any cache holds."""
    bandwidth = _bandwidth_of_sum(torch.ones(2**31, device="cuda"))
    torch.cuda.empty_cache()  # Engines take what memory is free.
    return bandwidth


def _bandwidth_of_sum(numbers: torch.Tensor) -> float:
    return numbers.nbytes / median(lambda: timed(numbers.sum))
