"""Stores which tiles of a GEMM were measured to be the fastest on this GPU, for later processes.

A stored choice counts only if it is among the candidates of the caller, and candidates differ in nothing that changes
bits: the number of splits of K belongs to the matrix, not to tiles. So a choice can make a GEMM faster or slower, and
never changes its result.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import triton

from archerfish.disk_cache import DiskCache
from archerfish.ops.triton.runtime.kernel_launch import INTERPRETED

_SOURCES = Path(__file__).parents[1]
_FEW_ROWS = 8
"""No tile has fewer rows."""

_BY_FAR = 0.9
"""Candidates must take less than this share of the current tiles' time to replace them."""

Candidate = TypeVar("Candidate", bound=tuple[Any, ...])


class GemmShape(NamedTuple):
    """The shape of a GEMM that tiles are chosen for."""

    num_rows: int
    num_outputs: int
    """Outputs of the matrix, gates included."""
    num_inputs: int
    is_gated: bool = False

    @property
    def name(self) -> str:
        """Key of the shape in the store. Numbers of rows count up to the next power of two, as their tiles do."""
        rows = max(_FEW_ROWS, triton.next_power_of_2(self.num_rows))
        return f"{self.num_outputs} x {self.num_inputs}{' gated' if self.is_gated else ''}, {rows} rows"


class TunedGemm(NamedTuple):
    """The best tiles of a GEMM, and its time before and after tuning."""

    shape: GemmShape
    best: tuple[Any, ...]
    seconds_before: float
    seconds: float


def stored_tiles(shape: GemmShape, candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the candidate that was measured to be the fastest on this GPU, or None."""
    if INTERPRETED:
        return None
    choice = _choices().get(_key(shape))
    return next((candidate for candidate in candidates if list(candidate) == choice), None)


def tune_gemm(shape: GemmShape, candidates: Sequence[Candidate], seconds_of: Callable[[Candidate], float]) -> TunedGemm:
    """Measure all candidates, the current one first, and store the fastest, or the current one if the gain is small.

    GEMMs are measured alone. Among a model's other kernels a small gain can be a loss.
    """
    seconds = [seconds_of(candidate) for candidate in candidates]
    fastest = min(range(len(seconds)), key=seconds.__getitem__)
    if seconds[fastest] > _BY_FAR * seconds[0]:
        fastest = 0
    _choices().put(_key(shape), list(candidates[fastest]))
    return TunedGemm(shape, candidates[fastest], seconds[0], seconds[fastest])


@cache
def kernel_version() -> str:
    """Return a hash of all kernels' sources and Triton's version: measurements of another version do not count."""
    digest = hashlib.sha256(triton.__version__.encode())
    for path in sorted(_SOURCES.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _choices() -> DiskCache:
    return DiskCache("tiles", kernel_version())


def _key(shape: GemmShape) -> str:
    return f"{_device_name()}: {shape.name}"


@cache
def _device_name() -> str:
    return torch.cuda.get_device_name()
