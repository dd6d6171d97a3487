"""Measures the cost of one answer: the GEMMs of a layer, compared with the fastest that may add in any order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from measuring import Row, timed_in_graph
from torch import Tensor
from unordered_gemms import fitting

from archerfish.ops.triton import gemm

LAYERS = {
    "Llama-3.1-8B": [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)],
    "Llama-3.2-1B": [(3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)],
    "Qwen3-0.6B": [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)],
}
"""Outputs and inputs of each matrix."""
_MORE_THAN_A_CACHE = 600_000_000
_MANY_ROWS = (64, 256)

Multiply = Callable[[Tensor, Tensor], Tensor]


def measure_invariance() -> None:
    for shape, sizes in LAYERS.items():
        ours = cublas = best = 0.0
        for size in sizes:
            matrices = _Matrices(size)
            ours += matrices.seconds(1, _ours)
            with _free():
                library = matrices.seconds(1, _cublas)
            cublas += library
            best += min(library, *(matrices.seconds(1, kernel.multiply) for kernel in fitting(*size)))
        Row(row=f"{shape}, GEMMs of a layer, 1 row: slower than cuBLAS, %", value=_slower(ours, cublas)).emit()
        name = f"{shape}, GEMMs of a layer, 1 row: slower than the fastest, %"
        num_bytes = sum(2 * outputs * inputs for outputs, inputs in sizes)
        Row(row=name, value=_slower(ours, best), goal=3, note=f"{num_bytes / ours / 1e12:.2f} TB/s").emit()
        for num_rows in _MANY_ROWS:
            ours = sum(_Matrices(size).seconds(num_rows, _ours) for size in sizes)
            with _free():
                cublas = sum(_Matrices(size).seconds(num_rows, _cublas) for size in sizes)
            name = f"{shape}, GEMMs of a layer, {num_rows} rows: slower than cuBLAS, %"
            Row(row=name, value=_slower(ours, cublas)).emit()


def _slower(ours: float, theirs: float) -> float:
    return 100 * (ours / theirs - 1)


def _ours(x: Tensor, weight: Tensor) -> Tensor:
    return gemm.linear(x, weight, None)


def _cublas(x: Tensor, weight: Tensor) -> Tensor:
    return torch.mm(x, weight.t())


@contextmanager
def _free() -> Iterator[None]:
    """Let cuBLAS choose freely, as torch does by default, within this context."""
    torch.backends.cuda.preferred_blas_library("default")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (True, True)
    try:
        yield
    finally:
        gemm.require_ordered_cublas()


class _Matrices:
    """Matrices of one size, more than any cache holds."""

    def __init__(self, size: tuple[int, int]) -> None:
        number = max(8, _MORE_THAN_A_CACHE // (size[0] * size[1]))
        gemm.require_ordered_cublas()
        self._weights = list(torch.randn((number, *size), device="cuda", dtype=torch.bfloat16))

    def seconds(self, num_rows: int, multiply: Multiply) -> float:
        """Return the seconds of one GEMM, each with another matrix than the one before. The result is checked first."""
        first = self._weights[0]
        x = torch.randn(num_rows, first.shape[1], device="cuda", dtype=torch.bfloat16)
        wanted = x.float() @ first.float().t()
        torch.testing.assert_close(multiply(x, first).float(), wanted, rtol=0.02, atol=0.02 * first.shape[1] ** 0.5)
        return timed_in_graph(lambda: [multiply(x, weight) for weight in self._weights]) / len(self._weights)
