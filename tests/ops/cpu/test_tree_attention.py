"""Attention of trees by native kernels: each token has the very bits that its line alone would give it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from archerfish.ops.signatures import LayerCache
from archerfish.speculation.draft import Draft
from tests.lanes import examples
from tests.ops.cpu.native import KERNELS, every_kernel, native, needs_native
from tests.ops.trees import Heads, Machine, bushy, check_lines, deep, random_tree

pytestmark = needs_native

DTYPES = [torch.float32, torch.bfloat16, torch.int8]
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
USUAL = Heads()


def machine(
    dtype: torch.dtype, heads: Heads = USUAL, *, kernels: str = KERNELS[0] if KERNELS else "", block_size: int = 16
) -> Machine:
    ops = native(kernels)

    def cache(num_blocks: int) -> LayerCache:
        size = (num_blocks, block_size, heads.num_kv_heads, heads.head_dim)
        if dtype == torch.int8:
            numbers = (torch.full(size, 77, dtype=dtype) for _ in range(2))
            return LayerCache(*numbers, *(torch.full(size[:-1], torch.nan) for _ in range(2)))
        return LayerCache(*(torch.full(size, torch.nan, dtype=dtype) for _ in range(2)))

    return Machine(write_kv=ops.write_kv, attend=ops.attend, cache=cache)


def same_bits(found: Tensor, wanted: Tensor) -> None:
    assert torch.equal(found, wanted)


@examples(60)
@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(2, 20), st.booleans()), min_size=1, max_size=4),
    st.sampled_from([16, 32, 64]),
    st.sampled_from(DTYPES),
    st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    st.none() | st.sampled_from([1, 3, 17, 64, 100]),
    st.none() | st.just(2.0),
    st.integers(0, 1000),
)
def test_a_token_has_the_bits_of_its_line_alone(
    chunks: list[tuple[int, int, bool]],
    block_size: int,
    dtype: torch.dtype,
    shared: tuple[int, int],
    window: int | None,
    softcap: float | None,
    seed: int,
) -> None:
    heads, random = Heads(num_heads=shared[0], num_kv_heads=shared[1]), np.random.default_rng(seed)
    sequences = [
        heads.tokens(seed + place, start, random_tree(random, count) if is_tree else count)
        for place, (start, count, is_tree) in enumerate(chunks)
    ]
    check_lines(machine(dtype, heads, block_size=block_size), sequences, same_bits, window, softcap)


@every_kernel
@every_dtype
@pytest.mark.parametrize("tree", [bushy(63), deep(63)], ids=["bushy", "deep"])
@pytest.mark.parametrize("block_size", [16, 32])
def test_the_largest_trees(kernels: str, dtype: torch.dtype, tree: Draft, block_size: int) -> None:
    sequences = [USUAL.tokens(0, 0, tree), USUAL.tokens(1, 50, tree), USUAL.tokens(2, 40, 3), USUAL.tokens(3, 90, 1)]
    check_lines(machine(dtype, kernels=kernels, block_size=block_size), sequences, same_bits)


@every_dtype
@pytest.mark.parametrize("window", [None, 30, 498, 700])
@pytest.mark.parametrize("start", [480, 511, 996])
def test_contexts_of_several_spans(dtype: torch.dtype, window: int | None, start: int) -> None:
    """Rows of one unit end in different spans, and begin there where windows are short."""
    late = Draft(tuple(range(43)), (-1, *range(39), -1, 0, -1))  # A long line, and siblings of some of its first.
    sequences = [USUAL.tokens(0, start, late), USUAL.tokens(1, start, bushy(9)), USUAL.tokens(2, 40, 1)]
    ops = native(KERNELS[0])
    check_lines(machine(dtype), sequences, same_bits, window)
    assert not ops._attention_workspace.num_done.any(), "the next step would put parts together before all are there"


def test_heads_that_fill_a_unit_by_themselves() -> None:
    heads = Heads(num_heads=40, num_kv_heads=1, head_dim=32)
    check_lines(machine(torch.float32, heads), [heads.tokens(0, 70, bushy(6))], same_bits)


@every_kernel
def test_what_is_no_number_spoils_its_own_line_only(kernels: str) -> None:
    tokens = USUAL.tokens(0, 30, bushy(6))
    fine = machine(torch.float32, kernels=kernels).run([tokens])[0]
    tokens.v[31] = torch.nan  # The first draft token; 3 and 4 follow it.
    found = machine(torch.float32, kernels=kernels).run([tokens])[0]
    others = [0, 2, 5, 6]
    assert torch.equal(found[others], fine[others])
    assert found[[1, 3, 4]].isnan().all()


@pytest.mark.skipif(len(KERNELS) < 2, reason="this CPU runs one set of kernels")
@every_dtype
def test_every_instruction_set_gives_the_same_bits(dtype: torch.dtype) -> None:
    tokens = USUAL.tokens(0, 530, bushy(20))
    first, *others = (machine(dtype, kernels=kernels).run([tokens])[0] for kernels in KERNELS)
    assert all(torch.equal(other, first) for other in others)
