"""The operations that a decoder consists of, one signature each.

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
"""Most tokens of a chunk that is a tree. Also the width of paths, so that kernels are compiled for a single width."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trees:
    """Tree chunks of a step: a token of a tree attends to what precedes the chunk, and to its own path only.

    Keys and values of a chunk's tokens are stored one after the other, as always. But the key at position start + d of
    a tree token is the one stored at start + path[d]. A kernel that reads it from there, and otherwise attends as ever,
    gives the token the bits that it would have if the tree consisted of its path alone.
    """

    depths: Tensor
    """[T] int32: number of tokens of the chunk that precede a token on its path, so that its position is start + depth;
    -1 for tokens of chunks that are not trees."""
    paths: Tensor
    """[T, MAX_TREE_TOKENS] uint8: a token's path as numbers of the chunk's tokens, from 0 to its own, which fills the
    rest. Undefined where there is no tree."""
    host_depths: Ints
    """[T] depths on the host."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunks:
    """The chunks of a step as attention reads them, the same for every layer.

    Tensors are int32, except for slots: a large cache has more of them than 32 bits can count.
    """

    query_starts: Tensor
    """[chunks + 1] the rows of each chunk among the step's tokens: from its own entry to the next one's."""
    lengths: Tensor
    """[chunks] number of tokens of each chunk."""
    ends: Tensor
    """[chunks] context of each chunk, its own tokens included."""
    tables: tuple[Tensor, ...]
    """For each KV group, [chunks, blocks] block tables.

    Entries past a chunk's end, or before the window of its first token, are undefined.
    """
    slots: tuple[Tensor, ...]
    """For each KV group, [T] int64: the slot of each token's keys and values, block * block_size + offset."""
    host_lengths: Ints
    """[chunks] lengths on the host, where loops and launch grids are made from them."""
    host_ends: Ints
    """[chunks] ends on the host."""
    trees: Trees | None = None
    """Set where at least one of the chunks is a tree."""
    _prepared: dict[Callable[["Chunks"], Any], Any] = field(default_factory=dict, init=False, repr=False)

    def prepared(self, prepare: Callable[["Chunks"], Prepared]) -> Prepared:
        """Return what an implementation prepares from the step, computed once for all layers."""
        if prepare not in self._prepared:
            self._prepared[prepare] = prepare(self)
        prepared: Prepared = self._prepared[prepare]
        return prepared


@dataclass(frozen=True, slots=True, eq=False)
class LayerCache:
    """The KV cache of one layer."""

    keys: Tensor
    """[N, B, G, D]"""
    values: Tensor
    """[N, B, G, D]"""
    key_scales: Tensor | None = None
    """[N, B, G] float32, if numbers are int8. None for other formats."""
    value_scales: Tensor | None = None
    """[N, B, G] float32, if numbers are int8. None for other formats."""

    @property
    def tensors(self) -> list[Tensor]:
        tensors = (self.keys, self.values, self.key_scales, self.value_scales)
        return [tensor for tensor in tensors if tensor is not None]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


AttendFunction = Callable[[int, Tensor, Tensor | None, Tensor | None], Tensor]
"""What a model calls to attend: (layer, q [T, H, D], k [T, G, D], v [T, G, D]) -> [T, H, D].

k and v are None where the layer reads the keys and values of another one."""


class LinearOp(Protocol):
    def __call__(self, x: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
        """Return [T, N] for x [T, K] and weight [N, K], a tensor or packed as the implementation needs it."""


class EmbedOp(Protocol):
    def __call__(self, tokens: Tensor, table: Any) -> Tensor:
        """Return [T, hidden], the rows of the table at [T]."""


class AddOp(Protocol):
    def __call__(self, x: Tensor, y: Tensor, factor: float) -> Tensor:
        """Return x + y * factor, both [T, width]."""


class ScaleOp(Protocol):
    def __call__(self, x: Tensor, factor: float) -> Tensor:
        """Return x * factor, [T, width]."""


class SoftcapOp(Protocol):
    def __call__(self, x: Tensor, cap: float) -> Tensor:
        """Return cap * tanh(x / cap), [T, width]."""


class RmsNormOp(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, eps: float, weight_offset: float) -> Tensor:
        """Normalize the last dimension, and multiply by weight + weight_offset."""


class LayerNormOp(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Normalize the last dimension, multiply by weight and add bias."""


class RotateOp(Protocol):
    def __call__(self, x: Tensor, angles: Tensor) -> Tensor:
        """Rotate the first R dimensions of [T, heads, D], pairing i with i + R/2, by cosines and then sines [T, R]."""


class ActivateOp(Protocol):
    def __call__(self, x: Tensor, activation: Activation, gated: bool) -> Tensor:
        """Return activation(x); if gated, activation(gate) * up [T, I] for x [T, 2I] with gate before up."""


class Routed(NamedTuple):
    """The experts of each token, the likeliest first."""

    chosen: Tensor
    """[T, k] integers."""
    weights: Tensor
    """[T, k] float32."""


class RouteOp(Protocol):
    def __call__(self, logits: Tensor, num_chosen: int, normalize: bool) -> Routed:
        """Choose the experts with the largest logits [T, experts], lower numbers first among equals.

        Weights are those of the softmax, scaled to add up to 1 if `normalize`. Where a logit is NaN, they are NaN.
        """


class ExpertsOp(Protocol):
    def __call__(
        self, x: Tensor, gate_up: Any, down: Any, chosen: Tensor, weights: Tensor, activation: Activation
    ) -> Tensor:
        """Return the sum of the chosen experts [T, k] of x [T, hidden], weighted by [T, k].

        gate_up [experts, 2I, hidden] and down [experts, hidden, I] are tensors or packed as the implementation needs.
        """


class AttendOp(Protocol):
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
        """Return causal attention [T, H, D] of q [T, H, D] over paged keys and values."""


class WriteKvOp(Protocol):
    def __call__(self, k: Tensor, v: Tensor, cache: LayerCache, slots: Tensor) -> None:
        """Store k and v [T, G, D] at their slots, rounded to the cache's format.

        int8 has one scale for each head of each token, its largest number over 127. The layout within a block is
        private to this operation and attention, which are always chosen together.
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
"""The parameters that a row's next token is drawn by, as native kernels read them. Filters are off with a top_p of 1, a
min_p of 0 and a top_k of 0; with a temperature of 0 the likeliest token is taken."""

DrawRows = np.ndarray[tuple[int], np.dtype[np.void]]


class Drawn(NamedTuple):
    """The tokens that were drawn."""

    tokens: Tensor
    """[rows] int64."""
    peaks: Tensor
    """[rows] the largest logit of each row. Where it is not finite, no token was drawn."""


class DrawOp(Protocol):
    def __call__(self, logits: Tensor, rows: DrawRows) -> Drawn:
        """Draw the next token of each row of float32 logits [rows, vocabulary]: argmax(logits / temperature + noise).

        Noise is a function of seed, position and token. The lowest id wins among equals. Filters apply before: min_p,
        then top_k, then top_p, each to what the one before it left; they treat equally likely tokens alike.
        """


class CopyBlocksOp(Protocol):
    def __call__(self, cache: LayerCache, sources: Tensor, targets: Tensor) -> None:
        """Copy whole blocks. All sources are read before any target is written."""


class MoveKvOp(Protocol):
    def __call__(self, cache: LayerCache, sources: Tensor, targets: Tensor) -> None:
        """Copy keys and values of single tokens from slots [n] int64 to other slots.

        All sources are read before any target is written, and no slot is a target twice.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """The chosen implementation of each operation. Field names are operation names."""

    linear: LinearOp
    embed: EmbedOp
    add: AddOp
    scale: ScaleOp
    softcap: SoftcapOp
    rms_norm: RmsNormOp
    layer_norm: LayerNormOp
    rotate: RotateOp
    activate: ActivateOp
    route: RouteOp
    experts: ExpertsOp
    attend: AttendOp
    write_kv: WriteKvOp
    copy_blocks: CopyBlocksOp
    move_kv: MoveKvOp
    draw: DrawOp
