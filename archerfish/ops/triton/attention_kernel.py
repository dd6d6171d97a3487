"""The kernel of paged attention, for small tiles of query tokens and for large ones: the same bits from both.

Knows the arrangement of a block, [G, B, D] whatever the tensor's shape says; where work is cut is `units`' to say.

One answer: the keys of a query are walked from position 0 in tiles of BLOCK_N and splits of SPLIT positions. Within a
split a row's softmax is rescaled tile by tile; splits are put together by a left fold in their order, by the program
that walked them all or by the last one to arrive. A tile or split that a row sees nothing of changes none of its bits.
What is summed over keys or dimensions is summed by the tensor core in their order, weights too; everything else is one
expression for each element, which the compiler must be told not to contract (enable_fp_fusion=False).
"""

import triton
import triton.language as tl

from archerfish.ops.triton.launch import INTERPRETED, await_inputs, dot, let_next_start

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
def _fold(peak, total, weighted, next_peak, next_total, next_weighted, KEYS_FIRST: tl.constexpr):
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
    cache, blocks, start, reach, KEYS: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """Keys and values [KEYS, D] from position start on; where masked, zeros for those that are not alive.

    A block may hold leftovers that a weight of zero would not silence.
    """
    keys, values, block_stride = cache[0], cache[1], cache[2]
    RUN: tl.constexpr = KEYS // blocks.shape[0]
    firsts = start + tl.arange(0, KEYS // RUN) * RUN
    numbers = tl.arange(0, RUN * D)[None, :]
    places = (blocks.to(tl.int64) * block_stride + firsts % BLOCK_SIZE * D)[:, None] + numbers
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
def _nothing(ROWS: tl.constexpr, D: tl.constexpr, KEYS_FIRST: tl.constexpr):
    """The softmax of a split of which nothing was walked: peaks, sums of weights, weighted values."""
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    if KEYS_FIRST:
        summed, weighted = tl.zeros([_TIMES_SUMMED, ROWS], tl.float32), tl.zeros([D, ROWS], tl.float32)
    else:
        summed, weighted = tl.zeros([ROWS, _TIMES_SUMMED], tl.float32), tl.zeros([ROWS, D], tl.float32)
    return peak, summed, weighted


@triton.jit
def _walk(
    first,
    stop,
    q,
    row_positions,
    reach,
    cache,
    scaling,
    softmax,
    shared,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    KEYS_FIRST: tl.constexpr,
    SEVERAL: tl.constexpr,
):
    """The softmax of all splits before and of the one under way, after tiles of keys from position first up to stop.

    Where others share the queries, splits before are left in memory instead, each by itself; unless there are SEVERAL,
    there are none. KEYS_FIRST: scores are
    [keys, rows] and weighted values [D, rows], which suits few rows: a tensor core takes 8 of them, not 16.
    """
    window = reach[2]
    is_shared, begin, first_split = shared[0], shared[1], shared[2]
    score_scale, exponent_scale = scaling
    peak, total, weighted, split_peak, split_ones, split_weighted = softmax
    ROWS: tl.constexpr = q.shape[0]
    D: tl.constexpr = q.shape[1]
    KEYS: tl.constexpr = 0 if KEYS_FIRST else 1
    blocks = _blocks(cache, first, stop, BLOCK_N, BLOCK_SIZE)
    for start in tl.range(first, stop, BLOCK_N):
        k, v = _loaded(cache, blocks, start, reach, BLOCK_N, D, BLOCK_SIZE, MASKED)
        # One tile ahead: the place of a key is known when its turn comes.
        blocks = _blocks(cache, start + BLOCK_N, stop, BLOCK_N, BLOCK_SIZE)
        positions = start + tl.arange(0, BLOCK_N)
        scores = _scores(
            q, k, positions, row_positions, window, score_scale, MASKED, WINDOWED, CAPPED, KEYS_FIRST
        )  # fmt: skip
        if start % SPLIT == 0:
            split_total = tl.max(split_ones, KEYS)
            if not (SEVERAL and is_shared):
                peak, total, weighted = _fold(
                    peak, total, weighted, split_peak, split_total, split_weighted, KEYS_FIRST
                )  # fmt: skip
            elif start > begin:
                _leave(shared, start // SPLIT - 1 - first_split, split_peak, split_total, split_weighted, KEYS_FIRST)
            split_peak, split_ones, split_weighted = _nothing(ROWS, D, KEYS_FIRST)

        highest = tl.maximum(split_peak, tl.max(scores, KEYS) * exponent_scale)
        safe = tl.where(highest == float("-inf"), 0.0, highest)
        shrink = _by_row(tl.exp2(split_peak - safe), KEYS_FIRST)
        weights = tl.exp2(tl.fma(scores, exponent_scale, -_by_row(safe, KEYS_FIRST))).to(q.dtype)
        split_peak = highest
        split_ones, split_weighted = _added(split_ones * shrink, split_weighted * shrink, weights, v, KEYS_FIRST)
    return peak, total, weighted, split_peak, split_ones, split_weighted


@triton.jit
def _rows_first(weighted, KEYS_FIRST: tl.constexpr):
    """[rows, D]."""
    return tl.trans(weighted) if KEYS_FIRST else weighted


@triton.jit
def _leave(shared, split, peak, total, weighted, KEYS_FIRST: tl.constexpr):
    """What rows found in a split, for whoever puts the splits together."""
    weighted = _rows_first(weighted, KEYS_FIRST)
    entries, real, partials = shared[3], shared[4], shared[5]
    partial_weighted, partial_peaks, partial_totals, distance = partials
    D: tl.constexpr = weighted.shape[1]
    at = entries + split * distance
    tl.store(partial_weighted + (at * D)[:, None] + tl.arange(0, D)[None, :], weighted, mask=real[:, None])
    tl.store(partial_peaks + at, peak, mask=real)
    tl.store(partial_totals + at, total, mask=real)


@triton.jit
def _folded(partials, entries, num_splits, real, D: tl.constexpr, AHEAD: tl.constexpr):
    """Totals and weighted values of rows whose splits were walked by several, AHEAD of them read before one is used."""
    partial_weighted, partial_peaks, partial_totals, distance = partials
    dims = tl.arange(0, D)[None, :]
    peak = tl.full([real.shape[0]], float("-inf"), tl.float32)
    total = tl.zeros([real.shape[0]], tl.float32)
    weighted = tl.zeros([real.shape[0], D], tl.float32)
    for first in range(0, num_splits, AHEAD):
        for place in tl.static_range(AHEAD):
            there = real & (first + place < num_splits)
            at = entries + (first + place) * distance
            next_weighted = tl.load(partial_weighted + (at * D)[:, None] + dims, mask=there[:, None], other=0.0)
            next_peak = tl.load(partial_peaks + at, mask=there, other=float("-inf"))
            next_total = tl.load(partial_totals + at, mask=there, other=0.0)
            peak, total, weighted = _fold(peak, total, weighted, next_peak, next_total, next_weighted, False)
    return total, weighted


@triton.jit
def _write(out, out_stride, tokens, heads, real, sums):
    """Rows into out [T, H, D], those that are real, by their totals [rows] and weighted values [rows, D]."""
    total, weighted = sums
    D: tl.constexpr = weighted.shape[1]
    places = (tokens.to(tl.int64) * out_stride + heads * D)[:, None] + tl.arange(0, D)[None, :]
    rounded = (weighted / tl.where(real, total, 1.0)[:, None]).to(out.dtype.element_ty)
    tl.store(out + places, rounded, mask=real[:, None])


@triton.jit
def unit_of(units, place):
    """The fields of a unit, as `units` describes them."""
    unit = units + place * 8
    table_row, first_token, num_tokens = tl.load(unit), tl.load(unit + 1), tl.load(unit + 2)
    position, first_split, end_split = tl.load(unit + 3), tl.load(unit + 4), tl.load(unit + 5)
    num_arrivals, first_partial = tl.load(unit + 6), tl.load(unit + 7)
    return table_row, first_token, num_tokens, position, first_split, end_split, num_arrivals, first_partial


@triton.jit
def task_of_turn(turn):
    """Back and forth: whoever had the longest of one turn has the shortest of the next."""
    num_programs = tl.num_programs(0)
    return turn * num_programs + tl.where(turn % 2 == 0, tl.program_id(0), num_programs - 1 - tl.program_id(0))


@triton.jit
def attend_unit(
    out,
    out_stride,
    q,
    unit,
    head,
    stored,
    scratch,
    scoring,
    KV_HEADS: tl.constexpr,
    REPEAT: tl.constexpr,
    ROWS_PER_TOKEN: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
    FOLD_TOKENS: tl.constexpr,
    FOLD_AHEAD: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    KEYS_FIRST: tl.constexpr,
    SEVERAL: tl.constexpr,
):
    """What a unit's queries q [rows, D] find with one key-value head, into out or, if others share the tile, partly."""
    table_row, first_token, num_tokens, position, first_split, end_split, num_arrivals, first_partial = unit
    keys, values, block_stride, table, table_stride = stored
    partial_weighted, partial_peaks, partial_totals, counters = scratch
    window, score_scale, exponent_scale = scoring
    if keys.dtype.element_ty == tl.float8e4nv:
        q = q.to(tl.float16)  # What eight bits become with one instruction; bfloat16 takes four.
    BLOCK_M: tl.constexpr = q.shape[0]
    D: tl.constexpr = q.shape[1]
    rows = tl.arange(0, BLOCK_M)
    tokens, heads = rows // ROWS_PER_TOKEN, rows % ROWS_PER_TOKEN
    real = (tokens < num_tokens) & (heads < REPEAT)
    oldest = 0
    if WINDOWED:
        oldest = tl.maximum(position - window + 1, 0)
    end = position + num_tokens
    first = tl.maximum(oldest // BLOCK_N * BLOCK_N, first_split * SPLIT)
    stop = tl.minimum(end, end_split * SPLIT)
    cache = (
        keys + head * (BLOCK_SIZE * D),
        values + head * (BLOCK_SIZE * D),
        block_stride,
        table + table_row.to(tl.int64) * table_stride,
    )
    reach = (oldest, end, window)
    scaling = (score_scale, exponent_scale)

    split_peak, split_ones, split_weighted = _nothing(BLOCK_M, D, KEYS_FIRST)
    softmax = (split_peak, tl.zeros([BLOCK_M], tl.float32), split_weighted, split_peak, split_ones, split_weighted)
    row_positions = position + tokens
    first_of_all = oldest // SPLIT
    distance = num_tokens.to(tl.int64) * (KV_HEADS * ROWS_PER_TOKEN)
    partials = (partial_weighted, partial_peaks, partial_totals, distance)
    entries = ((first_partial + tokens).to(tl.int64) * KV_HEADS + head) * ROWS_PER_TOKEN + heads
    shared = (num_arrivals > 1, first, first_of_all, entries, real, partials)
    seen_by_all = first
    if not WINDOWED:
        seen_by_all = tl.maximum(first, tl.minimum(stop, (position + 1) // BLOCK_N * BLOCK_N))
        softmax = _walk(
            first, seen_by_all, q, row_positions, reach, cache, scaling, softmax, shared,
            BLOCK_SIZE, BLOCK_N, SPLIT, False, WINDOWED, CAPPED, KEYS_FIRST, SEVERAL,
        )  # fmt: skip
    peak, total, weighted, split_peak, split_ones, split_weighted = _walk(
        seen_by_all, stop, q, row_positions, reach, cache, scaling, softmax, shared,
        BLOCK_SIZE, BLOCK_N, SPLIT, True, WINDOWED, CAPPED, KEYS_FIRST, SEVERAL,
    )  # fmt: skip
    split_total = tl.max(split_ones, 0 if KEYS_FIRST else 1)
    if num_arrivals == 1:
        peak, total, weighted = _fold(peak, total, weighted, split_peak, split_total, split_weighted, KEYS_FIRST)
        sums = (total, _rows_first(weighted, KEYS_FIRST))
        _write(out, out_stride, first_token + tokens, head * REPEAT + heads, real, sums)
    else:
        _leave(shared, end_split - 1 - first_of_all, split_peak, split_total, split_weighted, KEYS_FIRST)
        tl.debug_barrier()  # One thread says that all have stored.
        counter = counters + first_partial * KV_HEADS + head
        if tl.atomic_add(counter, 1) == num_arrivals - 1:
            fold_rows = tl.arange(0, FOLD_TOKENS * ROWS_PER_TOKEN)
            fold_heads = fold_rows % ROWS_PER_TOKEN
            for fold_first in range(0, num_tokens, FOLD_TOKENS):
                fold_tokens = fold_first + fold_rows // ROWS_PER_TOKEN
                kept = (fold_tokens < num_tokens) & (fold_heads < REPEAT)
                fold_entry = (first_partial + fold_tokens).to(tl.int64)
                fold_entries = (fold_entry * KV_HEADS + head) * ROWS_PER_TOKEN + fold_heads
                folded = _folded(partials, fold_entries, tl.cdiv(end, SPLIT) - first_of_all, kept, D, FOLD_AHEAD)
                _write(out, out_stride, first_token + fold_tokens, head * REPEAT + fold_heads, kept, folded)
            tl.store(counter, 0)


@triton.jit(do_not_specialize=["table_stride", "window"])
def attend_kernel(
    out,
    out_stride,
    q,
    q_stride,
    keys,
    values,
    block_stride,
    table,
    table_stride,
    units,
    num_units,
    partial_weighted,
    partial_peaks,
    partial_totals,
    counters,
    window,
    score_scale,
    exponent_scale,
    KV_HEADS: tl.constexpr,
    REPEAT: tl.constexpr,
    ROWS_PER_TOKEN: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
    FOLD_TOKENS: tl.constexpr,
    FOLD_AHEAD: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    KEYS_FIRST: tl.constexpr,
    SEVERAL: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Units of work [n, 8], as `units` describes them, each for every key-value head; as many programs as there are.

    A tile's rows are query tokens, each with the heads that share the key-value head: REPEAT of ROWS_PER_TOKEN rows.
    """
    let_next_start(EARLY)
    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)[None, :]
    tokens, heads = rows // ROWS_PER_TOKEN, rows % ROWS_PER_TOKEN
    num_tasks = tl.load(num_units) * KV_HEADS
    for turn in range(tl.cdiv(num_tasks, tl.num_programs(0))):
        task = task_of_turn(turn)
        if task < num_tasks:
            unit = unit_of(units, task // KV_HEADS)
            head = task % KV_HEADS
            # Units and tables were there before the step's first layer; queries and the newest keys are not.
            await_inputs(EARLY)
            _, first_token, num_tokens, _, _, _, _, _ = unit
            real = (tokens < num_tokens) & (heads < REPEAT)
            places = (first_token + tokens).to(tl.int64) * q_stride + (head * REPEAT + heads) * D
            attend_unit(
                out, out_stride, tl.load(q + places[:, None] + dims, mask=real[:, None], other=0.0), unit, head,
                (keys, values, block_stride, table, table_stride),
                (partial_weighted, partial_peaks, partial_totals, counters),
                (window, score_scale, exponent_scale),
                KV_HEADS, REPEAT, ROWS_PER_TOKEN, BLOCK_SIZE, BLOCK_N, SPLIT, FOLD_TOKENS, FOLD_AHEAD, WINDOWED, CAPPED,
                KEYS_FIRST, SEVERAL,
            )  # fmt: skip
    await_inputs(EARLY)  # Those without work too: who waits for this kernel waits for all before it.
