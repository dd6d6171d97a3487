"""Measures how the products of a model are best cut on this GPU. Knows its matrices, not what is kept of them."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from archerfish.arch.arch import Activation, Arch, MlpSpec
from archerfish.bench.kernels.matrices import noise
from archerfish.ops.triton.gemm import (
    FloatEpilogue,
    FloatTiles,
    candidate_tiles,
    chosen_tiles,
    float_gemm_into,
    num_k_splits,
)
from archerfish.ops.triton.runtime import GemmShape, TunedGemm, compile_only, tune_gemm

_ROWS = (8, 16, 32, 64)
_ROWS_OF_PARTS = (128, 256, 512, 1024)
"""With so many, only matrices whose K is cut into parts are multiplied by the kernel."""
_IN_TURN = 256 << 20
"""Bytes of matrices that take turns: more than any cache holds, so that weights come from memory as in a model."""
_MOST_IN_TURN = 64
_ROUNDS = 5
_ACTIVATION: Activation = "silu"

SecondsOf = Callable[[GemmShape, FloatTiles], float]
Progress = Callable[[int], None]


def products_of(arch: Arch) -> list[GemmShape]:
    """Each that the model has, for each number of rows that has tiles of its own."""
    found = dict.fromkeys(_matrices(arch))
    return [
        GemmShape(num_rows, num_outputs, num_inputs, is_gated)
        for num_outputs, num_inputs, is_gated in found
        for num_rows in (*_ROWS, *(_ROWS_OF_PARTS if num_k_splits(num_outputs, num_inputs) > 1 else ()))
    ]


def tune_products(products: Sequence[GemmShape], seconds_of: SecondsOf, progress: Progress) -> Iterator[TunedGemm]:
    """Each is told when it was measured, and from then on used."""
    for done, product in enumerate(products, 1):
        shape = (product.num_rows, product.num_outputs, product.num_inputs)
        yield tune_gemm(product, candidate_tiles(*shape), partial(seconds_of, product))
        progress(done)
    chosen_tiles.cache_clear()


class GpuStopwatch:
    """Seconds of a product: the best of a few replays of a graph, in which matrices take turns."""

    def __init__(self, dtype: torch.dtype, num_threads: int) -> None:
        self._dtype = dtype
        self._num_threads = num_threads
        self._made: tuple[GemmShape, list[Tensor], Tensor, Tensor] | None = None

    def __call__(self, product: GemmShape, tiles: FloatTiles) -> float:
        if self._made is None or self._made[0] != product:
            self._make(product)
        try:
            graph = self._captured(tiles)
        except OutOfResources:  # Of registers or memory: no choice, but no reason to stop either.
            return math.inf
        return min(_replayed(graph) for _ in range(_ROUNDS)) / len(self._weights)

    @property
    def _weights(self) -> list[Tensor]:
        assert self._made is not None
        return self._made[1]

    def _make(self, product: GemmShape) -> None:
        """Matrices and rows; and all candidates compiled, side by side."""
        shape = (product.num_outputs, product.num_inputs)
        count = min(_MOST_IN_TURN, max(2, _IN_TURN // (2 * product.num_outputs * product.num_inputs)))
        weights = [noise(shape, self._dtype, "cuda") for _ in range(count)]
        x = noise((product.num_rows, product.num_inputs), self._dtype, "cuda")
        width = product.num_outputs // 2 if product.is_gated else product.num_outputs
        self._made = (product, weights, x, torch.empty(product.num_rows, width, dtype=self._dtype, device="cuda"))
        with compile_only(self._num_threads):
            for tiles in candidate_tiles(product.num_rows, *shape):
                self._multiply(weights[0], tiles)

    def _multiply(self, weight: Tensor, tiles: FloatTiles) -> None:
        assert self._made is not None
        product, _, x, out = self._made
        float_gemm_into(
            out, x, weight, None, FloatEpilogue(activation=_ACTIVATION if product.is_gated else None), tiles
        )

    def _captured(self, tiles: FloatTiles) -> torch.cuda.CUDAGraph:
        self._multiply(self._weights[0], tiles)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for weight in self._weights:
                self._multiply(weight, tiles)
        graph.replay()
        return graph


def _replayed(graph: torch.cuda.CUDAGraph) -> float:
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    started.record()
    graph.replay()
    ended.record()
    ended.synchronize()
    return float(started.elapsed_time(ended)) / 1000


def _matrices(arch: Arch) -> Iterator[tuple[int, int, bool]]:
    """Outputs, inputs, and whether gates are among the outputs. Experts have kernels of their own."""
    for layer in arch.layers:
        attention, feed_forward = layer.attention, layer.feed_forward
        yield attention.qkv_width, arch.hidden_size, False
        yield arch.hidden_size, attention.q_width, False
        if isinstance(feed_forward, MlpSpec):
            yield feed_forward.size * (2 if feed_forward.gated else 1), arch.hidden_size, feed_forward.gated
            yield arch.hidden_size, feed_forward.size, False
    yield arch.vocab_size, arch.hidden_size, False
