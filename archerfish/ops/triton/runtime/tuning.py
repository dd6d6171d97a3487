"""Which way of cutting a product was fastest on this GPU, kept from one process to the next. Knows no kernel.

A stored choice counts only if it is among the candidates that whoever asks would have measured, and a candidate says
nothing that enters the bits: into how many parts K is cut is a property of the matrix, for which tiles have no word. So
a choice can make a product slower or faster, never another one.
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
"""No tile has fewer."""

_BY_FAR = 0.9
"""Of the time it took before."""

Candidate = TypeVar("Candidate", bound=tuple[Any, ...])


class Product(NamedTuple):
    """What tiles are chosen for."""

    num_rows: int
    num_outputs: int
    """Of the matrix, gates among them."""
    num_inputs: int
    is_gated: bool = False

    @property
    def name(self) -> str:
        """Numbers of rows are told apart as far as their tiles are: by the next power of two."""
        rows = max(_FEW_ROWS, triton.next_power_of_2(self.num_rows))
        return f"{self.num_outputs} x {self.num_inputs}{' gated' if self.is_gated else ''}, {rows} rows"


class Tuned(NamedTuple):
    """How long a product took, as it was cut before and as it is cut best."""

    product: Product
    best: tuple[Any, ...]
    seconds_before: float
    seconds: float


def stored(product: Product, candidates: Sequence[Candidate]) -> Candidate | None:
    """The one that was the fastest on this GPU, if that was measured."""
    if INTERPRETED:
        return None
    found = _choices().get(_key(product))
    return next((candidate for candidate in candidates if list(candidate) == found), None)


def tune(product: Product, candidates: Sequence[Candidate], seconds_of: Callable[[Candidate], float]) -> Tuned:
    """Measure all, the one that is used now first; keep the fastest, if it is so by far.

    Products are measured by themselves. Between a model's other kernels a small gain can be a loss.
    """
    seconds = [seconds_of(candidate) for candidate in candidates]
    fastest = min(range(len(seconds)), key=seconds.__getitem__)
    if seconds[fastest] > _BY_FAR * seconds[0]:
        fastest = 0
    _choices().put(_key(product), list(candidates[fastest]))
    return Tuned(product, candidates[fastest], seconds[0], seconds[fastest])


@cache
def kernel_version() -> str:
    """Of the kernels here and of what compiles them: whatever was measured with another one says nothing."""
    digest = hashlib.sha256(triton.__version__.encode())
    for path in sorted(_SOURCES.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _choices() -> DiskCache:
    return DiskCache("tiles", kernel_version())


def _key(product: Product) -> str:
    return f"{_device_name()}: {product.name}"


@cache
def _device_name() -> str:
    return torch.cuda.get_device_name()
