"""Writing and copying blocks: exactly the named places change."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archerfish.ops.reference.cache import copy_blocks, write_kv

NUM_BLOCKS, BLOCK_SIZE, HEADS, DIM = 5, 4, 2, 3


def cache(seed, dtype=torch.float32):
    size = (NUM_BLOCKS, BLOCK_SIZE, HEADS, DIM)
    return torch.from_numpy(np.random.default_rng(seed).normal(size=size)).to(dtype)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, NUM_BLOCKS * BLOCK_SIZE - 1), unique=True),
    st.sampled_from([(torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)]),
)
def test_keys_and_values_go_to_their_slots_and_nowhere_else(slots, dtypes):
    made, stored = dtypes
    keys, values = cache(0, stored), cache(1, stored)
    wanted_keys, wanted_values = keys.clone(), values.clone()
    k, v = (torch.randn(len(slots), HEADS, DIM).to(made) for _ in range(2))
    for place, slot in enumerate(slots):
        wanted_keys[slot // BLOCK_SIZE, slot % BLOCK_SIZE] = k[place].to(stored)
        wanted_values[slot // BLOCK_SIZE, slot % BLOCK_SIZE] = v[place].to(stored)
    write_kv(k, v, keys, values, torch.tensor(slots, dtype=torch.int64))
    assert torch.equal(keys, wanted_keys)
    assert torch.equal(values, wanted_values)


def test_writing_into_one_slot_of_a_larger_storage_reaches_the_storage():
    """Layers are given views; a copy made on the way would lose what was written."""
    storage = torch.zeros(3, NUM_BLOCKS, BLOCK_SIZE, HEADS, DIM)
    k = torch.ones(1, HEADS, DIM)
    write_kv(k, 2 * k, storage[1], storage[2], torch.tensor([6]))
    assert storage[1].sum() == HEADS * DIM
    assert storage[2].sum() == 2 * HEADS * DIM
    assert (storage[1, 1, 2] == 1).all()


def test_writing_and_copying_reach_a_cache_that_lies_in_pieces():
    """Keys beside values in each block, and heads before tokens: neither can be flattened without a copy."""
    beside = torch.zeros(NUM_BLOCKS, 2, BLOCK_SIZE, HEADS, DIM)
    heads_first = torch.zeros(2, NUM_BLOCKS, HEADS, BLOCK_SIZE, DIM).transpose(2, 3)
    for keys, values in ((beside[:, 0], beside[:, 1]), (heads_first[0], heads_first[1])):
        k = torch.randn(2, HEADS, DIM)
        write_kv(k, 2 * k, keys, values, torch.tensor([6, 17]))
        assert torch.equal(keys[1, 2], k[0])
        assert torch.equal(keys[4, 1], k[1])
        assert torch.equal(values, 2 * keys)
        assert keys.count_nonzero() == k.numel()
        copy_blocks(keys, torch.tensor([1]), torch.tensor([3]))
        assert torch.equal(keys[3], keys[1])
        assert keys.count_nonzero() == k.numel() + HEADS * DIM


@pytest.mark.parametrize(
    ("sources", "targets"),
    [([0], [3]), ([0, 0, 2], [1, 3, 4]), ([0, 1], [1, 0]), ([0, 1, 2], [1, 2, 3]), ([], [])],
    ids=["one", "fan out", "swap", "chain", "none"],
)
def test_blocks_are_copied_as_they_were_before_the_step(sources, targets):
    blocks = cache(0)
    wanted = blocks.clone()
    for source, target in zip(sources, targets, strict=True):
        wanted[target] = blocks[source]
    copy_blocks(blocks, torch.tensor(sources, dtype=torch.int64), torch.tensor(targets, dtype=torch.int64))
    assert torch.equal(blocks, wanted)
