"""The kernel of paged attention, for small and for large tiles of query tokens, with the same bits from both.

It computes units of work: `attention_schedule` decides how work is divided, `attention_loop` walks the keys.

One answer: the keys of a query are walked from position 0 in tiles of BLOCK_N and splits of SPLIT positions. Within a
split a row's softmax is rescaled tile by tile; splits are combined by a left fold in their order, by the program that
walked all of them or by the last one to arrive. A tile or split of which a row sees nothing changes none of its bits.
Sums over keys or dimensions, those of weights too, are made by the tensor core in their order; everything else is one
expression for each element, which the compiler must not contract (enable_fp_fusion=False).

Tokens of draft trees are units of one token each. Only the location of their keys is special: from the tree's first
position on, their paths define it.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from archerfish.ops.signatures import MAX_TREE_TOKENS
from archerfish.ops.triton.attention.attention_loop import (
    KeyRange,
    KVBlocks,
    Partials,
    Scaling,
    SoftmaxState,
    TileSharing,
    TreePath,
    attend_keys,
    empty_softmax,
    fold,
    rows_first,
    store_split,
)
from archerfish.ops.triton.runtime import pdl_trigger, pdl_wait

_PATH: tl.constexpr = tl.constexpr(MAX_TREE_TOKENS)


class WorkUnit(NamedTuple):
    """A unit of work, as `attention_schedule.UNIT_FIELDS` describes it."""

    table_row: Any
    first_token: Any
    num_tokens: Any
    position: Any
    first_split: Any
    end_split: Any
    num_arrivals: Any
    first_partial: Any


class KernelCache(NamedTuple):
    """The KV cache of a layer, and the block tables of all rows."""

    k_cache: Any
    v_cache: Any
    block_stride: Any
    table: Any
    table_stride: Any


class KernelScratch(NamedTuple):
    """Buffers of partial results, and counters of units that have stored theirs."""

    weighted: Any
    peaks: Any
    totals: Any
    counters: Any


class KernelScoring(NamedTuple):
    """The attention window, and the factors of `Scaling`."""

    window: Any
    score_scale: Any
    exponent_scale: Any


class KernelTrees(NamedTuple):
    """Depths and paths of a step's tree tokens."""

    depths: Any
    paths: Any


@triton.jit
def _folded(partials, entries, num_splits, real, D: tl.constexpr, AHEAD: tl.constexpr):
    """Fold stored splits into totals and weighted values of rows; AHEAD of them are loaded before one is used."""
    dims = tl.arange(0, D)[None, :]
    peak = tl.full([real.shape[0]], float("-inf"), tl.float32)
    total = tl.zeros([real.shape[0]], tl.float32)
    weighted = tl.zeros([real.shape[0], D], tl.float32)
    for first in range(0, num_splits, AHEAD):
        for ahead in tl.static_range(AHEAD):
            exists = real & (first + ahead < num_splits)
            at = entries + (first + ahead) * partials.distance
            next_weighted = tl.load(partials.weighted + (at * D)[:, None] + dims, mask=exists[:, None], other=0.0)
            next_peak = tl.load(partials.peaks + at, mask=exists, other=float("-inf"))
            next_total = tl.load(partials.totals + at, mask=exists, other=0.0)
            peak, total, weighted = fold(peak, total, weighted, next_peak, next_total, next_weighted, False)
    return total, weighted


@triton.jit
def _write(out, out_stride, tokens, heads, real, total, weighted):
    """Store the real rows into out [T, H, D]: weighted values [rows, D] divided by totals [rows]."""
    D: tl.constexpr = weighted.shape[1]
    addresses = (tokens.to(tl.int64) * out_stride + heads * D)[:, None] + tl.arange(0, D)[None, :]
    rounded = (weighted / tl.where(real, total, 1.0)[:, None]).to(out.dtype.element_ty)
    tl.store(out + addresses, rounded, mask=real[:, None])


@triton.jit
def unit_of(units, index):
    """Load a unit of work."""
    unit = units + index * 8
    return WorkUnit(
        tl.load(unit), tl.load(unit + 1), tl.load(unit + 2), tl.load(unit + 3),
        tl.load(unit + 4), tl.load(unit + 5), tl.load(unit + 6), tl.load(unit + 7),
    )  # fmt: skip


@triton.jit
def task_of_turn(turn):
    """Return the program's task of a turn, back and forth: the longest task of one turn is followed by a short one."""
    num_programs = tl.num_programs(0)
    return turn * num_programs + tl.where(turn % 2 == 0, tl.program_id(0), num_programs - 1 - tl.program_id(0))


@triton.jit
def _combine_splits(
    out, out_stride, unit, head, partials, num_splits,
    KV_HEADS: tl.constexpr, REPEAT: tl.constexpr, ROWS_PER_TOKEN: tl.constexpr, D: tl.constexpr,
    FOLD_TOKENS: tl.constexpr, FOLD_AHEAD: tl.constexpr,
):  # fmt: skip
    """Fold what all units of a tile have stored into out, some of its tokens at a time."""
    rows = tl.arange(0, FOLD_TOKENS * ROWS_PER_TOKEN)
    heads = rows % ROWS_PER_TOKEN
    for first in range(0, unit.num_tokens, FOLD_TOKENS):
        tokens = first + rows // ROWS_PER_TOKEN
        real = (tokens < unit.num_tokens) & (heads < REPEAT)
        entries = ((unit.first_partial + tokens).to(tl.int64) * KV_HEADS + head) * ROWS_PER_TOKEN + heads
        total, weighted = _folded(partials, entries, num_splits, real, D, FOLD_AHEAD)
        _write(out, out_stride, unit.first_token + tokens, head * REPEAT + heads, real, total, weighted)


@triton.jit
def _tree_path(trees, token, position, end):
    """Return the path of a token and the position from which it applies: the end for a token of no tree."""
    depth = tl.load(trees.depths + token)
    return TreePath(tl.where(depth < 0, end, position - depth), trees.paths + token.to(tl.int64) * _PATH)


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
    SWAP_AB: tl.constexpr,
    MULTI_SPLIT: tl.constexpr,
    HAS_TREE: tl.constexpr,
):
    """Attend with a unit's queries q [rows, D] to one head of keys; into scratch, if the tile is shared."""
    if stored.k_cache.dtype.element_ty == tl.float8e4nv:
        q = q.to(tl.float16)  # One instruction converts eight bits to float16; bfloat16 takes four.
    BLOCK_M: tl.constexpr = q.shape[0]
    D: tl.constexpr = q.shape[1]
    rows = tl.arange(0, BLOCK_M)
    tokens, heads = rows // ROWS_PER_TOKEN, rows % ROWS_PER_TOKEN
    real = (tokens < unit.num_tokens) & (heads < REPEAT)
    oldest = 0
    if WINDOWED:
        oldest = tl.maximum(unit.position - scoring.window + 1, 0)
    end = unit.position + unit.num_tokens
    first = tl.maximum(oldest // BLOCK_N * BLOCK_N, unit.first_split * SPLIT)
    stop = tl.minimum(end, unit.end_split * SPLIT)
    cache = KVBlocks(
        stored.k_cache + head * (BLOCK_SIZE * D),
        stored.v_cache + head * (BLOCK_SIZE * D),
        stored.block_stride,
        stored.table + unit.table_row.to(tl.int64) * stored.table_stride,
    )
    reach = KeyRange(oldest, end, scoring.window)
    scaling = Scaling(scoring.score_scale, scoring.exponent_scale)

    split_peak, split_ones, split_weighted = empty_softmax(BLOCK_M, D, SWAP_AB)
    softmax = SoftmaxState(
        split_peak, tl.zeros([BLOCK_M], tl.float32), split_weighted, split_peak, split_ones, split_weighted
    )
    row_positions = unit.position + tokens
    first_of_all = oldest // SPLIT
    distance = unit.num_tokens.to(tl.int64) * (KV_HEADS * ROWS_PER_TOKEN)
    partials = Partials(scratch.weighted, scratch.peaks, scratch.totals, distance)
    entries = ((unit.first_partial + tokens).to(tl.int64) * KV_HEADS + head) * ROWS_PER_TOKEN + heads
    sharing = TileSharing(unit.num_arrivals > 1, first, first_of_all, entries, real, partials)
    seen_by_all = first
    stored_as_seen = unit.position + 1
    tree = None
    if HAS_TREE:
        tree = _tree_path(trees, unit.first_token, unit.position, end)
        stored_as_seen = tl.minimum(stored_as_seen, tree.root)
    if not WINDOWED:
        seen_by_all = tl.maximum(first, tl.minimum(stop, stored_as_seen // BLOCK_N * BLOCK_N))
        softmax = attend_keys(
            first, seen_by_all, q, row_positions, reach, cache, scaling, softmax, sharing, None,
            BLOCK_SIZE, BLOCK_N, SPLIT, False, WINDOWED, CAPPED, SWAP_AB, MULTI_SPLIT, False,
        )  # fmt: skip
    softmax = attend_keys(
        seen_by_all, stop, q, row_positions, reach, cache, scaling, softmax, sharing, tree,
        BLOCK_SIZE, BLOCK_N, SPLIT, True, WINDOWED, CAPPED, SWAP_AB, MULTI_SPLIT, HAS_TREE,
    )  # fmt: skip
    peak, total, weighted, split_peak, split_ones, split_weighted = softmax
    split_total = tl.max(split_ones, 0 if SWAP_AB else 1)
    if unit.num_arrivals == 1:
        peak, total, weighted = fold(peak, total, weighted, split_peak, split_total, split_weighted, SWAP_AB)
        by_row = rows_first(weighted, SWAP_AB)
        _write(out, out_stride, unit.first_token + tokens, head * REPEAT + heads, real, total, by_row)
    else:
        store_split(sharing, unit.end_split - 1 - first_of_all, split_peak, split_total, split_weighted, SWAP_AB)
        tl.debug_barrier()  # All threads have stored before one of them counts the unit.
        counter = scratch.counters + unit.first_partial * KV_HEADS + head
        if tl.atomic_add(counter, 1) == unit.num_arrivals - 1:
            num_splits = tl.cdiv(end, SPLIT) - first_of_all
            _combine_splits(
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
    SWAP_AB: tl.constexpr,
    MULTI_SPLIT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute units of work [n, 8] for every key-value head, with as many programs as run at once.

    A tile's rows are query tokens, each with the heads that share the key-value head: REPEAT of ROWS_PER_TOKEN rows.
    Depths and paths describe a step's draft trees; None without any.
    """
    pdl_trigger(PDL)
    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)[None, :]
    tokens, heads = rows // ROWS_PER_TOKEN, rows % ROWS_PER_TOKEN
    num_tasks = tl.load(num_units) * KV_HEADS
    for turn in range(tl.cdiv(num_tasks, tl.num_programs(0))):
        task = task_of_turn(turn)
        if task < num_tasks:
            unit = unit_of(units, task // KV_HEADS)
            head = task % KV_HEADS
            # Units and tables are complete before the step's first layer; queries and the newest keys are not.
            pdl_wait(PDL)
            real = (tokens < unit.num_tokens) & (heads < REPEAT)
            addresses = (unit.first_token + tokens).to(tl.int64) * q_stride + (head * REPEAT + heads) * D
            attend_unit(
                out, out_stride, tl.load(q + addresses[:, None] + dims, mask=real[:, None], other=0.0), unit, head,
                KernelCache(keys, values, block_stride, table, table_stride),
                KernelScratch(partial_weighted, partial_peaks, partial_totals, counters),
                KernelScoring(window, score_scale, exponent_scale), KernelTrees(depths, paths),
                KV_HEADS, REPEAT, ROWS_PER_TOKEN, BLOCK_SIZE, BLOCK_N, SPLIT, FOLD_TOKENS, FOLD_AHEAD, WINDOWED, CAPPED,
                SWAP_AB, MULTI_SPLIT, depths is not None,
            )  # fmt: skip
    pdl_wait(PDL)  # Programs without work wait too: a kernel that waits for this one waits for all before it.
