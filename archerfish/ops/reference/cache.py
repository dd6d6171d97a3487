"""Writing, copying and moving within the KV cache, in plain torch."""

from typing import NamedTuple

import torch
from torch import Tensor

from archerfish.ops.signatures import LayerCache

_MOST = 127
_LARGEST_INVERSE = 3.4e38


class Rounded(NamedTuple):
    numbers: Tensor
    """[T, G, D] int8."""
    scales: Tensor
    """[T, G] float32."""


def write_kv(k: Tensor, v: Tensor, cache: LayerCache, slots: Tensor) -> None:
    # By block and offset: flattened to slots, a strided cache would be a copy, and what is written to it lost.
    place = (slots // cache.keys.shape[1], slots % cache.keys.shape[1])
    for x, numbers, scales in ((k, cache.keys, cache.key_scales), (v, cache.values, cache.value_scales)):
        if scales is None:
            numbers[place] = x.to(numbers.dtype)
        else:
            numbers[place], scales[place] = round_heads(x)


def round_heads(x: Tensor) -> Rounded:
    """To int8, each head by its own scale. One that is not finite has a scale of NaN: so will be what is made of it."""
    wide = x.float()
    peak = wide.abs().amax(-1)
    inverse = torch.full_like(peak, _MOST) / peak  # A number over a tensor would be rounded twice.
    inverse.masked_fill_(~(inverse <= _LARGEST_INVERSE), 0.0)  # The smallest of numbers count as zero.
    scales = torch.where(inverse == 0.0, 0.0, peak / _MOST)
    spoilt = ~wide.isfinite().all(-1)
    numbers = (wide * inverse[..., None]).round().masked_fill_(spoilt[..., None], 0.0)
    return Rounded(numbers.to(torch.int8), scales.masked_fill_(spoilt, torch.nan))


def copy_blocks(cache: LayerCache, sources: Tensor, targets: Tensor) -> None:
    for tensor in cache.tensors:
        tensor[targets] = tensor[sources]


def move_kv(cache: LayerCache, sources: Tensor, targets: Tensor) -> None:
    block_size = cache.keys.shape[1]
    for tensor in cache.tensors:
        moved = tensor[sources // block_size, sources % block_size]
        tensor[targets // block_size, targets % block_size] = moved
