"""The walk of attention over keys: tile by tile and split by split, for small tiles of query tokens and for large ones.

Knows the arrangement of a block, [G, B, D] whatever the tensor's shape says; whose keys and which splits is told. What
must hold for the bits is said in `attention_kernel`.
"""

import triton
import triton.language as tl

from archerfish.ops.triton.runtime import INTERPRETED, dot

_TIMES_SUMMED: tl.constexpr = tl.constexpr(16)
"""Weights are summed by a product with ones, which has no fewer columns or rows than this."""
_RUN: tl.constexpr = tl.constexpr(16)
"""Positions that lie one after the other in every block, since blocks have multiples of them."""
_COMPILED: tl.constexpr = tl.constexpr(not INTERPRETED)


@triton.jit
def _by_row(values, KEYS_FIRST: tl.constexpr):
    """[rows] beside scores or weighted values."""
    return values[None, :] if KEYS_FIRST else values[:, None]


@triton.jit
def _by_key(values, KEYS_FIRST: tl.constexpr):
    """[keys] beside scores."""
    return values[:, None] if KEYS_FIRST else values[None, :]


@triton.jit
def fold(peak, total, weighted, next_peak, next_total, next_weighted, KEYS_FIRST: tl.constexpr):
    """The softmax of some splits, joined by the next one's: peaks and totals [rows], weighted values [rows, D]."""
    joint = tl.maximum(peak, next_peak)
    safe = tl.where(joint == float("-inf"), 0.0, joint)
    shrink, next_shrink = tl.exp2(peak - safe), tl.exp2(next_peak - safe)
    # Where a row saw nothing of the split, not even the sign of a zero may change.
    seen = next_total != 0.0
    total = tl.where(seen, tl.fma(total, shrink, next_total * next_shrink), total)
    joined = tl.fma(weighted, _by_row(shrink, KEYS_FIRST), next_weighted * _by_row(next_shrink, KEYS_FIRST))
    return joint, total, tl.where(_by_row(seen, KEYS_FIRST), joined, weighted)


@triton.jit
def _widened(numbers, dtype: tl.constexpr):
    """Keys or values as the tensor core wants them.

    Eight bits are converted as they were loaded, many by each thread: converted as operands, as the compiler would have
    it, values would be picked out of shared memory byte by byte.
    """
    if _COMPILED and numbers.dtype == tl.float8e4nv:
        tl.static_assert(dtype == tl.float16)
        wide = tl.inline_asm_elementwise(
            "{ .reg .b16 a, b; mov.b32 {a, b}, $2; cvt.rn.f16x2.e4m3x2 $0, a; cvt.rn.f16x2.e4m3x2 $1, b; }",
            "=r,=r,r", [numbers.to(tl.uint8, bitcast=True)], dtype=tl.float16, is_pure=False, pack=4,
        )  # fmt: skip
    else:
        wide = numbers.to(dtype)
    return wide


@triton.jit
def _loaded(
    cache, blocks, offsets, start, reach,
    KEYS: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Keys and values [KEYS, D] of positions from start on; where masked, zeros for those that are not alive.

    Offsets in their blocks are those of their positions, if not told. A block may hold leftovers that a weight of zero
    would not silence.
    """
    keys, values, block_stride = cache[0], cache[1], cache[2]
    RUN: tl.constexpr = KEYS // blocks.shape[0]
    firsts = start + tl.arange(0, KEYS // RUN) * RUN
    numbers = tl.arange(0, RUN * D)[None, :]
    runs = blocks.to(tl.int64) * block_stride + (firsts % BLOCK_SIZE if offsets is None else offsets) * D
    places = runs[:, None] + numbers
    if MASKED:
        positions = firsts[:, None] + numbers // D
        alive = (positions >= reach[0]) & (positions < reach[1])
        k, v = tl.load(keys + places, mask=alive, other=0.0), tl.load(values + places, mask=alive, other=0.0)
    else:
        k, v = tl.load(keys + places), tl.load(values + places)
    return tl.reshape(k, (KEYS, D)), tl.reshape(v, (KEYS, D))


@triton.jit
def _blocks(cache, start, stop, KEYS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Of positions from start on: of each, or of each run of bytes, which are too short to be loaded one by one."""
    RUN: tl.constexpr = _RUN if cache[0].dtype.element_ty == tl.float8e4nv else 1
    firsts = start + tl.arange(0, KEYS // RUN) * RUN
    return tl.load(cache[3] + firsts // BLOCK_SIZE, mask=firsts < stop, other=0)


@triton.jit
def _followed(cache, line, start, stop, KEYS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Blocks of positions from start on, and offsets in them, where those from a root on lie as a line says."""
    root, path = line
    positions = start + tl.arange(0, KEYS)
    is_lined = positions >= root
    numbers = tl.load(path + (positions - root), mask=is_lined & (positions < stop), other=0).to(tl.int32)
    places = tl.where(is_lined, root + numbers, positions)
    return tl.load(cache[3] + places // BLOCK_SIZE, mask=positions < stop, other=0), places % BLOCK_SIZE


@triton.jit
def _scores(
    q, k, positions, row_positions, window, score_scale,
    MASKED: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr, KEYS_FIRST: tl.constexpr,
):  # fmt: skip
    """Of keys, those that are not seen minus infinity."""
    left, right = (_widened(k, q.dtype), q) if KEYS_FIRST else (q, _widened(k, q.dtype))
    scores = dot(left, tl.trans(right), tl.zeros([left.shape[0], right.shape[0]], tl.float32))
    if CAPPED:
        scores = tl.fma(-2.0, 1.0 / (tl.exp2(scores * score_scale) + 1.0), 1.0)
    if MASKED:
        distances = _by_row(row_positions, KEYS_FIRST) - _by_key(positions, KEYS_FIRST)
        visible = distances >= 0
        if WINDOWED:
            visible &= distances < window
        scores = tl.where(visible, scores, float("-inf"))
    return scores


@triton.jit
def _added(ones, weighted, weights, v, KEYS_FIRST: tl.constexpr):
    """Sums of weights and weighted values with those of some more keys."""
    v = _widened(v, weights.dtype)
    if KEYS_FIRST:
        ones = dot(_ones(v.dtype, v.shape[0], KEYS_FIRST), weights, ones)
        weighted = dot(tl.trans(_opaque(v)), weights, weighted)
    else:
        ones = dot(weights, _ones(v.dtype, v.shape[0], KEYS_FIRST), ones)
        weighted = dot(weights, v, weighted)
    return ones, weighted


@triton.jit
def _opaque(v):
    """The same numbers. If the compiler saw that they are a left side, turned, it would not load them ahead of time."""
    if _COMPILED:
        v = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [v], dtype=v.dtype, is_pure=False, pack=2)
    return v


@triton.jit
def _ones(dtype: tl.constexpr, BLOCK_N: tl.constexpr, KEYS_FIRST: tl.constexpr):
    """What weights are multiplied with to sum them: several times the same."""
    if KEYS_FIRST:
        ones = tl.full([_TIMES_SUMMED, BLOCK_N], 1.0, tl.float32)
    else:
        ones = tl.full([BLOCK_N, _TIMES_SUMMED], 1.0, tl.float32)
    return ones.to(dtype)


@triton.jit
def nothing(ROWS: tl.constexpr, D: tl.constexpr, KEYS_FIRST: tl.constexpr):
    """The softmax of a split of which nothing was walked: peaks, sums of weights, weighted values."""
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    if KEYS_FIRST:
        summed, weighted = tl.zeros([_TIMES_SUMMED, ROWS], tl.float32), tl.zeros([D, ROWS], tl.float32)
    else:
        summed, weighted = tl.zeros([ROWS, _TIMES_SUMMED], tl.float32), tl.zeros([ROWS, D], tl.float32)
    return peak, summed, weighted


@triton.jit
def walk(
    first,
    stop,
    q,
    row_positions,
    reach,
    cache,
    scaling,
    softmax,
    shared,
    line,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    KEYS_FIRST: tl.constexpr,
    SEVERAL: tl.constexpr,
    LINED: tl.constexpr,
):
    """The softmax of all splits before and of the one under way, after tiles of keys from position first up to stop.

    Where others share the queries, splits before are left in memory instead, each by itself; unless there are SEVERAL,
    there are none. KEYS_FIRST: scores are
    [keys, rows] and weighted values [D, rows], which suits few rows: a tensor core takes 8 of them, not 16.
    LINED: the line, a root and the path from there, says where keys lie; otherwise each lies at its position.
    """
    window = reach[2]
    is_shared, begin, first_split = shared[0], shared[1], shared[2]
    score_scale, exponent_scale = scaling
    peak, total, weighted, split_peak, split_ones, split_weighted = softmax
    ROWS: tl.constexpr = q.shape[0]
    D: tl.constexpr = q.shape[1]
    KEYS: tl.constexpr = 0 if KEYS_FIRST else 1
    if not LINED:
        blocks = _blocks(cache, first, stop, BLOCK_N, BLOCK_SIZE)
    for start in tl.range(first, stop, BLOCK_N):
        if LINED:  # Of few tiles, or those of a window: nothing is known ahead, for which registers would not do.
            blocks, offsets = _followed(cache, line, start, stop, BLOCK_N, BLOCK_SIZE)
        else:
            offsets = None
        k, v = _loaded(cache, blocks, offsets, start, reach, BLOCK_N, D, BLOCK_SIZE, MASKED)
        if not LINED:
            # One tile ahead: the place of a key is known when its turn comes.
            blocks = _blocks(cache, start + BLOCK_N, stop, BLOCK_N, BLOCK_SIZE)
        positions = start + tl.arange(0, BLOCK_N)
        scores = _scores(
            q, k, positions, row_positions, window, score_scale, MASKED, WINDOWED, CAPPED, KEYS_FIRST
        )  # fmt: skip
        if start % SPLIT == 0:
            split_total = tl.max(split_ones, KEYS)
            if not (SEVERAL and is_shared):
                peak, total, weighted = fold(
                    peak, total, weighted, split_peak, split_total, split_weighted, KEYS_FIRST
                )  # fmt: skip
            elif start > begin:
                leave(shared, start // SPLIT - 1 - first_split, split_peak, split_total, split_weighted, KEYS_FIRST)
            split_peak, split_ones, split_weighted = nothing(ROWS, D, KEYS_FIRST)

        highest = tl.maximum(split_peak, tl.max(scores, KEYS) * exponent_scale)
        safe = tl.where(highest == float("-inf"), 0.0, highest)
        shrink = _by_row(tl.exp2(split_peak - safe), KEYS_FIRST)
        weights = tl.exp2(tl.fma(scores, exponent_scale, -_by_row(safe, KEYS_FIRST))).to(q.dtype)
        split_peak = highest
        split_ones, split_weighted = _added(split_ones * shrink, split_weighted * shrink, weights, v, KEYS_FIRST)
    return peak, total, weighted, split_peak, split_ones, split_weighted


@triton.jit
def rows_first(weighted, KEYS_FIRST: tl.constexpr):
    """[rows, D]."""
    return tl.trans(weighted) if KEYS_FIRST else weighted


@triton.jit
def leave(shared, split, peak, total, weighted, KEYS_FIRST: tl.constexpr):
    """What rows found in a split, for whoever puts the splits together."""
    weighted = rows_first(weighted, KEYS_FIRST)
    entries, real, partials = shared[3], shared[4], shared[5]
    partial_weighted, partial_peaks, partial_totals, distance = partials
    D: tl.constexpr = weighted.shape[1]
    at = entries + split * distance
    tl.store(partial_weighted + (at * D)[:, None] + tl.arange(0, D)[None, :], weighted, mask=real[:, None])
    tl.store(partial_peaks + at, peak, mask=real)
    tl.store(partial_totals + at, total, mask=real)
