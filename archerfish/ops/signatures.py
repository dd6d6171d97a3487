"""The operations a decoder is made of, one signature each. Implementations live beside; none is named here.

Shapes use one notation: T tokens of a step, H query heads, G key-value heads, D head size, N blocks, B tokens a block.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from archerfish.arch.arch import Activation


@dataclass(frozen=True, slots=True)
class EqualChunks:
    """Chunks of one length stacked: all decode tokens of a step, or one prefill piece.

    Sorted by context, longest first, so that walking the keys can drop chunks as they end.
    """

    token_rows: Tensor
    """[chunks, length] which rows of the step's tokens."""
    starts: Tensor
    """[chunks] position of each chunk's first token."""
    tables: tuple[Tensor, ...]
    """For each KV group, [chunks, blocks] the block of each block-sized stretch of positions."""
    ends: tuple[int, ...]
    """Context of each chunk, its own tokens included; on the host, because loops run over it."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """What attention must know of a step. The same for every layer."""

    slots: tuple[Tensor, ...]
    """For each KV group, [T] where each token's keys and values go: block * block_size + offset."""
    equal: tuple[EqualChunks, ...]


class Linear(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """[T, K] x [N, K] -> [T, N]."""


class Embed(Protocol):
    def __call__(self, tokens: Tensor, table: Tensor) -> Tensor:
        """[T] -> [T, hidden]."""


class RmsNorm(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, eps: float, weight_offset: float) -> Tensor:
        """Over the last dimension; weight + weight_offset is what multiplies."""


class LayerNorm(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Over the last dimension."""


class Rotate(Protocol):
    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[T, heads, D] with [T, R/2] angles: the first R dimensions turn, pairing i with i + R/2."""


class Activate(Protocol):
    def __call__(self, x: Tensor, activation: Activation, gated: bool) -> Tensor:
        """Gated: [T, 2I] holding gate then up -> activation(gate) * up, [T, I]."""


class Experts(Protocol):
    def __call__(
        self, x: Tensor, gate_up: Tensor, down: Tensor, chosen: Tensor, weights: Tensor, activation: Activation
    ) -> Tensor:
        """[T, hidden] through the chosen experts [T, k], summed by weights [T, k].

        gate_up is [experts, 2I, hidden], down [experts, hidden, I].
        """


class Attend(Protocol):
    def __call__(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        chunks: Chunks,
        group: int,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Causal attention of q [T, H, D] over paged keys and values [N, B, G, D] -> [T, H, D]."""


class WriteKv(Protocol):
    def __call__(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Store k and v [T, G, D] at their slots of [N, B, G, D]."""


class CopyBlocks(Protocol):
    def __call__(self, cache: Tensor, sources: Tensor, targets: Tensor) -> None:
        """Copy whole blocks of [N, B, G, D]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """The chosen implementation of each operation. Field names are operation names."""

    linear: Linear
    embed: Embed
    rms_norm: RmsNorm
    layer_norm: LayerNorm
    rotate: Rotate
    activate: Activate
    experts: Experts
    attend: Attend
    write_kv: WriteKv
    copy_blocks: CopyBlocks


def torch_dtype(name: str) -> torch.dtype:
    """torch.float32 for "float32"."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
