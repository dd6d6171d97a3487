"""Copies of blocks and single tokens within a cache, in the layout of native kernels."""

from torch import Tensor

from archerfish.ops.signatures import LayerCache

_LANES = 16
"""Tokens whose keys are stored together."""


def copy_blocks(cache: LayerCache, sources: Tensor, targets: Tensor) -> None:
    """Copy whole blocks, whose inner layout does not matter."""
    for tensor in cache.tensors:
        tensor[targets] = tensor[sources]


def move_kv(cache: LayerCache, sources: Tensor, targets: Tensor) -> None:
    """Copy keys and values of single tokens from slots to other slots."""
    num_blocks, block_size, num_heads, head_dim = cache.keys.shape
    (from_block, from_offset), (to_block, to_offset) = (
        (slots // block_size, slots % block_size) for slots in (sources, targets)
    )
    # The right side of each assignment is a copy that is complete before anything is written.
    keys = cache.keys.view(num_blocks, num_heads, block_size // _LANES, head_dim, _LANES)
    moved = keys[from_block, :, from_offset // _LANES, :, from_offset % _LANES]
    keys[to_block, :, to_offset // _LANES, :, to_offset % _LANES] = moved
    cache.values[to_block, to_offset] = cache.values[from_block, from_offset]
    for scales in cache.tensors[2:]:
        by_head = scales.view(num_blocks, num_heads, block_size)
        by_head[to_block, :, to_offset] = by_head[from_block, :, from_offset]
