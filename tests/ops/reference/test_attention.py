"""Paged attention against dense float64 attention, on ragged batches over a cache that is full of leftovers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from archerfish.ops.reference import attention
from archerfish.ops.reference.attention import attend, stack_equal
from archerfish.ops.signatures import LayerCache
from tests.lanes import examples
from tests.ops.ragged import Batch, Shape

SCALE = 0.4


def found(batch, group=0, scale=SCALE, softcap=None):
    cache = LayerCache(batch.keys[group], batch.values[group])
    return attend(batch.q, cache, batch.chunks, group, scale, batch.window, softcap)


def check(batch, scale=SCALE, softcap=None):
    # The sums are float32 whatever the format; the result is rounded to it once.
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}[batch.shape.dtype]
    for group in range(batch.shape.num_groups):
        out = found(batch, group, scale, softcap)
        assert out.dtype == batch.shape.dtype
        torch.testing.assert_close(
            out.double(), batch.expected(group, scale, softcap), rtol=tolerance, atol=tolerance / 40 + 1e-5
        )


SIZES = st.one_of(
    st.tuples(st.integers(0, 90), st.just(1)),  # Decode.
    st.tuples(st.just(0), st.integers(1, 90)),  # A whole prompt.
    st.tuples(st.integers(0, 60), st.integers(1, 40)),  # A piece of one.
    st.tuples(st.sampled_from([15, 16, 17, 31, 32, 33]), st.sampled_from([1, 4, 16])),
)
SHAPES = st.builds(
    lambda heads, block_size, groups, dtype: Shape(
        num_heads=heads[0], num_kv_heads=heads[1], block_size=block_size, num_groups=groups, dtype=dtype
    ),
    st.sampled_from([(4, 4), (4, 2), (4, 1), (1, 1), (6, 2)]),
    st.sampled_from([1, 8, 16, 32, 48]),
    st.integers(1, 3),
    st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16]),
)


@examples(80)
@given(
    st.lists(SIZES, min_size=1, max_size=6),
    SHAPES,
    st.none() | st.sampled_from([1, 2, 5, 16, 17, 40, 500]),
    st.none() | st.sampled_from([0.5, 20.0]),
    st.integers(0, 1000),
)
def test_attention_is_dense_attention_over_what_each_chunk_may_see(sizes, shape, window, softcap, seed):
    check(Batch(sizes, shape, window, seed), softcap=softcap)


@pytest.mark.parametrize("window", [None, 1, 100, 255, 256, 257, 1000])
def test_contexts_that_end_at_and_around_a_tile(window):
    ends = (255, 256, 257, 511, 512, 513, 600)
    check(Batch([(end - 1, 1) for end in ends] + [(end - 30, 30) for end in ends], window=window))


@pytest.mark.parametrize("window", [None, 3, 200, 300])
def test_chunks_longer_than_a_tile_of_queries(window):
    check(Batch([(0, 600), (100, 257), (300, 257), (0, 255)], Shape(num_heads=2, num_kv_heads=1), window))


def test_many_decodes_of_very_different_contexts():
    check(Batch([(start, 1) for start in (0, 1, 15, 16, 700, 3, 259, 255, 256, 12, 512, 100)]))


def test_a_block_larger_than_a_tile():
    check(Batch([(0, 700), (400, 1), (3, 1)], Shape(num_heads=2, num_kv_heads=2, block_size=512)))


@pytest.mark.parametrize("window", [1, 16, 64])
def test_a_window_far_behind_the_end_reads_nothing_older(window):
    """All that lies before the window is NaN and infinity in the cache."""
    check(Batch([(1000, 1), (900, 20), (5, 1), (640, 1)], window=window))


def test_scores_large_enough_to_overflow_a_plain_exponential():
    batch = Batch([(40, 3), (0, 20)], window=None)
    out, wanted = found(batch, scale=200.0), batch.expected(0, 200.0)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-3, atol=1e-3)


def test_a_first_token_sees_only_itself():
    batch = Batch([(0, 1), (0, 5)])
    value = batch.context[0][0][1].repeat_interleave(2, dim=1)
    torch.testing.assert_close(found(batch)[:1], value)


def test_leftovers_in_shared_blocks_do_not_leak_from_one_request_into_another():
    """The bits of a chunk are the same whether its neighbours' blocks hold numbers or NaN."""
    batch = Batch([(30, 1), (17, 6), (100, 1)])
    before = found(batch)
    own = batch.chunks.tables[0][0, :2].tolist()  # The first chunk's 31 tokens.
    others = [block for block in range(len(batch.keys[0])) if block not in own]
    batch.keys[0][others] = torch.nan
    batch.values[0][others] = torch.nan
    assert torch.equal(found(batch)[0], before[0])
    assert torch.isfinite(before).all()


def test_nothing_it_is_given_is_changed():
    batch = Batch([(20, 4), (5, 1)])
    copies = [tensor.clone() for tensor in (batch.q, batch.keys[0], batch.values[0])]
    found(batch)
    for tensor, copy in zip((batch.q, batch.keys[0], batch.values[0]), copies, strict=True):
        torch.testing.assert_close(tensor, copy, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("window", [None, 7, 50])
@pytest.mark.parametrize(("keys", "queries"), [(1, 1), (16, 3), (40, 7), (64, 64), (10_000, 10_000)])
def test_the_size_of_the_tiles_does_not_change_the_result(monkeypatch, keys, queries, window):
    batch = Batch([(70, 1), (12, 33), (0, 60), (200, 1), (0, 1)], Shape(block_size=8), window)
    usual = found(batch, softcap=5.0)
    monkeypatch.setattr(attention, "KEYS_PER_TILE", keys)
    monkeypatch.setattr(attention, "QUERIES_PER_TILE", queries)
    torch.testing.assert_close(found(batch, softcap=5.0), usual, rtol=1e-5, atol=1e-5)


@examples(80)
@given(st.lists(SIZES, min_size=1, max_size=8))
def test_chunks_of_one_length_are_stacked_longest_context_first_and_none_is_lost(sizes):
    chunks = Batch(sizes).chunks
    lengths, stacked = [], []
    for equal in stack_equal(chunks):
        lengths.append(equal.token_rows.shape[1])
        assert list(equal.ends) == sorted(equal.ends, reverse=True)
        stacked += equal.indices.tolist()
        for row, place in enumerate(equal.indices.tolist()):
            start, length = sizes[place]
            first = int(chunks.query_starts[place])
            assert equal.token_rows[row].tolist() == list(range(first, first + length))
            assert (equal.starts[row], equal.ends[row]) == (start, start + length)
    assert len(set(lengths)) == len(lengths)
    assert sorted(stacked) == list(range(len(sizes)))


def test_chunks_are_stacked_once_for_all_layers_of_a_step(monkeypatch):
    calls = []

    def counting(chunks):
        calls.append(chunks)
        return stack_equal(chunks)

    monkeypatch.setattr(attention, "stack_equal", counting)
    batch, other = Batch([(20, 4), (5, 1)], Shape(num_groups=2)), Batch([(3, 1)])
    for _ in range(3):
        check(batch)
        check(other)
    assert len(calls) == 2
    assert calls[0] is batch.chunks
    assert calls[1] is other.chunks


def storage_of(tensor):
    return tensor.untyped_storage().data_ptr()


class Allocations(TorchDispatchMode):
    """Counts the values of every tensor that an operation allocates; views and changes in place are free."""

    def __init__(self):
        super().__init__()
        self.largest = self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {
            tensor.untyped_storage().data_ptr() for tensor in tree_leaves((args, kwargs)) if torch.is_tensor(tensor)
        }
        for tensor in tree_leaves(out):
            if torch.is_tensor(tensor) and tensor.untyped_storage().data_ptr() not in given:
                self.largest = max(self.largest, tensor.numel())
                self.total += tensor.numel()
        return out


def allocations(monkeypatch, sizes, window=None):
    monkeypatch.setattr(attention, "KEYS_PER_TILE", 32)
    monkeypatch.setattr(attention, "QUERIES_PER_TILE", 32)
    batch = Batch(sizes, Shape(num_heads=2, num_kv_heads=1, head_dim=4), window)
    with Allocations() as made:
        found(batch)
    return made


def test_memory_does_not_grow_with_the_square_of_the_length(monkeypatch):
    short, long = (allocations(monkeypatch, [(0, length)]).largest for length in (128, 512))
    assert long <= 4 * short
    assert long < 512 * 512


def test_memory_of_a_decode_does_not_grow_with_the_context(monkeypatch):
    short, long = (allocations(monkeypatch, [(start, 1)] * 4).largest for start in (128, 2048))
    assert long <= 1.1 * short


def test_work_of_a_decode_with_a_window_does_not_grow_with_the_context(monkeypatch):
    short, long = (allocations(monkeypatch, [(start, 1)], window=20).total for start in (47, 2047))
    assert long <= 1.1 * short


def test_a_random_step_of_every_kind_of_chunk():
    random = np.random.default_rng(3)
    sizes = [(int(start), 1) for start in random.integers(0, 400, 12)]
    sizes += [(int(start), int(length)) for start, length in random.integers(1, 120, (4, 2))]
    order = random.permutation(len(sizes))
    shape = Shape(num_heads=6, num_kv_heads=2, head_dim=16, num_groups=2, dtype=torch.bfloat16)
    check(Batch([sizes[place] for place in order], shape))
