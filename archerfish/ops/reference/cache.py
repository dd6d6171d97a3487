"""Writing, copying and moving within the KV cache, in plain torch."""

from typing import NamedTuple

import torch
from torch import Tensor

from archerfish.ops.signatures import LayerCache

_MAX_INT8 = 127
_LARGEST_INVERSE = 3.4e38


class RoundedHeads(NamedTuple):
    """Keys or values rounded to int8."""

    numbers: Tensor
    """[T, G, D] int8."""
    scales: Tensor
    """[T, G] float32."""


def write_kv(k: Tensor, v: Tensor, cache: LayerCache, slots: Tensor) -> None:
    # By block and offset: flattening a strided cache to slots would copy it, and writes would be lost.
    index = (slots // cache.keys.shape[1], slots % cache.keys.shape[1])
    for x, numbers, scales in ((k, cache.keys, cache.key_scales), (v, cache.values, cache.value_scales)):
        if scales is None:
            numbers[index] = x.to(numbers.dtype)
        else:
            numbers[index], scales[index] = round_heads(x)


def round_heads(x: Tensor) -> RoundedHeads:
    """Round to int8, each head by its own scale. A head that is not finite gets a scale of NaN."""
    wide = x.float()
    peak = wide.abs().amax(-1)
    inverse = torch.full_like(peak, _MAX_INT8) / peak  # Dividing a Python number by a tensor would round twice.
    inverse.masked_fill_(~(inverse <= _LARGEST_INVERSE), 0.0)  # The smallest numbers are rounded to zero.
    scales = torch.where(inverse == 0.0, 0.0, peak / _MAX_INT8)
    non_finite = ~wide.isfinite().all(-1)
    numbers = (wide * inverse[..., None]).round().masked_fill_(non_finite[..., None], 0.0)
    return RoundedHeads(numbers.to(torch.int8), scales.masked_fill_(non_finite, torch.nan))


def copy_blocks(cache: LayerCache, sources: Tensor, targets: Tensor) -> None:
    for tensor in cache.tensors:
        tensor[targets] = tensor[sources]


def move_kv(cache: LayerCache, sources: Tensor, targets: Tensor) -> None:
    block_size = cache.keys.shape[1]
    for tensor in cache.tensors:
        moved = tensor[sources // block_size, sources % block_size]
        tensor[targets // block_size, targets % block_size] = moved
