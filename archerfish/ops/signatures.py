"""The operations a decoder is made of, one signature each. Implementations live beside; none is named here.

Shapes use one notation: T tokens of a step, H query heads, G key-value heads, D head size, N blocks, B tokens a block.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.arrays import Ints

Prepared = TypeVar("Prepared")

MAX_TREE_TOKENS = 64
"""Of a chunk that is a tree. The width of paths, whatever a step has, so that kernels are compiled for one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trees:
    """Of a step in which some chunks are trees: a token there sees what lies before the chunk, and its own line only.

    Keys and values of all of a chunk's tokens lie one after the other, as they always do. But the key at position
    start + d of a tree's token is the one stored at start + path[d]. Whoever fetches it from there and otherwise walks
    positions as of any other token, gives it the bits that it would have if there were nothing but its line.
    """

    depths: Tensor
    """[T] int32: how many tokens of its chunk are in a token's line before it, so that its position is start + depth;
    -1 for tokens of chunks that are no trees."""
    paths: Tensor
    """[T, MAX_TREE_TOKENS] uint8: a token's line among the tokens of its chunk, the first one's 0 first and its own
    number last, and again in what is left over. Means nothing where there is no tree."""
    host_depths: Ints
    """[T] on the host."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunks:
    """What attention must know of a step. The same for every layer.

    Tensors are int32, as kernels want them, except for slots: a large cache has more than 32 bits can count.
    """

    query_starts: Tensor
    """[chunks + 1] which rows of the step's tokens each chunk has: from its own entry up to the next one's."""
    lengths: Tensor
    """[chunks] tokens of each chunk."""
    ends: Tensor
    """[chunks] context of each chunk, its own tokens included."""
    tables: tuple[Tensor, ...]
    """For each KV group, [chunks, blocks] the block of each block-sized stretch of positions.

    What lies past a chunk's end, or before the window of its first token, may be any block at all.
    """
    slots: tuple[Tensor, ...]
    """For each KV group, [T] int64: where each token's keys and values go, block * block_size + offset."""
    host_lengths: Ints
    """[chunks] on the host, because loops and launch grids are made from it."""
    host_ends: Ints
    """[chunks] the same of ends."""
    trees: Trees | None = None
    """Where at least one of the chunks is a tree."""
    _prepared: dict[Callable[["Chunks"], Any], Any] = field(default_factory=dict, init=False, repr=False)

    def prepared(self, prepare: Callable[["Chunks"], Prepared]) -> Prepared:
        """What an implementation makes of the step: made for the first layer that asks, kept for the others."""
        if prepare not in self._prepared:
            self._prepared[prepare] = prepare(self)
        made: Prepared = self._prepared[prepare]
        return made


@dataclass(frozen=True, slots=True, eq=False)
class LayerCache:
    """Keys and values of one layer, as they are stored."""

    keys: Tensor
    """[N, B, G, D]"""
    values: Tensor
    """[N, B, G, D]"""
    key_scales: Tensor | None = None
    """[N, B, G] float32, if numbers are int8: what a 1 stands for. None of any other format."""
    value_scales: Tensor | None = None
    """[N, B, G] the same of values."""

    @property
    def tensors(self) -> list[Tensor]:
        every = (self.keys, self.values, self.key_scales, self.value_scales)
        return [tensor for tensor in every if tensor is not None]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


AttendFunction = Callable[[int, Tensor, Tensor | None, Tensor | None], Tensor]
"""What a model calls to attend: (layer, q [T, H, D], k [T, G, D], v [T, G, D]) -> [T, H, D].

k and v are None where the layer reads the keys and values of another one."""


class Linear(Protocol):
    def __call__(self, x: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
        """[T, K] x [N, K] -> [T, N]. The weight is as the implementation wants it: a tensor, or packed."""


class Embed(Protocol):
    def __call__(self, tokens: Tensor, table: Any) -> Tensor:
        """[T] -> [T, hidden]."""


class Add(Protocol):
    def __call__(self, x: Tensor, y: Tensor, factor: float) -> Tensor:
        """x + y * factor, both [T, width]."""


class Scale(Protocol):
    def __call__(self, x: Tensor, factor: float) -> Tensor:
        """x * factor, [T, width]."""


class Softcap(Protocol):
    def __call__(self, x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap), [T, width]."""


class RmsNorm(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, eps: float, weight_offset: float) -> Tensor:
        """Over the last dimension; weight + weight_offset is what multiplies."""


class LayerNorm(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Over the last dimension."""


class Rotate(Protocol):
    def __call__(self, x: Tensor, angles: Tensor) -> Tensor:
        """[T, heads, D] by [T, R], cosines and then sines: the first R dimensions turn, pairing i with i + R/2."""


class Activate(Protocol):
    def __call__(self, x: Tensor, activation: Activation, gated: bool) -> Tensor:
        """Gated: [T, 2I] holding gate then up -> activation(gate) * up, [T, I]."""


class Routed(NamedTuple):
    """The experts of each token, the likeliest first."""

    chosen: Tensor
    """[T, k] integers."""
    weights: Tensor
    """[T, k] float32."""


class Route(Protocol):
    def __call__(self, logits: Tensor, num_chosen: int, normalize: bool) -> Routed:
        """The largest of [T, experts], of equals those with lower numbers; each weighs its share of the softmax.

        Normalized, a token's weights are scaled to add up to 1. Where a logit is no number, none of them is one.
        """


class Experts(Protocol):
    def __call__(
        self, x: Tensor, gate_up: Any, down: Any, chosen: Tensor, weights: Tensor, activation: Activation
    ) -> Tensor:
        """[T, hidden] through the chosen experts [T, k], summed by weights [T, k].

        gate_up is [experts, 2I, hidden], down [experts, hidden, I], as the implementation wants them.
        """


class Attend(Protocol):
    def __call__(
        self,
        q: Tensor,
        cache: LayerCache,
        chunks: Chunks,
        group: int,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Causal attention of q [T, H, D] over paged keys and values -> [T, H, D]."""


class WriteKv(Protocol):
    def __call__(self, k: Tensor, v: Tensor, cache: LayerCache, slots: Tensor) -> None:
        """Store k and v [T, G, D] at their slots, rounded to the cache's format.

        int8 has one scale for each head of each token, its largest number over 127.

        How numbers are arranged within a block is between this and Attend, which are always chosen together.
        """


CHUNK = np.dtype([("row", np.int64), ("start", np.int64), ("length", np.int64), ("num_logits", np.int64)])
"""The tokens of one sequence that a step computes, as native kernels read them: the sequence's row, the first position,
the number of tokens, and of how many of the last ones logits are computed."""

ChunkTable = np.ndarray[tuple[int], np.dtype[np.void]]

DRAW_ROW = np.dtype(
    [
        ("seed", np.uint64),
        ("position", np.int64),
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("top_k", np.int32),
    ]
)
"""What a row's next token is drawn by, as native kernels read it. Idle are a top_p of 1, a min_p of 0 and a top_k of 0;
with a temperature of 0 the likeliest token is taken."""

DrawRows = np.ndarray[tuple[int], np.dtype[np.void]]


class Drawn(NamedTuple):
    tokens: Tensor
    """[rows] int64."""
    peaks: Tensor
    """[rows] the largest logit of each. Where it is not finite, the token means nothing."""


class Draw(Protocol):
    def __call__(self, logits: Tensor, rows: DrawRows) -> Drawn:
        """The next token of each row of float32 logits [rows, vocabulary]: the largest of logits / temperature + noise.

        Noise is a function of seed, position and token. Of equals the lower id wins. Filters say what may be drawn:
        min_p, then top_k, then top_p, each on what the one before it left; equally likely tokens stay or go together.
        """


class CopyBlocks(Protocol):
    def __call__(self, cache: LayerCache, sources: Tensor, targets: Tensor) -> None:
        """Copy whole blocks, all of them as they were before."""


class MoveKv(Protocol):
    def __call__(self, cache: LayerCache, sources: Tensor, targets: Tensor) -> None:
        """Copy keys and values of single tokens from slots [n] int64 to others, all of them as they were before.

        No slot is a target twice.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """The chosen implementation of each operation. Field names are operation names."""

    linear: Linear
    embed: Embed
    add: Add
    scale: Scale
    softcap: Softcap
    rms_norm: RmsNorm
    layer_norm: LayerNorm
    rotate: Rotate
    activate: Activate
    route: Route
    experts: Experts
    attend: Attend
    write_kv: WriteKv
    copy_blocks: CopyBlocks
    move_kv: MoveKv
    draw: Draw
