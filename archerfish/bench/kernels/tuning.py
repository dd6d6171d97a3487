"""Measures the fastest tiles of a model's GEMMs on this GPU."""

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
"""With so many rows, only matrices with split K are multiplied by the kernel."""
_IN_TURN = 256 << 20
"""Bytes of matrices that are multiplied in turn: more than any cache holds, so that weights come from memory."""
_MOST_IN_TURN = 64
_ROUNDS = 5
_ACTIVATION: Activation = "silu"

SecondsOf = Callable[[GemmShape, FloatTiles], float]
Progress = Callable[[int], None]


def gemm_shapes_of(arch: Arch) -> list[GemmShape]:
    """Return each GEMM of the model, for each number of rows that has tiles of its own."""
    matrices = dict.fromkeys(_matrices(arch))
    return [
        GemmShape(num_rows, num_outputs, num_inputs, is_gated)
        for num_outputs, num_inputs, is_gated in matrices
        for num_rows in (*_ROWS, *(_ROWS_OF_PARTS if num_k_splits(num_outputs, num_inputs) > 1 else ()))
    ]


def tune_gemms(shapes: Sequence[GemmShape], seconds_of: SecondsOf, progress: Progress) -> Iterator[TunedGemm]:
    """Yield each result when it was measured; the tiles are used from then on."""
    for done, shape in enumerate(shapes, 1):
        candidates = candidate_tiles(shape.num_rows, shape.num_outputs, shape.num_inputs)
        yield tune_gemm(shape, candidates, partial(seconds_of, shape))
        progress(done)
    chosen_tiles.cache_clear()


class GpuStopwatch:
    """Times a GEMM: the best of a few replays of a graph that multiplies several matrices in turn."""

    def __init__(self, dtype: torch.dtype, num_threads: int) -> None:
        self._dtype = dtype
        self._num_threads = num_threads
        self._made: tuple[GemmShape, list[Tensor], Tensor, Tensor] | None = None

    def __call__(self, shape: GemmShape, tiles: FloatTiles) -> float:
        if self._made is None or self._made[0] != shape:
            self._make(shape)
        try:
            graph = self._captured(tiles)
        except OutOfResources:  # Too many registers or too much memory: these tiles are no choice, but others may be.
            return math.inf
        return min(_replayed(graph) for _ in range(_ROUNDS)) / len(self._weights)

    @property
    def _weights(self) -> list[Tensor]:
        assert self._made is not None
        return self._made[1]

    def _make(self, shape: GemmShape) -> None:
        """Allocate matrices and rows, and compile all candidates in parallel."""
        size = (shape.num_outputs, shape.num_inputs)
        count = min(_MOST_IN_TURN, max(2, _IN_TURN // (2 * shape.num_outputs * shape.num_inputs)))
        weights = [noise(size, self._dtype, "cuda") for _ in range(count)]
        x = noise((shape.num_rows, shape.num_inputs), self._dtype, "cuda")
        width = shape.num_outputs // 2 if shape.is_gated else shape.num_outputs
        self._made = (shape, weights, x, torch.empty(shape.num_rows, width, dtype=self._dtype, device="cuda"))
        with compile_only(self._num_threads):
            for tiles in candidate_tiles(shape.num_rows, *size):
                self._multiply(weights[0], tiles)

    def _multiply(self, weight: Tensor, tiles: FloatTiles) -> None:
        assert self._made is not None
        shape, _, x, out = self._made
        float_gemm_into(out, x, weight, None, FloatEpilogue(activation=_ACTIVATION if shape.is_gated else None), tiles)

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
    """Yield outputs, inputs, and whether gates are among the outputs. Experts have kernels of their own."""
    for layer in arch.layers:
        attention, feed_forward = layer.attention, layer.feed_forward
        yield attention.qkv_width, arch.hidden_size, False
        yield arch.hidden_size, attention.q_width, False
        if isinstance(feed_forward, MlpSpec):
            yield feed_forward.size * (2 if feed_forward.gated else 1), arch.hidden_size, feed_forward.gated
            yield arch.hidden_size, feed_forward.size, False
    yield arch.vocab_size, arch.hidden_size, False
