"""Single tokens moved within a cache that native kernels wrote: what it holds then is what they would have written."""

import pytest
import torch

from archerfish.ops.signatures import LayerCache
from tests.ops.cpu.native import KERNELS, native, needs_native

pytestmark = needs_native

NUM_BLOCKS, HEADS, DIM = 4, 3, 32


def leftovers(dtype: torch.dtype, block_size: int) -> LayerCache:
    size = (NUM_BLOCKS, block_size, HEADS, DIM)
    numbers = (torch.full(size, 77.0).to(dtype) for _ in range(2))
    if dtype != torch.int8:
        return LayerCache(*numbers)
    return LayerCache(*numbers, *(torch.full(size[:-1], 5.0) for _ in range(2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize(
    ("sources", "targets"),
    [([2], [61]), ([15, 16], [16, 15]), ([31, 33, 40], [30, 31, 32]), ([3, 3], [18, 59]), ([], [])],
    ids=["one", "swap", "chain", "fan out", "none"],
)
def test_tokens_are_moved_as_they_were_before(
    dtype: torch.dtype, block_size: int, sources: list[int], targets: list[int]
) -> None:
    ops, slots = native(KERNELS[0]), torch.arange(64)
    k, v = (torch.randn(64, HEADS, DIM, generator=torch.Generator().manual_seed(seed)) for seed in range(2))
    found, wanted = (leftovers(dtype, block_size) for _ in range(2))
    ops.write_kv(k, v, found, slots)
    ops.move_kv(found, *(torch.tensor(places, dtype=torch.int64) for places in (sources, targets)))
    order = slots.clone()
    order[targets] = slots[sources]
    ops.write_kv(k[order], v[order], wanted, slots)
    for one, other in zip(found.tensors, wanted.tensors, strict=True):
        assert torch.equal(one, other)
