"""The inner loop of paged attention: walks keys tile by tile and split by split, for small and large query tiles.

A block is laid out as [G, B, D], whatever the shape of the cache tensor. Which keys and splits are walked is passed in.
`attention_kernel` describes what keeps the bits independent of how work is divided.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from archerfish.ops.triton.runtime import INTERPRETED, dot

_SUM_COPIES: tl.constexpr = tl.constexpr(16)
"""Weights are summed by a matrix multiplication with ones, which has at least this many columns or rows."""
_RUN: tl.constexpr = tl.constexpr(16)
"""Positions that are contiguous in every block, since block sizes are multiples of it."""
_COMPILED: tl.constexpr = tl.constexpr(not INTERPRETED)


# Named tuples become Triton's tuples in kernels, whose own attributes (values, type, ...) cannot be field names.


class KVBlocks(NamedTuple):
    """Keys and values of one head, and the block table of one sequence."""

    k_cache: Any
    v_cache: Any
    block_stride: Any
    table: Any


class KeyRange(NamedTuple):
    """Positions that a tile's queries attend to."""

    oldest: Any
    end: Any
    window: Any


class Scaling(NamedTuple):
    """Factors of a query-key dot product before it is capped, and of a score to be an exponent of two."""

    score: Any
    exponent: Any


class SoftmaxState(NamedTuple):
    """The softmax of finished splits, and of the split that is being walked."""

    peak: Any
    total: Any
    weighted: Any
    split_peak: Any
    split_ones: Any
    """Sums of weights, in several equal copies."""
    split_weighted: Any


class Partials(NamedTuple):
    """Buffers of partial results, and the distance from one split's entries to the next one's."""

    weighted: Any
    peaks: Any
    totals: Any
    distance: Any


class TileSharing(NamedTuple):
    """How a unit of work shares its tile of queries with others, and where it stores partial results."""

    is_shared: Any
    first: Any
    """The first position that this unit walks."""
    first_split: Any
    """The first split that any unit of the tile walks."""
    entries: Any
    real: Any
    partials: Any


class TreePath(NamedTuple):
    """Where the keys of a draft tree's token are: from position root on, at root + path[position - root]."""

    root: Any
    path: Any


@triton.jit
def _by_row(values, SWAP_AB: tl.constexpr):
    """Broadcast [rows] against scores or weighted values."""
    return values[None, :] if SWAP_AB else values[:, None]


@triton.jit
def _by_key(values, SWAP_AB: tl.constexpr):
    """Broadcast [keys] against scores."""
    return values[:, None] if SWAP_AB else values[None, :]


@triton.jit
def fold(peak, total, weighted, next_peak, next_total, next_weighted, SWAP_AB: tl.constexpr):
    """Merge the softmax of the next split into that of the splits before: [rows], [rows], [rows, D]."""
    joint = tl.maximum(peak, next_peak)
    safe = tl.where(joint == float("-inf"), 0.0, joint)
    shrink, next_shrink = tl.exp2(peak - safe), tl.exp2(next_peak - safe)
    # Where a row sees nothing of the split, not even the sign of a zero may change.
    seen = next_total != 0.0
    total = tl.where(seen, tl.fma(total, shrink, next_total * next_shrink), total)
    joined = tl.fma(weighted, _by_row(shrink, SWAP_AB), next_weighted * _by_row(next_shrink, SWAP_AB))
    return joint, total, tl.where(_by_row(seen, SWAP_AB), joined, weighted)


@triton.jit
def _converted(numbers, dtype: tl.constexpr):
    """Convert keys or values to the dtype that the tensor core multiplies.

    Eight-bit floats are converted in the layout in which they were loaded, many by each thread: converted as operands,
    as the compiler would do it, values would be read from shared memory byte by byte.
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
def _load_keys_values(
    cache, blocks, offsets, start, reach,
    KEYS: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Load keys and values [KEYS, D] of positions from start on; if masked, zeros for those out of reach.

    Offsets within blocks follow from positions unless passed. Blocks may hold stale numbers, which a weight of zero
    would not silence if they are not finite.
    """
    RUN: tl.constexpr = KEYS // blocks.shape[0]
    firsts = start + tl.arange(0, KEYS // RUN) * RUN
    numbers = tl.arange(0, RUN * D)[None, :]
    runs = blocks.to(tl.int64) * cache.block_stride + (firsts % BLOCK_SIZE if offsets is None else offsets) * D
    addresses = runs[:, None] + numbers
    if MASKED:
        positions = firsts[:, None] + numbers // D
        alive = (positions >= reach.oldest) & (positions < reach.end)
        k = tl.load(cache.k_cache + addresses, mask=alive, other=0.0)
        v = tl.load(cache.v_cache + addresses, mask=alive, other=0.0)
    else:
        k, v = tl.load(cache.k_cache + addresses), tl.load(cache.v_cache + addresses)
    return tl.reshape(k, (KEYS, D)), tl.reshape(v, (KEYS, D))


@triton.jit
def _blocks(cache, start, stop, KEYS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Look up blocks of positions from start on: of each, or of each run of bytes, too short to be loaded singly."""
    RUN: tl.constexpr = _RUN if cache.k_cache.dtype.element_ty == tl.float8e4nv else 1
    firsts = start + tl.arange(0, KEYS // RUN) * RUN
    return tl.load(cache.table + firsts // BLOCK_SIZE, mask=firsts < stop, other=0)


@triton.jit
def _tree_blocks(cache, tree, start, stop, KEYS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Look up blocks of positions from start on, and offsets in them, following a tree's path from its root on."""
    positions = start + tl.arange(0, KEYS)
    in_tree = positions >= tree.root
    numbers = tl.load(tree.path + (positions - tree.root), mask=in_tree & (positions < stop), other=0).to(tl.int32)
    slots = tl.where(in_tree, tree.root + numbers, positions)
    return tl.load(cache.table + slots // BLOCK_SIZE, mask=positions < stop, other=0), slots % BLOCK_SIZE


@triton.jit
def _scores(
    q, k, positions, row_positions, window, score_scale,
    MASKED: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr, SWAP_AB: tl.constexpr,
):  # fmt: skip
    """Compute scores of keys; minus infinity for keys that a row does not see."""
    left, right = (_converted(k, q.dtype), q) if SWAP_AB else (q, _converted(k, q.dtype))
    scores = dot(left, tl.trans(right), tl.zeros([left.shape[0], right.shape[0]], tl.float32))
    if CAPPED:
        scores = tl.fma(-2.0, 1.0 / (tl.exp2(scores * score_scale) + 1.0), 1.0)
    if MASKED:
        distances = _by_row(row_positions, SWAP_AB) - _by_key(positions, SWAP_AB)
        visible = distances >= 0
        if WINDOWED:
            visible &= distances < window
        scores = tl.where(visible, scores, float("-inf"))
    return scores


@triton.jit
def _add_weighted(ones, weighted, weights, v, SWAP_AB: tl.constexpr):
    """Add the weights and weighted values of some more keys to their sums."""
    v = _converted(v, weights.dtype)
    if SWAP_AB:
        ones = dot(_ones(v.dtype, v.shape[0], SWAP_AB), weights, ones)
        weighted = dot(tl.trans(_opaque(v)), weights, weighted)
    else:
        ones = dot(weights, _ones(v.dtype, v.shape[0], SWAP_AB), ones)
        weighted = dot(weights, v, weighted)
    return ones, weighted


@triton.jit
def _opaque(v):
    """Return v. If the compiler saw that v is a transposed left operand, it would not load it ahead of time."""
    if _COMPILED:
        v = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [v], dtype=v.dtype, is_pure=False, pack=2)
    return v


@triton.jit
def _ones(dtype: tl.constexpr, BLOCK_N: tl.constexpr, SWAP_AB: tl.constexpr):
    """Return the matrix that weights are multiplied with to sum them: several copies of the sum."""
    if SWAP_AB:
        ones = tl.full([_SUM_COPIES, BLOCK_N], 1.0, tl.float32)
    else:
        ones = tl.full([BLOCK_N, _SUM_COPIES], 1.0, tl.float32)
    return ones.to(dtype)


@triton.jit
def empty_softmax(ROWS: tl.constexpr, D: tl.constexpr, SWAP_AB: tl.constexpr):
    """Return the softmax of no keys: peaks, sums of weights, weighted values."""
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    if SWAP_AB:
        summed, weighted = tl.zeros([_SUM_COPIES, ROWS], tl.float32), tl.zeros([D, ROWS], tl.float32)
    else:
        summed, weighted = tl.zeros([ROWS, _SUM_COPIES], tl.float32), tl.zeros([ROWS, D], tl.float32)
    return peak, summed, weighted


@triton.jit
def attend_keys(
    first,
    stop,
    q,
    row_positions,
    reach,
    cache,
    scaling,
    softmax,
    sharing,
    tree,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SWAP_AB: tl.constexpr,
    MULTI_SPLIT: tl.constexpr,
    HAS_TREE: tl.constexpr,
):
    """Continue a softmax with the tiles of keys from position first up to stop.

    Where several units share the queries, finished splits are stored one by one instead of being folded; unless a unit
    has several of them (MULTI_SPLIT), there are none. With SWAP_AB scores are [keys, rows] and weighted values
    [D, rows], which suits few rows: a tensor core takes 8 of them instead of 16. With HAS_TREE keys lie where the
    tree's path says, otherwise at their positions.
    """
    peak, total, weighted, split_peak, split_ones, split_weighted = softmax
    ROWS: tl.constexpr = q.shape[0]
    D: tl.constexpr = q.shape[1]
    KEYS: tl.constexpr = 0 if SWAP_AB else 1
    if not HAS_TREE:
        blocks = _blocks(cache, first, stop, BLOCK_N, BLOCK_SIZE)
    for start in tl.range(first, stop, BLOCK_N):
        if HAS_TREE:  # Few tiles, or those of a window: lookups are not done ahead, for which registers do not suffice.
            blocks, offsets = _tree_blocks(cache, tree, start, stop, BLOCK_N, BLOCK_SIZE)
        else:
            offsets = None
        k, v = _load_keys_values(cache, blocks, offsets, start, reach, BLOCK_N, D, BLOCK_SIZE, MASKED)
        if not HAS_TREE:
            # One tile ahead, so that the address of a key is known when its turn comes.
            blocks = _blocks(cache, start + BLOCK_N, stop, BLOCK_N, BLOCK_SIZE)
        positions = start + tl.arange(0, BLOCK_N)
        scores = _scores(
            q, k, positions, row_positions, reach.window, scaling.score, MASKED, WINDOWED, CAPPED, SWAP_AB
        )  # fmt: skip
        if start % SPLIT == 0:
            split_total = tl.max(split_ones, KEYS)
            if not (MULTI_SPLIT and sharing.is_shared):
                peak, total, weighted = fold(
                    peak, total, weighted, split_peak, split_total, split_weighted, SWAP_AB
                )  # fmt: skip
            elif start > sharing.first:
                split = start // SPLIT - 1 - sharing.first_split
                store_split(sharing, split, split_peak, split_total, split_weighted, SWAP_AB)
            split_peak, split_ones, split_weighted = empty_softmax(ROWS, D, SWAP_AB)

        highest = tl.maximum(split_peak, tl.max(scores, KEYS) * scaling.exponent)
        safe = tl.where(highest == float("-inf"), 0.0, highest)
        shrink = _by_row(tl.exp2(split_peak - safe), SWAP_AB)
        weights = tl.exp2(tl.fma(scores, scaling.exponent, -_by_row(safe, SWAP_AB))).to(q.dtype)
        split_peak = highest
        split_ones, split_weighted = _add_weighted(split_ones * shrink, split_weighted * shrink, weights, v, SWAP_AB)
    return SoftmaxState(peak, total, weighted, split_peak, split_ones, split_weighted)


@triton.jit
def rows_first(weighted, SWAP_AB: tl.constexpr):
    """Return weighted values as [rows, D]."""
    return tl.trans(weighted) if SWAP_AB else weighted


@triton.jit
def store_split(sharing, split, peak, total, weighted, SWAP_AB: tl.constexpr):
    """Store the partial results of a split, for the program that combines all splits."""
    weighted = rows_first(weighted, SWAP_AB)
    partials, real = sharing.partials, sharing.real
    D: tl.constexpr = weighted.shape[1]
    at = sharing.entries + split * partials.distance
    tl.store(partials.weighted + (at * D)[:, None] + tl.arange(0, D)[None, :], weighted, mask=real[:, None])
    tl.store(partials.peaks + at, peak, mask=real)
    tl.store(partials.totals + at, total, mask=real)
