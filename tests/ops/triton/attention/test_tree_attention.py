"""Attention of trees by Triton kernels: each token has the bits that its line alone would give it."""

import numpy as np
import pytest
import torch

from archerfish.ops.signatures import LayerCache
from archerfish.ops.triton.attention.paged_attention import attend
from archerfish.speculation.draft import Draft
from tests.lanes import full
from tests.ops.trees import Heads, Machine, Tokens, bushy, check_lines, deep, random_tree
from tests.ops.triton.attention.paged import FP8, exact_in

pytestmark = pytest.mark.each_choice

DTYPES = [torch.float16, torch.bfloat16]


def stored(k, v, cache, slots):
    """As the kernel that does it arranges blocks; the interpreter would take long over it."""
    for x, blocks in ((k, cache.keys), (v, cache.values)):
        num_blocks, block_size, num_kv_heads, _ = blocks.shape
        words = blocks.view(torch.uint8).view(num_blocks, num_kv_heads, block_size, -1)
        words[slots // block_size, :, slots % block_size] = x.to(blocks.dtype).view(torch.uint8)


def machine(heads, device, block_size=16, dtype=None):
    def cache(num_blocks):
        size = (num_blocks, block_size, heads.num_kv_heads, heads.head_dim)
        leftovers = (torch.full(size, torch.nan, dtype=heads.dtype).to(dtype or heads.dtype) for _ in range(2))
        return LayerCache(*(one.to(device) for one in leftovers))

    return Machine(write_kv=stored, attend=attend, cache=cache, device=device)


def same_bits(found, wanted):
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("seed", [*range(3), *full(*range(3, 10))])
def test_a_token_has_the_bits_of_its_line_alone(seed, device):
    random = np.random.default_rng(seed)
    num_heads, num_kv_heads = ((4, 4), (4, 2), (6, 2), (3, 1))[random.integers(4)]
    heads = Heads(num_heads=num_heads, num_kv_heads=num_kv_heads, dtype=DTYPES[seed % 2])
    window = (None, None, 1, 5, 40, 64)[random.integers(6)]
    softcap = (None, 2.0)[random.integers(2)]
    sequences = [
        heads.tokens(seed, int(random.integers(0, 130)), random_tree(random, int(random.integers(2, 9)))),
        heads.tokens(seed + 1, int(random.integers(0, 60)), 1),
        heads.tokens(seed + 2, 62, random_tree(random, 3)),
        heads.tokens(seed + 3, int(random.integers(0, 60)), int(random.integers(2, 30))),
    ]
    check_lines(machine(heads, device, (16, 32)[seed % 2]), sequences, same_bits, window, softcap, at_once=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 50])
def test_a_cache_of_eight_bit_floats(dtype, window, device):
    heads = Heads(head_dim=32, dtype=dtype)

    def tokens(seed, start, chunk):
        made = heads.tokens(seed, start, chunk)
        return Tokens(start, made.q, exact_in(made.k, FP8), exact_in(made.v, FP8), made.tree)

    sequences = [tokens(0, 60, bushy(6)), tokens(1, 33, 1), tokens(2, 20, 20)]
    check_lines(machine(heads, device, dtype=FP8), sequences, same_bits, window, at_once=True)


@pytest.mark.parametrize("window", [None, 500, *full(30)])
def test_lines_that_end_in_different_splits(window, device):
    heads = Heads(dtype=torch.float16)
    late = Draft(tuple(range(7)), (-1, 0, 1, 2, 3, -1, 0))
    check_lines(
        machine(heads, device), [heads.tokens(0, 509, late), heads.tokens(1, 40, 1)], same_bits, window, at_once=True
    )


@pytest.mark.parametrize("tree", [bushy(63), *full(deep(63))], ids=["bushy", "deep"])
def test_the_largest_trees(tree, device):
    heads = Heads(num_heads=2, num_kv_heads=1, dtype=torch.float16)
    check_lines(machine(heads, device), [heads.tokens(0, 30, tree)], same_bits, at_once=True)
