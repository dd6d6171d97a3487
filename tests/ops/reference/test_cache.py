"""Writing and copying blocks: exactly the named places change."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archerfish.ops.reference.cache import copy_blocks, move_kv, round_heads, write_kv
from archerfish.ops.signatures import LayerCache
from tests.lanes import examples

NUM_BLOCKS, BLOCK_SIZE, HEADS, DIM = 5, 4, 2, 3


def cache(seed, dtype=torch.float32):
    size = (NUM_BLOCKS, BLOCK_SIZE, HEADS, DIM)
    return torch.from_numpy(np.random.default_rng(seed).normal(size=size)).to(dtype)


@examples(60)
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
    write_kv(k, v, LayerCache(keys, values), torch.tensor(slots, dtype=torch.int64))
    assert torch.equal(keys, wanted_keys)
    assert torch.equal(values, wanted_values)


def test_writing_into_one_slot_of_a_larger_storage_reaches_the_storage():
    """Layers are given views; a copy made on the way would lose what was written."""
    storage = torch.zeros(3, NUM_BLOCKS, BLOCK_SIZE, HEADS, DIM)
    k = torch.ones(1, HEADS, DIM)
    write_kv(k, 2 * k, LayerCache(storage[1], storage[2]), torch.tensor([6]))
    assert storage[1].sum() == HEADS * DIM
    assert storage[2].sum() == 2 * HEADS * DIM
    assert (storage[1, 1, 2] == 1).all()


def test_writing_and_copying_reach_a_cache_that_lies_in_pieces():
    """Keys interleaved with values in each block, and heads before tokens: neither can be flattened without a copy."""
    interleaved = torch.zeros(NUM_BLOCKS, 2, BLOCK_SIZE, HEADS, DIM)
    heads_first = torch.zeros(2, NUM_BLOCKS, HEADS, BLOCK_SIZE, DIM).transpose(2, 3)
    for keys, values in ((interleaved[:, 0], interleaved[:, 1]), (heads_first[0], heads_first[1])):
        k = torch.randn(2, HEADS, DIM)
        write_kv(k, 2 * k, LayerCache(keys, values), torch.tensor([6, 17]))
        assert torch.equal(keys[1, 2], k[0])
        assert torch.equal(keys[4, 1], k[1])
        assert torch.equal(values, 2 * keys)
        assert keys.count_nonzero() == k.numel()
        copy_blocks(LayerCache(keys, values), torch.tensor([1]), torch.tensor([3]))
        assert torch.equal(keys[3], keys[1])
        assert keys.count_nonzero() == k.numel() + HEADS * DIM


@pytest.mark.parametrize(
    ("sources", "targets"),
    [([0], [3]), ([0, 0, 2], [1, 3, 4]), ([0, 1], [1, 0]), ([0, 1, 2], [1, 2, 3]), ([], [])],
    ids=["one", "fan out", "swap", "chain", "none"],
)
def test_blocks_are_copied_as_they_were_before_the_step(sources, targets):
    blocks = LayerCache(cache(0), cache(1), cache(2)[..., 0], cache(3)[..., 0])
    wanted = [tensor.clone() for tensor in blocks.tensors]
    for tensor, copy in zip(blocks.tensors, wanted, strict=True):
        for source, target in zip(sources, targets, strict=True):
            copy[target] = tensor[source]
    copy_blocks(blocks, torch.tensor(sources, dtype=torch.int64), torch.tensor(targets, dtype=torch.int64))
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(blocks.tensors, wanted, strict=True))


@pytest.mark.parametrize(
    ("sources", "targets"),
    [([2], [13]), ([5, 9], [9, 5]), ([6, 9, 10], [5, 6, 7]), ([3, 3], [8, 19]), ([], [])],
    ids=["one", "swap", "chain", "fan out", "none"],
)
def test_tokens_are_moved_as_they_were_before(sources, targets):
    blocks = LayerCache(cache(0), cache(1), cache(2)[..., 0], cache(3)[..., 0])
    wanted = [tensor.clone() for tensor in blocks.tensors]
    for tensor, copy in zip(blocks.tensors, wanted, strict=True):
        for source, target in zip(sources, targets, strict=True):
            copy[target // BLOCK_SIZE, target % BLOCK_SIZE] = tensor[source // BLOCK_SIZE, source % BLOCK_SIZE]
    move_kv(blocks, torch.tensor(sources, dtype=torch.int64), torch.tensor(targets, dtype=torch.int64))
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(blocks.tensors, wanted, strict=True))


def test_int8_is_at_most_half_a_step_away():
    x = (
        torch.randn(50, 3, 16, generator=torch.Generator().manual_seed(0))
        * 10 ** torch.linspace(-20, 20, 50)[:, None, None]
    )
    numbers, scales = round_heads(x)
    assert numbers.dtype == torch.int8
    assert (numbers.abs().amax(-1) == 127).all()
    assert ((numbers * scales[..., None] - x).abs() <= scales[..., None] * 0.5001).all()


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_int8_of_what_is_no_number_has_no_scale(broken):
    x = torch.ones(2, 2, 4)
    x[1, 0, 3] = broken
    numbers, scales = round_heads(x)
    assert scales.isnan().tolist() == [[False, False], [True, False]]
    assert (numbers[1, 0] == 0).all() and (numbers[0] == 127).all()


def test_int8_of_nothing_is_nothing():
    x = torch.tensor([0.0, 1e-45, -1e-45]).expand(1, 1, 3)
    assert all((part == 0).all() for part in round_heads(x))
