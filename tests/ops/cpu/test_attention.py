"""Paged attention by native kernels: against dense attention in double precision, and the same bits however cut."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from archerfish.ops.signatures import Chunks
from tests.ops.cpu.native import KERNELS, every_kernel, native, needs_native

pytestmark = needs_native

NUM_BLOCKS, HEADS = 40, 4


class Cache:
    """Sequences in shuffled blocks of a cache that is full of leftovers."""

    def __init__(self, kernels: str, dtype: torch.dtype, *, threads: int = 2, kv_heads: int = 2, dim: int = 32) -> None:
        self.ops = native(kernels, threads)
        self.block_size = 16
        self.keys, self.values = (torch.full((NUM_BLOCKS, 16, kv_heads, dim), torch.nan, dtype=dtype) for _ in range(2))
        self.free = np.random.default_rng(0).permutation(NUM_BLOCKS).tolist()
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
            self.tables[sequence][position // 16] * 16 + position % 16
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
        self.ops.write_kv(k, v, self.keys, self.values, chunks.slots[0])
        out = self.ops.attend(q, self.keys, self.values, chunks, 0, q.shape[-1] ** -0.5, window, cap)
        return dict(zip(rows, out.split([len(one[0]) for one in rows.values()]), strict=True))


def tokens(seed: int, length: int, kv_heads: int = 2, dim: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    shapes = ((length, HEADS, dim), (length, kv_heads, dim), (length, kv_heads, dim))
    q, k, v = (torch.from_numpy(rng.normal(size=shape)).float() for shape in shapes)
    return q, k, v


def dense(q: Tensor, k: Tensor, v: Tensor, window: int | None, cap: float | None, dtype: torch.dtype) -> Tensor:
    repeat = HEADS // k.shape[1]
    q, k, v = q.double(), *(one.to(dtype).double().repeat_interleave(repeat, 1) for one in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    scores = scores if cap is None else torch.tanh(scores / cap) * cap
    distance = torch.arange(len(q))[:, None] - torch.arange(len(k))
    hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kv_heads", "dim"), [(4, 16), (2, 32), (1, 64), (2, 48), (1, 128)])
@pytest.mark.parametrize(("window", "cap"), [(None, None), (20, None), (70, 4.0), (1, None)])
def test_it_is_attention(
    kernels: str, dtype: torch.dtype, kv_heads: int, dim: int, window: int | None, cap: float | None
) -> None:
    asked = tokens(1, 150, kv_heads, dim)
    found = Cache(kernels, dtype, kv_heads=kv_heads, dim=dim).step({0: asked}, window, cap)[0]
    wanted = dense(*asked, window, cap, dtype)
    torch.testing.assert_close(found.double(), wanted, atol=2e-6, rtol=2e-5)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=4),
    st.sampled_from([None, 1, 17, 64]),
    st.sampled_from([1, 2, 3]),
)
def test_neither_chunks_nor_neighbours_nor_threads_change_a_bit(
    cuts: list[list[int]], window: int | None, threads: int
) -> None:
    whole = {number: tokens(number, sum(lengths)) for number, lengths in enumerate(cuts)}
    alone = {
        number: Cache(KERNELS[0], torch.bfloat16, threads=1).step({number: one}, window)[number]
        for number, one in whole.items()
    }
    cache = Cache(KERNELS[0], torch.bfloat16, threads=threads)
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
    for number, pieces in found.items():
        assert torch.equal(torch.cat(pieces), alone[number])


@pytest.mark.skipif(len(KERNELS) < 2, reason="this CPU runs one set of kernels")
def test_every_instruction_set_gives_the_same_bits() -> None:
    asked = tokens(1, 100)
    first, *others = (Cache(kernels, torch.bfloat16).step({0: asked})[0] for kernels in KERNELS)
    assert all(torch.equal(other, first) for other in others)
