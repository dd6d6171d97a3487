"""The kernel of paged attention, for small tiles of query tokens and for large ones: the same bits from both.

Knows units of work and how splits are put together; where work is cut is `units`' to say, and keys are walked by
`attention_walk`.

One answer: the keys of a query are walked from position 0 in tiles of BLOCK_N and splits of SPLIT positions. Within a
split a row's softmax is rescaled tile by tile; splits are put together by a left fold in their order, by the program
that walked them all or by the last one to arrive. A tile or split that a row sees nothing of changes none of its bits.
What is summed over keys or dimensions is summed by the tensor core in their order, weights too; everything else is one
expression for each element, which the compiler must be told not to contract (enable_fp_fusion=False).

Tokens of trees are units of one token each. Where their keys lie is all that is special about them: from the tree's
first position on, as their paths say.
"""

import triton
import triton.language as tl

from archerfish.ops.signatures import MAX_TREE_TOKENS
from archerfish.ops.triton.attention.attention_loop import fold, leave, nothing, rows_first, walk
from archerfish.ops.triton.runtime import await_inputs, let_next_start

_PATH: tl.constexpr = tl.constexpr(MAX_TREE_TOKENS)


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
            peak, total, weighted = fold(peak, total, weighted, next_peak, next_total, next_weighted, False)
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
def _put_together(
    out, out_stride, unit, head, partials, num_splits,
    KV_HEADS: tl.constexpr, REPEAT: tl.constexpr, ROWS_PER_TOKEN: tl.constexpr, D: tl.constexpr,
    FOLD_TOKENS: tl.constexpr, FOLD_AHEAD: tl.constexpr,
):  # fmt: skip
    """What all who share a unit's tile have left, into out, for some of its tokens at a time."""
    first_token, num_tokens, first_partial = unit[1], unit[2], unit[7]
    rows = tl.arange(0, FOLD_TOKENS * ROWS_PER_TOKEN)
    heads = rows % ROWS_PER_TOKEN
    for first in range(0, num_tokens, FOLD_TOKENS):
        tokens = first + rows // ROWS_PER_TOKEN
        real = (tokens < num_tokens) & (heads < REPEAT)
        entries = ((first_partial + tokens).to(tl.int64) * KV_HEADS + head) * ROWS_PER_TOKEN + heads
        sums = _folded(partials, entries, num_splits, real, D, FOLD_AHEAD)
        _write(out, out_stride, first_token + tokens, head * REPEAT + heads, real, sums)


@triton.jit
def _line_of(trees, token, position, end):
    """From which position on a token has a line of its own, and its path. Without a tree there is no such position."""
    depths, paths = trees
    depth = tl.load(depths + token)
    return tl.where(depth < 0, end, position - depth), paths + token.to(tl.int64) * _PATH


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
    trees,
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
    LINED: tl.constexpr,
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

    split_peak, split_ones, split_weighted = nothing(BLOCK_M, D, KEYS_FIRST)
    softmax = (split_peak, tl.zeros([BLOCK_M], tl.float32), split_weighted, split_peak, split_ones, split_weighted)
    row_positions = position + tokens
    first_of_all = oldest // SPLIT
    distance = num_tokens.to(tl.int64) * (KV_HEADS * ROWS_PER_TOKEN)
    partials = (partial_weighted, partial_peaks, partial_totals, distance)
    entries = ((first_partial + tokens).to(tl.int64) * KV_HEADS + head) * ROWS_PER_TOKEN + heads
    shared = (num_arrivals > 1, first, first_of_all, entries, real, partials)
    seen_by_all = first
    stored_as_seen = position + 1
    line = None
    if LINED:
        line = _line_of(trees, first_token, position, end)
        stored_as_seen = tl.minimum(stored_as_seen, line[0])
    if not WINDOWED:
        seen_by_all = tl.maximum(first, tl.minimum(stop, stored_as_seen // BLOCK_N * BLOCK_N))
        softmax = walk(
            first, seen_by_all, q, row_positions, reach, cache, scaling, softmax, shared, None,
            BLOCK_SIZE, BLOCK_N, SPLIT, False, WINDOWED, CAPPED, KEYS_FIRST, SEVERAL, False,
        )  # fmt: skip
    peak, total, weighted, split_peak, split_ones, split_weighted = walk(
        seen_by_all, stop, q, row_positions, reach, cache, scaling, softmax, shared, line,
        BLOCK_SIZE, BLOCK_N, SPLIT, True, WINDOWED, CAPPED, KEYS_FIRST, SEVERAL, LINED,
    )  # fmt: skip
    split_total = tl.max(split_ones, 0 if KEYS_FIRST else 1)
    if num_arrivals == 1:
        peak, total, weighted = fold(peak, total, weighted, split_peak, split_total, split_weighted, KEYS_FIRST)
        sums = (total, rows_first(weighted, KEYS_FIRST))
        _write(out, out_stride, first_token + tokens, head * REPEAT + heads, real, sums)
    else:
        leave(shared, end_split - 1 - first_of_all, split_peak, split_total, split_weighted, KEYS_FIRST)
        tl.debug_barrier()  # One thread says that all have stored.
        counter = counters + first_partial * KV_HEADS + head
        if tl.atomic_add(counter, 1) == num_arrivals - 1:
            num_splits = tl.cdiv(end, SPLIT) - first_of_all
            _put_together(
                out, out_stride, unit, head, partials, num_splits,
                KV_HEADS, REPEAT, ROWS_PER_TOKEN, D, FOLD_TOKENS, FOLD_AHEAD,
            )  # fmt: skip
            tl.store(counter, 0)


@triton.jit(do_not_specialize=["table_stride", "window"], do_not_specialize_on_alignment=["depths", "paths"])
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
    depths,
    paths,
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
    Depths and paths are those of a step's trees, or None.
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
                (window, score_scale, exponent_scale), (depths, paths),
                KV_HEADS, REPEAT, ROWS_PER_TOKEN, BLOCK_SIZE, BLOCK_N, SPLIT, FOLD_TOKENS, FOLD_AHEAD, WINDOWED, CAPPED,
                KEYS_FIRST, SEVERAL, depths is not None,
            )  # fmt: skip
    await_inputs(EARLY)  # Those without work too: who waits for this kernel waits for all before it.
