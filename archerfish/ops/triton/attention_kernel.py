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

from archerfish.ops.triton.launch import await_inputs, dot, let_next_start

_COLUMNS_OF_ONES: tl.constexpr = tl.constexpr(16)
"""Of the matrix that sums weights. Eight would do, but not for the instructions that large tiles use."""


@triton.jit
def _fold(peak, total, weighted, next_peak, next_total, next_weighted):
    """The softmax of some splits, joined by the next one's: peaks and totals [rows], weighted values [rows, D]."""
    joint = tl.maximum(peak, next_peak)
    safe = tl.where(joint == float("-inf"), 0.0, joint)
    shrink, next_shrink = tl.exp2(peak - safe), tl.exp2(next_peak - safe)
    # Where a row saw nothing of the split, not even the sign of a zero may change.
    seen = next_total != 0.0
    total = tl.where(seen, tl.fma(total, shrink, next_total * next_shrink), total)
    joined = tl.fma(weighted, shrink[:, None], next_weighted * next_shrink[:, None])
    return joint, total, tl.where(seen[:, None], joined, weighted)


@triton.jit
def _stored(places, alive, MASKED: tl.constexpr):
    """Keys or values, zeros where none is alive: a block may hold leftovers that a weight of zero would not silence."""
    if MASKED:
        return tl.load(places, mask=alive[:, None], other=0.0)
    return tl.load(places)


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
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
):
    """The softmax of all splits before and of the one under way, after tiles of keys from position first up to stop."""
    oldest, end, window = reach
    keys, values, block_stride, table = cache
    score_scale, exponent_scale = scaling
    peak, total, weighted, split_peak, split_ones, split_weighted = softmax
    D: tl.constexpr = q.shape[1]
    offsets = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, D)[None, :]
    ones = tl.full([BLOCK_N, _COLUMNS_OF_ONES], 1.0, tl.float32).to(q.dtype)
    upcoming = first + offsets
    next_blocks = tl.load(table + upcoming // BLOCK_SIZE, mask=upcoming < stop, other=0)
    for start in tl.range(first, stop, BLOCK_N):
        positions = start + offsets
        blocks = next_blocks.to(tl.int64)
        # One tile ahead: the place of a key is known when its turn comes.
        upcoming = positions + BLOCK_N
        next_blocks = tl.load(table + upcoming // BLOCK_SIZE, mask=upcoming < stop, other=0)
        alive = (positions >= oldest) & (positions < end)
        places = (blocks * block_stride + positions % BLOCK_SIZE * D)[:, None] + dims
        k = _stored(keys + places, alive, MASKED)
        scores = dot(q, tl.trans(k.to(q.dtype)), tl.zeros([q.shape[0], BLOCK_N], tl.float32))
        if CAPPED:
            scores = tl.fma(-2.0, 1.0 / (tl.exp2(scores * score_scale) + 1.0), 1.0)
        if MASKED:
            visible = positions[None, :] <= row_positions[:, None]
            if WINDOWED:
                visible &= positions[None, :] > row_positions[:, None] - window
            scores = tl.where(visible, scores, float("-inf"))

        if start % SPLIT == 0:
            peak, total, weighted = _fold(peak, total, weighted, split_peak, tl.max(split_ones, 1), split_weighted)
            split_peak = tl.full([q.shape[0]], float("-inf"), tl.float32)
            split_ones = tl.zeros([q.shape[0], _COLUMNS_OF_ONES], tl.float32)
            split_weighted = tl.zeros([q.shape[0], D], tl.float32)

        highest = tl.maximum(split_peak, tl.max(scores, 1) * exponent_scale)
        safe = tl.where(highest == float("-inf"), 0.0, highest)
        shrink = tl.exp2(split_peak - safe)[:, None]
        weights = tl.exp2(tl.fma(scores, exponent_scale, -safe[:, None])).to(q.dtype)
        split_peak = highest

        v = _stored(values + places, alive, MASKED)
        split_ones = dot(weights, ones, split_ones * shrink)
        split_weighted = dot(weights, v.to(q.dtype), split_weighted * shrink)
    return peak, total, weighted, split_peak, split_ones, split_weighted


@triton.jit
def _folded(partials, entries, distance, num_splits, real, D: tl.constexpr, AHEAD: tl.constexpr):
    """Totals and weighted values of rows whose splits were walked by several, AHEAD of them read before one is used."""
    partial_weighted, partial_peaks, partial_totals = partials
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
            peak, total, weighted = _fold(peak, total, weighted, next_peak, next_total, next_weighted)
    return total, weighted


@triton.jit
def _write(out, out_stride, tokens, heads, real, sums):
    """Rows into out [T, H, D], those that are real, by their totals [rows] and weighted values [rows, D]."""
    total, weighted = sums
    D: tl.constexpr = weighted.shape[1]
    places = (tokens.to(tl.int64) * out_stride + heads * D)[:, None] + tl.arange(0, D)[None, :]
    rounded = (weighted / tl.where(real, total, 1.0)[:, None]).to(out.dtype.element_ty)
    tl.store(out + places, rounded, mask=real[:, None])


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
    num_programs = tl.num_programs(0)
    for turn in range(tl.cdiv(num_tasks, num_programs)):
        # Back and forth: whoever had the longest of one turn has the shortest of the next.
        place = tl.where(turn % 2 == 0, tl.program_id(0), num_programs - 1 - tl.program_id(0))
        task = turn * num_programs + place
        if task < num_tasks:
            unit = units + task // KV_HEADS * 8
            head = task % KV_HEADS
            table_row, first_token, num_tokens = tl.load(unit), tl.load(unit + 1), tl.load(unit + 2)
            position, first_split, end_split = tl.load(unit + 3), tl.load(unit + 4), tl.load(unit + 5)
            num_arrivals, first_partial = tl.load(unit + 6), tl.load(unit + 7)

            # Units and tables were there before the step's first layer; queries and the newest keys are not.
            await_inputs(EARLY)
            real = (tokens < num_tokens) & (heads < REPEAT)
            places = (first_token + tokens).to(tl.int64) * q_stride + (head * REPEAT + heads) * D
            q_tile = tl.load(q + places[:, None] + dims, mask=real[:, None], other=0.0)
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

            peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
            total = tl.zeros([BLOCK_M], tl.float32)
            weighted = tl.zeros([BLOCK_M, D], tl.float32)
            softmax = (peak, total, weighted, peak, tl.zeros([BLOCK_M, _COLUMNS_OF_ONES], tl.float32), weighted)
            row_positions = position + tokens
            seen_by_all = first
            if not WINDOWED:
                seen_by_all = tl.maximum(first, tl.minimum(stop, (position + 1) // BLOCK_N * BLOCK_N))
                softmax = _walk(
                    first, seen_by_all, q_tile, row_positions, reach, cache, scaling, softmax,
                    BLOCK_SIZE, BLOCK_N, SPLIT, False, WINDOWED, CAPPED,
                )  # fmt: skip
            peak, total, weighted, split_peak, split_ones, split_weighted = _walk(
                seen_by_all, stop, q_tile, row_positions, reach, cache, scaling, softmax,
                BLOCK_SIZE, BLOCK_N, SPLIT, True, WINDOWED, CAPPED,
            )  # fmt: skip
            peak, total, weighted = _fold(peak, total, weighted, split_peak, tl.max(split_ones, 1), split_weighted)
            if num_arrivals == 1:
                _write(out, out_stride, first_token + tokens, head * REPEAT + heads, real, (total, weighted))
            else:
                entry = first_partial + (first_split - oldest // SPLIT) * num_tokens + tokens
                entries = (entry.to(tl.int64) * KV_HEADS + head) * ROWS_PER_TOKEN + heads
                tl.store(partial_weighted + (entries * D)[:, None] + dims, weighted, mask=real[:, None])
                tl.store(partial_peaks + entries, peak, mask=real)
                tl.store(partial_totals + entries, total, mask=real)
                tl.debug_barrier()  # One thread says that all have stored.
                counter = counters + first_partial * KV_HEADS + head
                if tl.atomic_add(counter, 1) == num_arrivals - 1:
                    partials = (partial_weighted, partial_peaks, partial_totals)
                    fold_rows = tl.arange(0, FOLD_TOKENS * ROWS_PER_TOKEN)
                    fold_heads = fold_rows % ROWS_PER_TOKEN
                    for fold_first in range(0, num_tokens, FOLD_TOKENS):
                        fold_tokens = fold_first + fold_rows // ROWS_PER_TOKEN
                        kept = (fold_tokens < num_tokens) & (fold_heads < REPEAT)
                        fold_entry = (first_partial + fold_tokens).to(tl.int64)
                        fold_entries = (fold_entry * KV_HEADS + head) * ROWS_PER_TOKEN + fold_heads
                        distance = num_tokens.to(tl.int64) * (KV_HEADS * ROWS_PER_TOKEN)
                        sums = _folded(partials, fold_entries, distance, num_arrivals, kept, D, FOLD_AHEAD)
                        _write(out, out_stride, first_token + fold_tokens, head * REPEAT + fold_heads, kept, sums)
                    tl.store(counter, 0)
    await_inputs(EARLY)  # Those without work too: who waits for this kernel waits for all before it.
