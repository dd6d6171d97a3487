"""Caches as Triton kernels arrange them, and numbers that survive what the interpreter does to them."""

import torch
from torch import Tensor

from archerfish.ops.triton.runtime.kernel_launch import INTERPRETED

FP8 = torch.float8_e4m3fn


def arranged(blocks: Tensor) -> Tensor:
    """[N, B, G, D] as the reference has it, of blocks that are arranged [G, B, D] inside; a copy."""
    num_blocks, block_size, num_kv_heads, head_dim = blocks.shape
    inside = blocks.reshape(num_blocks, num_kv_heads, block_size, head_dim)
    return inside.transpose(1, 2).contiguous()


def arrange(blocks: Tensor) -> Tensor:
    """The other way round."""
    return blocks.transpose(1, 2).contiguous().view(blocks.shape)


def exact_in(x: Tensor, dtype: torch.dtype, *, only: bool = True) -> Tensor:
    """x as the dtype has it: the interpreter rounds to eight bits in a way of its own."""
    return x.float().to(dtype).to(x.dtype) if only else x


def check_same_bits(found: Tensor, wanted: Tensor) -> None:
    """Of rows that lay in tiles of another size. The interpreter's products depend on that; a tensor core's do not."""
    if INTERPRETED:
        unit = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[wanted.dtype]
        torch.testing.assert_close(found, wanted, rtol=unit, atol=unit)
    else:
        assert torch.equal(found, wanted)
