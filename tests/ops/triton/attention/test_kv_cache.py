"""Heads placed by a Triton kernel: what norm, rotation and storing give one after the other, and nothing elsewhere."""

import numpy as np
import pytest
import torch

from archerfish.ops.reference import cache as reference
from archerfish.ops.reference.layers import rms_norm, rotate
from archerfish.ops.signatures import LayerCache
from archerfish.ops.triton.attention.kv_cache import (
    QkNormRope,
    copy_blocks,
    move_kv,
    qk_norm_rope_kv_write_into,
    write_kv,
)
from archerfish.ops.triton.runtime.kernel_launch import INTERPRETED
from tests.ops.triton.attention.paged import FP8, arranged, exact_in

pytestmark = pytest.mark.each_choice

NUM_BLOCKS, BLOCK_SIZE = 5, 16
SLOTS = [3, 17, -1, 79, 0, 34]
POSITIONS = [3, 9, 0, 1, 11, 7]
EPS = 1e-6
# The order of a sum can decide to which of its neighbours a number is rounded. To bfloat16 the interpreter cuts instead
# of rounding, after the norm and after the rotation.
UNIT = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-6 if INTERPRETED else 2.0**-7}
DTYPES = [torch.float16, torch.bfloat16]


def numbers(seed, *size, dtype, factor=1.0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=size) * factor).to(dtype)


def empty_cache(num_kv_heads, head_dim, dtype, device, seed=5):
    size = (NUM_BLOCKS, BLOCK_SIZE, num_kv_heads, head_dim)
    return LayerCache(*(numbers(seed + i, *size, dtype=torch.float32).to(dtype).to(device) for i in range(2)))


def clone(cache):
    return LayerCache(cache.keys.clone(), cache.values.clone())


def steps(head_dim, rotated, normed, dtype, device):
    q_weight, k_weight = (numbers(i, head_dim, dtype=dtype).to(device) if normed else None for i in range(2))
    angles = numbers(3, 12, rotated, dtype=torch.float32).to(device) if rotated else None
    return QkNormRope(angles=angles, q_weight=q_weight, k_weight=k_weight, eps=EPS, weight_offset=0.5)


def composed(x, weight, angles, positions):
    """[T, heads, D] by the reference's operations."""
    if weight is not None:
        x = rms_norm(x, weight, EPS, 0.5)
    return x if angles is None else rotate(x, angles[positions.long()])


def check_close(found, wanted):
    unit = UNIT[wanted.dtype]
    torch.testing.assert_close(found.float(), wanted.float(), rtol=1.01 * unit, atol=4 * unit)


SHAPES = [(4, 2, 16, 16), (6, 2, 32, 20), (14, 2, 64, 64), (3, 1, 128, 32), (4, 4, 256, 0), (71, 1, 64, 64)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim", "rotated"), SHAPES)
def test_placing_is_norm_rotation_and_storing(num_heads, num_kv_heads, head_dim, rotated, normed, dtype, device):
    given = steps(head_dim, rotated, normed, dtype, device)
    qkv = numbers(0, len(SLOTS), (num_heads + 2 * num_kv_heads) * head_dim, dtype=dtype, factor=3.0).to(device)
    slots, positions = torch.tensor(SLOTS, device=device), torch.tensor(POSITIONS, device=device, dtype=torch.int32)
    cache = empty_cache(num_kv_heads, head_dim, dtype, device)
    before = clone(cache)
    out = torch.full((len(SLOTS), num_heads, head_dim), torch.nan, dtype=dtype, device=device)
    qk_norm_rope_kv_write_into(out, qkv, cache, slots, positions, given)

    q, k, v = (part.unflatten(1, (-1, head_dim)) for part in qkv.split(split_sizes(qkv, num_heads, head_dim), dim=1))
    check_close(out, composed(q, given.q_weight, given.angles, positions))
    wanted = LayerCache(arranged(before.keys), arranged(before.values))
    stored = slots >= 0
    k = composed(k, given.k_weight, given.angles, positions)
    reference.write_kv(k[stored], v[stored], wanted, slots[stored])
    check_close(arranged(cache.keys), wanted.keys)
    assert torch.equal(arranged(cache.values), wanted.values)
    untouched = torch.ones(NUM_BLOCKS * BLOCK_SIZE, dtype=torch.bool)
    untouched[slots[stored].cpu()] = False
    places = untouched.view(NUM_BLOCKS, BLOCK_SIZE)
    assert torch.equal(arranged(cache.keys)[places], arranged(before.keys)[places])


def split_sizes(qkv, num_heads, head_dim):
    rest = (qkv.shape[1] - num_heads * head_dim) // 2
    return [num_heads * head_dim, rest, rest]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_layer_that_reads_anothers_keys_places_queries_alone(dtype, device):
    given = steps(32, 32, True, dtype, device)
    q = numbers(0, len(SLOTS), 6 * 32, dtype=dtype).to(device)
    positions = torch.tensor(POSITIONS, device=device)
    out = torch.full((len(SLOTS), 6, 32), torch.nan, dtype=dtype, device=device)
    qk_norm_rope_kv_write_into(out, q, None, None, positions, given)
    check_close(out, composed(q.unflatten(1, (6, 32)), given.q_weight, given.angles, positions))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_is_placed_alike_alone_among_others_and_into_strided_rows(dtype, device):
    given = steps(32, 32, True, dtype, device)
    slots, positions = torch.tensor(SLOTS, device=device), torch.tensor(POSITIONS, device=device)
    qkv = numbers(0, len(SLOTS), 8 * 32, dtype=dtype).to(device)
    together, alone = (empty_cache(2, 32, dtype, device) for _ in range(2))
    out = torch.empty(len(SLOTS), 4, 32, dtype=dtype, device=device)
    qk_norm_rope_kv_write_into(out, qkv, together, slots, positions, given)
    wide = torch.empty(1, 9, 32, dtype=dtype, device=device)
    for token in range(len(SLOTS)):
        place = slice(token, token + 1)
        qk_norm_rope_kv_write_into(wide[:, :4], qkv[place], alone, slots[place], positions[place], given)
        assert torch.equal(wide[0, :4], out[token])
    assert torch.equal(alone.keys, together.keys)
    assert torch.equal(alone.values, together.values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_and_values_are_written_to_a_view_of_a_larger_storage(dtype, device):
    storage = torch.zeros(NUM_BLOCKS, 2, BLOCK_SIZE, 2, 32, dtype=dtype, device=device)
    cache = LayerCache(storage[:, 0], storage[:, 1])
    k, v = (numbers(seed, len(SLOTS), 2, 32, dtype=dtype).to(device) for seed in range(2))
    slots = torch.tensor(SLOTS, device=device)
    write_kv(k, v, cache, slots)
    for stored, x in ((cache.keys, k), (cache.values, v)):
        for token, slot in enumerate(SLOTS):
            if slot >= 0:
                assert torch.equal(arranged(stored)[slot // BLOCK_SIZE, slot % BLOCK_SIZE], x[token])
    assert storage.count_nonzero() == 2 * (len(SLOTS) - 1) * 2 * 32


@pytest.mark.parametrize("dtype", DTYPES)
def test_eight_bit_floats_are_the_nearest_ones_and_never_infinite(dtype, device):
    cache = empty_cache(2, 32, FP8, device)
    k = exact_in(numbers(0, 3, 2, 32, dtype=dtype, factor=30.0), FP8, only=INTERPRETED).to(device)
    k[0, 0, :5] = torch.tensor([448.0, 480.0, 60000.0, -60000.0, -448.0], dtype=dtype)
    write_kv(k, -k, cache, torch.tensor([3, 40, 79], device=device))
    for stored, x in ((cache.keys, k), (cache.values, -k)):
        found = arranged(stored.float()).flatten(0, 1)[[3, 40, 79]]
        assert torch.equal(found, x.float().clamp(-448, 448).to(FP8).float())


@pytest.mark.skipif(INTERPRETED, reason="the interpreter's eight-bit floats have no NaN")
def test_what_is_no_number_stays_none_in_eight_bits(device):
    cache = empty_cache(1, 16, FP8, device)
    k = torch.full((1, 1, 16), torch.nan, dtype=torch.bfloat16, device=device)
    write_kv(k, k, cache, torch.tensor([5], device=device))
    assert arranged(cache.keys.float())[0, 5].isnan().all()


@pytest.mark.parametrize("dtype", [*DTYPES, FP8])
@pytest.mark.parametrize(("sources", "targets"), [([0], [3]), ([0, 1], [1, 0]), ([0, 1, 2], [1, 2, 3]), ([], [])])
def test_blocks_are_copied_as_they_were_before(sources, targets, dtype, device):
    cache = empty_cache(2, 16, dtype, device)
    before = clone(cache)
    copy_blocks(cache, *(torch.tensor(ids, device=device, dtype=torch.int64) for ids in (sources, targets)))
    stored = [block for block in range(NUM_BLOCKS) if block not in targets]
    for found, was in ((cache.keys.float(), before.keys.float()), (cache.values.float(), before.values.float())):
        assert torch.equal(found[targets], was[sources])
        assert torch.equal(found[stored], was[stored])


@pytest.mark.parametrize("dtype", [*DTYPES, FP8])
@pytest.mark.parametrize("num_kv_heads", [1, 3])
@pytest.mark.parametrize(
    ("sources", "targets"),
    [([2], [61]), ([15, 16], [16, 15]), ([31, 33, 40], [30, 31, 32]), ([3, 3], [18, 79]), ([], [])],
)
def test_tokens_are_moved_as_they_were_before(sources, targets, num_kv_heads, dtype, device):
    """In blocks that lie apart, too."""
    whole = empty_cache(num_kv_heads, 16, dtype, device)
    storage = torch.stack([whole.keys.view(torch.uint8), whole.values.view(torch.uint8)], dim=1).view(dtype)
    cache = LayerCache(storage[:, 0], storage[:, 1])
    move_kv(cache, *(torch.tensor(slots, device=device, dtype=torch.int64) for slots in (sources, targets)))
    for found, was in ((cache.keys, whole.keys), (cache.values, whole.values)):
        wanted = arranged(was.float()).flatten(0, 1)
        wanted[targets] = arranged(was.float()).flatten(0, 1)[sources]
        assert torch.equal(arranged(found.float()).flatten(0, 1), wanted)


def test_a_cache_with_scales_is_refused():
    size = (NUM_BLOCKS, BLOCK_SIZE, 1, 16)
    cache = LayerCache(*(torch.zeros(size, dtype=torch.int8) for _ in range(2)), *(torch.zeros(size[:-1]),) * 2)
    x = torch.zeros(1, 1, 16, dtype=torch.float16)
    with pytest.raises(AssertionError, match="scales"):
        write_kv(x, x, cache, torch.tensor([0]))


def test_queries_that_do_not_fill_the_row_are_refused():
    out, qkv = torch.zeros(1, 2, 16, dtype=torch.float16), torch.zeros(1, 64, dtype=torch.float16)
    with pytest.raises(AssertionError, match="64 numbers"):
        qk_norm_rope_kv_write_into(
            out, qkv, None, None, torch.zeros(1, dtype=torch.int32), steps(16, 0, False, torch.float16, "cpu")
        )
