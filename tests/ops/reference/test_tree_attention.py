"""Attention of trees in plain torch: each token gets what its line alone would give it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archerfish.ops.reference.attention import attend, stack_equal
from archerfish.ops.reference.cache import write_kv
from archerfish.ops.signatures import LayerCache
from tests.lanes import examples
from tests.ops.trees import Heads, Machine, bushy, check_lines, deep, random_tree


def machine(block_size, dtype, heads):
    def cache(num_blocks):
        size = (num_blocks, block_size, heads.num_kv_heads, heads.head_dim)
        if dtype == torch.int8:
            numbers = (torch.full(size, 77, dtype=dtype) for _ in range(2))
            return LayerCache(*numbers, *(torch.full(size[:-1], torch.nan) for _ in range(2)))
        return LayerCache(*(torch.full(size, torch.nan, dtype=dtype) for _ in range(2)))

    return Machine(write_kv=write_kv, attend=attend, cache=cache)


def near(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@examples(40)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(2, 12), st.booleans()), min_size=1, max_size=4),
    st.sampled_from([8, 16, 32]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int8]),
    st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    st.none() | st.sampled_from([1, 3, 20, 400]),
    st.none() | st.just(2.0),
    st.integers(0, 1000),
)
def test_a_token_gets_what_its_line_alone_would_give(chunks, block_size, dtype, shared, window, softcap, seed):
    heads, random = Heads(num_heads=shared[0], num_kv_heads=shared[1], head_dim=8), np.random.default_rng(seed)
    sequences = [
        heads.tokens(seed + place, start, random_tree(random, count) if is_tree else count)
        for place, (start, count, is_tree) in enumerate(chunks)
    ]
    check_lines(machine(block_size, dtype, heads), sequences, near, window, softcap)


@pytest.mark.parametrize("tree", [bushy(63), deep(63)], ids=["bushy", "deep"])
@pytest.mark.parametrize("start", [0, 250])
def test_the_largest_trees(tree, start):
    heads = Heads(head_dim=8)
    check_lines(machine(16, torch.float32, heads), [heads.tokens(0, start, tree), heads.tokens(1, 40, 3)], near)


def test_tokens_of_trees_are_stacked_longest_context_first_and_others_as_ever():
    heads, stacked = Heads(head_dim=8), []

    def keep(q, cache, chunks, *rest):
        stacked.extend(stack_equal(chunks))
        return attend(q, cache, chunks, *rest)

    plain, trees = machine(16, torch.float32, heads), [(20, bushy(4)), (50, 1), (7, bushy(2)), (9, 1)]
    sequences = [heads.tokens(place, *chunk) for place, chunk in enumerate(trees)]
    Machine(write_kv=write_kv, attend=keep, cache=plain.cache).run(sequences)
    single, lines = stacked
    assert (single.indices.tolist(), single.ends, single.paths) == ([1, 3], (51, 10), None)
    assert lines.indices.tolist() == [0, 0, 0, 0, 0, 2, 2, 2]
    assert lines.token_rows.flatten().tolist() == [3, 4, 1, 2, 0, 7, 8, 6]
    assert lines.ends == (23, 23, 22, 22, 21, 9, 9, 8)
