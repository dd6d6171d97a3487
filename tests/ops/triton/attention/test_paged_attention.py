"""Paged attention by Triton kernels: against dense attention in double precision, and the same bits however cut."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from archerfish.ops.signatures import LayerCache
from archerfish.ops.triton.attention.attention_schedule import UNIT_FIELDS, Cut, TileCut, attention_units
from archerfish.ops.triton.attention.paged_attention import (
    AttentionScratch,
    AttentionWork,
    HeadShape,
    Scoring,
    UnitList,
    attend,
    attend_into,
    num_processors,
    why_not_attention,
)
from tests.lanes import full
from tests.ops.ragged import Batch, Shape
from tests.ops.triton.attention.paged import FP8, arrange, check_same_bits, exact_in

pytestmark = pytest.mark.each_choice

SCALE = 0.4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float16, torch.bfloat16]
# Weights are rounded to the model's dtype before values are multiplied by them, and the result once more.
TOLERANCE = {torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
SMALL = Shape(num_heads=4, num_kv_heads=2, head_dim=16, dtype=torch.float16)


def on_device(chunks):
    return replace(
        chunks,
        query_starts=chunks.query_starts.to(DEVICE),
        lengths=chunks.lengths.to(DEVICE),
        ends=chunks.ends.to(DEVICE),
        tables=tuple(table.to(DEVICE) for table in chunks.tables),
    )


def cache_of(batch, group=0, dtype=None):
    blocks = (arrange(part[group]).to(dtype or part[group].dtype).to(DEVICE) for part in (batch.keys, batch.values))
    return LayerCache(*blocks)


def check(batch, softcap=None, dtype=None):
    tolerance = TOLERANCE[batch.shape.dtype]
    chunks = on_device(batch.chunks)
    for group in range(batch.shape.num_groups):
        cache = cache_of(batch, group, dtype)
        out = attend(batch.q.to(DEVICE), cache, chunks, group, SCALE, batch.window, softcap)
        assert out.dtype == batch.shape.dtype
        wanted = batch.expected(group, SCALE, softcap)
        torch.testing.assert_close(out.double().cpu(), wanted, rtol=tolerance, atol=tolerance)


# -- What it computes --------------------------------------------------------------------------------------------------


def random_sizes(random):
    """Some chunks: a decoded token, a whole prompt, a piece of one, what begins around the end of a tile or split."""
    kinds = (
        lambda: (random.integers(0, 90), 1),
        lambda: (0, random.integers(1, 90)),
        lambda: (random.integers(0, 60), random.integers(1, 40)),
        lambda: (random.choice([63, 64, 65, 127, 511, 512]), random.choice([1, 4, 16])),
    )
    return [tuple(map(int, kinds[random.integers(4)]())) for _ in range(random.integers(1, 5))]


@pytest.mark.parametrize("seed", [*range(4), *full(*range(4, 16))])
def test_it_is_dense_attention_over_what_each_chunk_may_see(seed):
    random = np.random.default_rng(seed)
    num_heads, num_kv_heads = ((4, 4), (4, 2), (6, 2), (3, 1))[random.integers(4)]
    shape = Shape(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=16,
        block_size=int(random.choice([16, 32, 48, 128])),
        dtype=DTYPES[seed % 2],
    )
    window = (None, None, 1, 5, 40, 64, 500)[random.integers(7)]
    softcap = (None, None, 0.5, 20.0)[random.integers(4)]
    check(Batch(random_sizes(random), shape, window, seed), softcap)


@pytest.mark.parametrize("head_dim", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_of_every_width(head_dim, dtype):
    check(Batch([(70, 1), (30, 20)], Shape(num_heads=4, num_kv_heads=2, head_dim=head_dim, dtype=dtype)))


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (7, 1), (24, 1), (71, 1), (10, 2)])
def test_any_number_of_heads_may_share_keys(num_heads, num_kv_heads):
    shape = Shape(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=16, dtype=torch.float16)
    check(Batch([(70, 1), (60, 9)], shape))


@pytest.mark.parametrize("window", [None, 1, 512, *full(30, 700)])
def test_contexts_of_several_splits(window):
    check(Batch([(1100, 1), (511, 1), (512, 1), (500, 40), (1023, 3)], SMALL, window))


def test_groups_have_tables_of_their_own():
    check(Batch([(40, 1), (0, 20)], replace(SMALL, num_groups=2)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 50])
def test_a_cache_of_eight_bit_floats(dtype, window):
    shape = Shape(num_heads=4, num_kv_heads=2, head_dim=32, dtype=dtype)
    batch = Batch([(70, 1), (30, 40), (600, 1)], shape, window)
    batch.context[0] = [(exact_in(k, FP8), exact_in(v, FP8)) for k, v in batch.context[0]]
    check(batch, dtype=FP8)


def test_scores_too_large_for_a_plain_exponential():
    batch = Batch([(40, 3), (0, 20)], SMALL)
    batch.q *= 500
    check(batch)


# -- One answer --------------------------------------------------------------------------------------------------------


@dataclass
class Sequences:
    """Whole sequences in a cache full of leftovers; attention can be computed for any stretch of their tokens."""

    lengths: list[int]
    window: int | None = None
    dtype: torch.dtype = torch.float16
    softcap: float | None = None

    def __post_init__(self) -> None:
        self.batch = Batch([(0, length) for length in self.lengths], replace(SMALL, dtype=self.dtype))
        self.cache = cache_of(self.batch)
        self.table = self.batch.chunks.tables[0].to(DEVICE)
        self.q = dict(enumerate(self.batch.q.to(DEVICE).split(self.lengths)))
        self.shape = HeadShape(num_heads=4, num_kv_heads=2, head_dim=16)

    def cut(self, most_partials: int = 500) -> Cut:
        return self.shape.cut(num_processors(torch.device(DEVICE)), most_partials)

    def attention_of(
        self, stretches: list[tuple[int, int, int]], cut: Cut | None = None, spare_units: int = 0
    ) -> list[Tensor]:
        """What tokens from start up to stop of a sequence get, for each (sequence, start, stop), in one step."""
        cut = cut or self.cut()
        sequences, starts, stops = (np.array(column) for column in zip(*stretches, strict=True))
        lengths = stops - starts
        units = attention_units(sequences, starts, lengths, np.cumsum(lengths) - lengths, self.window, cut)
        q = torch.cat([self.q[sequence][start:stop] for sequence, start, stop in stretches])
        out = torch.full_like(q, torch.nan)
        scratch = AttentionScratch.of(self.shape, cut.most_partials, q.device)
        work = AttentionWork(*(unit_list(one, spare_units) for one in units))
        scoring = Scoring(SCALE, self.window, self.softcap)
        attend_into(out, q, self.cache, work, self.table, scratch, scoring)
        assert not scratch.counters.any(), "the next launch would fold before all have arrived"
        return list(out.split(lengths.tolist()))


def unit_list(units, spare):
    """With room for more, full of what would be read out of bounds."""
    room = np.full((spare, UNIT_FIELDS), 2**30, np.int32)
    count = torch.tensor([len(units)], dtype=torch.int32, device=DEVICE)
    return UnitList(torch.from_numpy(np.concatenate([units, room])).to(DEVICE), count)


STRETCHES = [(0, 1099, 1100), (1, 512, 513), (0, 511, 512), (2, 40, 41), (1, 560, 600)]
every_window = pytest.mark.parametrize("window", [None, 600, *full(40)])


@every_window
def test_neighbours_do_not_change_a_bit(window):
    sequences = Sequences([1100, 600, 90], window)
    together = sequences.attention_of(STRETCHES)
    for place, stretch in enumerate(STRETCHES):
        assert torch.equal(sequences.attention_of([stretch])[0], together[place])


@every_window
def test_neither_sharing_a_tile_nor_room_for_more_units_changes_a_bit(window):
    sequences = Sequences([1100, 600, 90], window)
    shared = sequences.attention_of(STRETCHES, spare_units=5)
    alone = sequences.attention_of(STRETCHES, sequences.cut(most_partials=0))
    assert all(torch.equal(found, wanted) for found, wanted in zip(shared, alone, strict=True))


@pytest.mark.parametrize(
    ("window", "dtype", "softcap"),
    [
        pytest.param(None, torch.float16, None, marks=pytest.mark.full),
        (None, torch.bfloat16, 3.0),
        (600, torch.float16, 3.0),
        pytest.param(40, torch.bfloat16, None, marks=pytest.mark.full),
    ],
)
def test_a_token_gets_the_same_bits_in_a_prompt_and_decoded(window, dtype, softcap):
    sequences = Sequences([640], window, dtype, softcap)
    (whole,) = sequences.attention_of([(0, 0, 640)])
    for position in (0, 64, 511, 512, 639):
        check_same_bits(sequences.attention_of([(0, position, position + 1)])[0], whole[position : position + 1])


@every_window
def test_chunks_of_any_length_give_the_same_bits(window):
    sequences = Sequences([560], window)
    (whole,) = sequences.attention_of([(0, 490, 560)])
    for ends in ([505, 511, 512, 560], [491, 513, 514, 560]):
        starts = [490, *ends[:-1]]
        found = sequences.attention_of([(0, start, end) for start, end in zip(starts, ends, strict=True)])
        check_same_bits(torch.cat(found), whole)


def test_tiles_of_other_sizes_give_the_same_bits():
    """A tile that is not full has empty rows."""
    sequences = Sequences([600])
    (usual,) = sequences.attention_of([(0, 575, 600)])
    for tokens in (3, 8):
        cut = Cut(TileCut(tokens, 100), TileCut(4 * tokens, 100), 500)
        check_same_bits(sequences.attention_of([(0, 575, 600)], cut)[0], usual)


# -- How it is called --------------------------------------------------------------------------------------------------


def test_rows_and_blocks_may_lie_apart():
    sequences = Sequences([600, 90])
    (wanted,) = sequences.attention_of([(0, 590, 600)])
    keys, values = (
        torch.stack([part, part + 1], dim=1)[:, 0] for part in (sequences.cache.keys, sequences.cache.values)
    )
    sequences.cache = LayerCache(keys, values)
    wide = torch.full((600, 12, 16), torch.nan, dtype=torch.float16, device=DEVICE)
    wide[:, 3:7] = sequences.q[0]
    sequences.q[0] = wide[:, 3:7]
    units = attention_units(*(np.array([x]) for x in (0, 590, 10, 0)), None, sequences.cut())
    out = torch.full((10, 9, 16), torch.nan, dtype=torch.float16, device=DEVICE)
    scratch = AttentionScratch.of(sequences.shape, 500, out.device)
    work = AttentionWork(*(unit_list(one, 0) if len(one) else None for one in units))
    q = sequences.q[0][590:]
    attend_into(out[:, 2:6], q, sequences.cache, work, sequences.table, scratch, Scoring(SCALE, None, None))
    assert torch.equal(out[:, 2:6], wanted)
    assert out[:, :2].isnan().all() and out[:, 6:].isnan().all()


def test_nothing_it_is_given_is_changed():
    batch = Batch([(600, 4), (5, 1)], SMALL)
    given = (batch.q.to(DEVICE), *cache_of(batch).tensors)
    copies = [tensor.clone() for tensor in given]
    attend(given[0], LayerCache(*given[1:]), on_device(batch.chunks), 0, SCALE, None, None)
    for tensor, copy in zip(given, copies, strict=True):
        torch.testing.assert_close(tensor, copy, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "block_size", "reason"),
    [
        ("bfloat16", 128, 16, None),
        ("float16", 64, 48, None),
        ("float16", None, None, None),
        ("float32", 128, 16, "not float32"),
        ("bfloat16", 96, 16, "heads of 96"),
        ("bfloat16", 8, 16, "heads of 8"),
        ("bfloat16", 512, 16, "heads of 512"),
        ("bfloat16", 128, 8, "--block-size 8"),
    ],
)
def test_why_not(dtype, head_dim, block_size, reason):
    found = why_not_attention(dtype, head_dim, block_size)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(("scale", "softcap", "message"), [(-1.0, None, "scale of -1.0"), (1.0, 0.0, "cap of 0.0")])
def test_scores_that_cannot_be_ordered_are_refused(scale, softcap, message):
    batch = Batch([(5, 1)], SMALL)
    with pytest.raises(AssertionError, match=message):
        attend(batch.q.to(DEVICE), cache_of(batch), on_device(batch.chunks), 0, scale, None, softcap)


def test_a_cache_with_scales_or_of_another_format_is_refused():
    batch = Batch([(5, 1)], SMALL)
    cache, chunks = cache_of(batch), on_device(batch.chunks)
    scales = torch.zeros(cache.keys.shape[:-1])
    with pytest.raises(AssertionError, match="scales"):
        attend(batch.q, LayerCache(cache.keys, cache.values, scales, scales), chunks, 0, SCALE, None, None)
    with pytest.raises(AssertionError, match="float32"):
        attend(batch.q, LayerCache(cache.keys.float(), cache.values.float()), chunks, 0, SCALE, None, None)
