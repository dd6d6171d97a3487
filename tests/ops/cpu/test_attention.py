"""Paged attention by native kernels: against dense attention in double precision, and the same bits however cut."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from archerfish.ops.reference import cache as reference
from archerfish.ops.reference.cache import round_heads
from archerfish.ops.signatures import Chunks, LayerCache
from tests.lanes import examples
from tests.ops.cpu.native import KERNELS, every_kernel, native, needs_native

pytestmark = needs_native

HEADS, MOST_TOKENS = 4, 6000
DTYPES = [torch.float32, torch.bfloat16, torch.int8]
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@dataclass(frozen=True, kw_only=True)
class Shape:
    kv_heads: int = 2
    dim: int = 32
    block_size: int = 16


USUAL = Shape()


class Cache:
    """Sequences in shuffled blocks of a cache that is full of leftovers."""

    def __init__(self, kernels: str, dtype: torch.dtype, *, threads: int = 2, shape: Shape = USUAL) -> None:
        self.ops = native(kernels, threads)
        self.block_size = shape.block_size
        num_blocks = MOST_TOKENS // shape.block_size
        size = (num_blocks, shape.block_size, shape.kv_heads, shape.dim)
        if dtype == torch.int8:
            numbers = (torch.full(size, 77, dtype=dtype) for _ in range(2))
            self.stored = LayerCache(*numbers, *(torch.full(size[:-1], torch.nan) for _ in range(2)))
        else:
            self.stored = LayerCache(*(torch.full(size, torch.nan, dtype=dtype) for _ in range(2)))
        self.free = np.random.default_rng(0).permutation(num_blocks).tolist()
        self.tables: dict[int, list[int]] = {}
        self.ends: dict[int, int] = {}

    def chunks(self, lengths: dict[int, int]) -> Chunks:
        """The next tokens of some sequences."""
        for sequence, length in lengths.items():
            self.ends[sequence] = self.ends.get(sequence, 0) + length
            table = self.tables.setdefault(sequence, [])
            while len(table) * self.block_size < self.ends[sequence]:
                table.append(self.free.pop())
        ends = np.array([self.ends[sequence] for sequence in lengths])
        counts = np.array(list(lengths.values()))
        widest = max(len(self.tables[sequence]) for sequence in lengths)
        tables = [self.tables[s] + [0] * (widest - len(self.tables[s])) for s in lengths]
        slots = [
            self.tables[sequence][position // self.block_size] * self.block_size + position % self.block_size
            for sequence, length in lengths.items()
            for position in range(self.ends[sequence] - length, self.ends[sequence])
        ]
        return Chunks(
            query_starts=torch.tensor(np.append(0, counts.cumsum()), dtype=torch.int32),
            lengths=torch.tensor(counts, dtype=torch.int32),
            ends=torch.tensor(ends, dtype=torch.int32),
            tables=(torch.tensor(tables, dtype=torch.int32),),
            slots=(torch.tensor(slots, dtype=torch.int64),),
            host_lengths=counts,
            host_ends=ends,
        )

    def step(
        self, rows: dict[int, tuple[Tensor, Tensor, Tensor]], window: int | None = None, cap: float | None = None
    ) -> dict[int, Tensor]:
        """Store keys and values of new tokens (q, k, v) and attend."""
        chunks = self.chunks({sequence: len(q) for sequence, (q, _, _) in rows.items()})
        q, k, v = (torch.cat([one[i] for one in rows.values()]) for i in range(3))
        self.ops.write_kv(k, v, self.stored, chunks.slots[0])
        out = self.ops.attend(q, self.stored, chunks, 0, q.shape[-1] ** -0.5, window, cap)
        return dict(zip(rows, out.split([len(one[0]) for one in rows.values()]), strict=True))


def tokens(seed: int, length: int, shape: Shape = USUAL) -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    sizes = ((length, HEADS, shape.dim), *((length, shape.kv_heads, shape.dim),) * 2)
    q, k, v = (torch.from_numpy(rng.normal(size=size)).float() for size in sizes)
    return q, k, v


def as_stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype != torch.int8:
        return x.to(dtype).double()
    numbers, scales = round_heads(x)
    return numbers.double() * scales.double()[..., None]


def dense(q: Tensor, k: Tensor, v: Tensor, window: int | None, cap: float | None, dtype: torch.dtype) -> Tensor:
    repeat = HEADS // k.shape[1]
    q, k, v = q.double(), *(as_stored(one, dtype).repeat_interleave(repeat, 1) for one in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    scores = scores if cap is None else torch.tanh(scores / cap) * cap
    distance = torch.arange(len(q))[:, None] - torch.arange(len(k))
    hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


@every_kernel
@every_dtype
@pytest.mark.parametrize(("kv_heads", "dim"), [(4, 16), (2, 32), (1, 64), (2, 48), (1, 128), (1, 256)])
@pytest.mark.parametrize(("window", "cap"), [(None, None), (20, None), (70, 4.0), (1, None)])
def test_it_is_attention(
    kernels: str, dtype: torch.dtype, kv_heads: int, dim: int, window: int | None, cap: float | None
) -> None:
    shape = Shape(kv_heads=kv_heads, dim=dim)
    qkv = tokens(1, 150, shape)
    found = Cache(kernels, dtype, shape=shape).step({0: qkv}, window, cap)[0]
    torch.testing.assert_close(found.double(), dense(*qkv, window, cap, dtype), atol=2e-6, rtol=2e-5)


@every_kernel
@every_dtype
@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
@pytest.mark.parametrize("window", [None, 700, 90])
def test_contexts_of_several_spans(kernels: str, dtype: torch.dtype, block_size: int, window: int | None) -> None:
    shape = Shape(block_size=block_size)
    qkv = tokens(2, 1300, shape)
    found = Cache(kernels, dtype, shape=shape).step({0: qkv}, window)[0]
    torch.testing.assert_close(found.double(), dense(*qkv, window, None, dtype), atol=2e-6, rtol=2e-5)


@examples(60)
@given(
    st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=4),
    st.sampled_from([None, 1, 17, 64]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from(DTYPES),
    st.sampled_from([16, 32, 64]),
)
def test_neither_chunks_nor_neighbours_nor_threads_change_a_bit(
    cuts: list[list[int]], window: int | None, threads: int, dtype: torch.dtype, block_size: int
) -> None:
    shape = Shape(block_size=block_size)
    whole = {number: tokens(number, sum(lengths)) for number, lengths in enumerate(cuts)}
    found = in_steps(Cache(KERNELS[0], dtype, threads=threads, shape=shape), whole, cuts, window)
    for number, one in whole.items():
        alone = Cache(KERNELS[0], dtype, threads=1).step({number: one}, window)[number]
        assert torch.equal(found[number], alone)


def in_steps(
    cache: Cache, whole: dict[int, tuple[Tensor, Tensor, Tensor]], cuts: list[list[int]], window: int | None
) -> dict[int, Tensor]:
    """Each sequence cut into chunks, the first chunks of all in one step, then the second ones."""
    found: dict[int, list[Tensor]] = {number: [] for number in whole}
    for step in range(max(map(len, cuts))):
        rows = {}
        for number, lengths in enumerate(cuts):
            if step < len(lengths):
                first = sum(lengths[:step])
                q, k, v = (part[first : first + lengths[step]] for part in whole[number])
                rows[number] = (q, k, v)
        for number, out in cache.step(rows, window).items():
            found[number].append(out)
    return {number: torch.cat(pieces) for number, pieces in found.items()}


@every_dtype
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("window", [None, 600, 30])
def test_spans_give_the_same_bits_walked_by_one_unit_or_by_many(
    dtype: torch.dtype, threads: int, window: int | None
) -> None:
    """The whole prompts have too many queries for parts of their own; the last tokens come one by one, in parts."""
    lengths = [1100, 700, 40, 513]
    whole = {number: tokens(number, length) for number, length in enumerate(lengths)}
    cuts = [[length - 7, 3, *[1] * 4] for length in lengths]
    cache = Cache(KERNELS[0], dtype, threads=threads)
    found = in_steps(cache, whole, cuts, window)
    assert not cache.ops._attention_workspace.num_done.any(), (
        "the next step would put parts together before all are there"
    )
    at_once = Cache(KERNELS[0], dtype).step(whole, window)
    for number in whole:
        assert torch.equal(found[number], at_once[number])


@pytest.mark.skipif(len(KERNELS) < 2, reason="this CPU runs one set of kernels")
@every_dtype
def test_every_instruction_set_gives_the_same_bits(dtype: torch.dtype) -> None:
    qkv, following = tokens(1, 600), tokens(2, 1)
    caches = [Cache(kernels, dtype) for kernels in KERNELS]
    first, *others = (torch.cat([cache.step({0: one})[0] for one in (qkv, following)]) for cache in caches)
    assert all(torch.equal(other, first) for other in others)


# -- int8 --------------------------------------------------------------------------------------------------------------


def spoilt(seed: int) -> Tensor:
    """Heads with nothing, next to nothing, far too much, and what is no number."""
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(10, 2, 32))).float()
    for token, factor in enumerate((0.0, 1e-45, 1e-38, 1e-30, 1e30, 3e37)):
        x[token, token % 2] *= factor
    for token, value in enumerate((torch.nan, torch.inf, -torch.inf), start=6):
        x[token, 1, token] = value
    return x


@every_kernel
def test_int8_is_stored_as_the_reference_stores_it(kernels: str) -> None:
    k, v = spoilt(0), spoilt(1)
    size = (3, 16, 2, 32)
    caches = [_empty_int8(size) for _ in range(2)]
    slots = torch.tensor([3, 17, 40, 0, 31, 32, 8, 9, 10, 47])
    native(kernels).write_kv(k, v, caches[0], slots)
    reference.write_kv(k, v, caches[1], slots)
    keys = caches[0].keys.view(3, 2, 1, 32, 16).permute(0, 2, 4, 1, 3).reshape(size)
    assert torch.equal(keys, caches[1].keys)
    assert torch.equal(caches[0].values, caches[1].values)
    for mine, theirs in (
        (caches[0].key_scales, caches[1].key_scales),
        (caches[0].value_scales, caches[1].value_scales),
    ):
        assert mine is not None and theirs is not None
        torch.testing.assert_close(mine.view(3, 2, 16).transpose(1, 2), theirs, rtol=0, atol=0, equal_nan=True)


def _empty_int8(size: tuple[int, ...]) -> LayerCache:
    numbers = (torch.zeros(size, dtype=torch.int8) for _ in range(2))
    return LayerCache(*numbers, *(torch.zeros(size[:-1]) for _ in range(2)))


@every_kernel
@pytest.mark.parametrize("spread", [0.0, 1e-42, 1e-30, 1e15])
def test_int8_of_extreme_keys_and_values(kernels: str, spread: float) -> None:
    q, k, v = tokens(1, 80)
    q, k = q / max(1.0, spread), k * spread
    v = v * spread
    found = Cache(kernels, torch.int8).step({0: (q, k, v)})[0]
    wanted = dense(q, k, v, None, None, torch.int8)
    torch.testing.assert_close(found.double(), wanted, atol=2e-6 * spread, rtol=2e-5)


@every_kernel
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("which", [1, 2], ids=["keys", "values"])
def test_int8_that_is_not_finite_spoils_only_queries_that_see_it(kernels: str, broken: float, which: int) -> None:
    qkv = tokens(1, 90)
    fine = Cache(kernels, torch.int8).step({0: qkv})[0]
    qkv[which][40, 1, 5] = broken
    found = Cache(kernels, torch.int8).step({0: qkv})[0]
    assert torch.equal(found[:40], fine[:40])
    assert torch.equal(found[:, :2], fine[:, :2]), "the other head of keys and values"
    assert found[40:, 2:].isnan().all()


def test_copied_blocks_bring_their_scales() -> None:
    ops, size = native(KERNELS[0]), (4, 16, 2, 32)
    cache = _empty_int8(size)
    _, k, v = tokens(3, 32)
    ops.write_kv(k, v, cache, torch.arange(32))
    ops.copy_blocks(cache, torch.tensor([0, 1]), torch.tensor([3, 2]))
    for tensor in cache.tensors:
        assert torch.equal(tensor[[3, 2]], tensor[[0, 1]])
        assert tensor[2].count_nonzero()
