"""Feed-forward experts, of which every token chose a few. Knows how pairs are brought together, not who chose.

A pair is a token and one of its places: token * num_chosen + place. Pairs of one expert are brought together in tiles,
so that its matrices are read once for all of them. Who else is there decides which tile a pair is in and how large
tiles are, and nothing about its numbers: products are summed along the depth in one order whatever the tile, and a
token's rows are added in the order of its places.

Rounded to the type of x are gate and up, the activation, its product with up, and each expert's row, as the composition
of these operations would. The weighted sum of a token's rows is made in float32 and rounded once.
"""

from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.triton.launch import await_inputs, dot, launch, let_next_start
from archerfish.ops.triton.row_kernels import narrow, nonlinear

MOST_EXPERTS = 1024
"""A program counts the pairs of all of them in its registers."""
_MOST_COMPARED = 64  # Pairs up to this many are not sorted first: a program finds those of its tile among them.
_MOST_COUNTED = 4096  # Pairs that a program counts at once.
_COMBINED = 1024  # Columns of a token that a program adds up.
_BESIDE: tl.constexpr = tl.constexpr(16)  # Tiles that share outputs, and with them weights, before the next outputs.


@dataclass(frozen=True, slots=True)
class Tiling:
    """How much a program multiplies. Decides how long products take, not what they are."""

    num_rows: int
    """Most pairs of a tile."""
    num_weight_rows: int
    """Rows of an expert's matrix: as many outputs, or half as many with gate and up."""
    depth: int
    """Inputs of one step."""
    num_warps: int
    num_stages: int


# Few pairs are bound by memory: narrow programs, several of them on a multiprocessor, with many loads under way.
_LONELY = Tiling(num_rows=8, num_weight_rows=32, depth=128, num_warps=1, num_stages=6)
_SPARSE = Tiling(num_rows=16, num_weight_rows=32, depth=128, num_warps=1, num_stages=6)
_DENSE = Tiling(num_rows=64, num_weight_rows=128, depth=64, num_warps=4, num_stages=4)
_CROWDED = Tiling(num_rows=128, num_weight_rows=256, depth=64, num_warps=8, num_stages=4)


def tiling_for(num_tokens: int, num_chosen: int, num_experts: int) -> Tiling:
    """By what an expert gets on average: what each gets is known on the device alone."""
    average = num_tokens * num_chosen / num_experts
    if num_tokens <= _LONELY.num_rows:  # No expert gets more: a token chooses different ones.
        return _LONELY
    if average <= 8:
        return _SPARSE
    return _DENSE if average <= 96 else _CROWDED


@dataclass(frozen=True, slots=True, eq=False)
class Workspace:
    """What the kernels hand on to each other. One for many tokens serves fewer as well."""

    inner: Tensor
    """[pairs, I] what comes out of the activation."""
    rows: Tensor
    """[pairs, hidden] what comes out of the experts."""
    order: Tensor
    """[pairs] int32: pairs by expert, those of an expert as they come."""
    tiles: Tensor
    """[pairs, 3] int32: expert, where in the order, how many pairs. No tile is empty, so these are enough."""

    @classmethod
    def for_pairs(cls, num_pairs: int, down: Tensor) -> Self:
        _, hidden, size = down.shape
        return cls(
            inner=down.new_empty(num_pairs, size),
            rows=down.new_empty(num_pairs, hidden),
            order=down.new_empty(num_pairs, dtype=torch.int32),
            tiles=down.new_empty(num_pairs, 3, dtype=torch.int32),
        )


def why_not(dtype: torch.dtype, hidden: int, size: int, num_experts: int) -> str | None:
    """The reason why these kernels cannot run such experts, or None."""
    if dtype not in (torch.bfloat16, torch.float16):
        return f"they know bfloat16 and float16, not {str(dtype).removeprefix('torch.')}"
    if hidden % 16:
        return f"a hidden size of {hidden} is no multiple of 16"
    if size % 16:
        return f"an expert size of {size} is no multiple of 16"
    if num_experts > MOST_EXPERTS:
        return f"{num_experts} experts are more than {MOST_EXPERTS}"
    return None


def experts(
    x: Tensor, gate_up: Tensor, down: Tensor, chosen: Tensor, weights: Tensor, activation: Activation
) -> Tensor:
    out, workspace = torch.empty_like(x), Workspace.for_pairs(chosen.numel(), down)
    # The first columns of a sort lie in wider rows.
    experts_into(out, x, gate_up, down, chosen.contiguous(), weights.contiguous(), activation, workspace)
    return out


def experts_into(
    out: Tensor,
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    chosen: Tensor,
    weights: Tensor,
    activation: Activation,
    workspace: Workspace,
) -> None:
    """Rows and matrices lie side by side. chosen is int32 or int64, and names experts that there are."""
    num_experts, hidden, size = down.shape
    num_tokens, num_chosen = chosen.shape
    reason = why_not(x.dtype, hidden, size, num_experts)
    assert reason is None, reason
    assert x.dtype == gate_up.dtype == down.dtype == out.dtype and weights.dtype == torch.float32
    assert all(one.is_contiguous() for one in (out, x, gate_up, down, chosen, weights))
    assert gate_up.shape == (num_experts, 2 * size, hidden) and len(workspace.order) >= chosen.numel()
    if num_tokens == 0:
        return
    tiling = tiling_for(num_tokens, num_chosen, num_experts)
    if chosen.numel() > _MOST_COMPARED:
        _sort(chosen, workspace, tiling.num_rows, num_experts)
    _multiply(workspace.inner, x, gate_up, chosen, workspace, tiling, activation)
    _multiply(workspace.rows, workspace.inner, down, chosen, workspace, tiling, None)
    block = min(_COMBINED, triton.next_power_of_2(hidden))
    grid = (num_tokens, triton.cdiv(hidden, block))
    launch(
        combine_kernel, grid, out, workspace.rows, weights,
        NUM_CHOSEN=num_chosen, HIDDEN=hidden, BLOCK=block, num_warps=4,
    )  # fmt: skip


def _most_tiles(num_pairs: int, num_experts: int, num_rows: int) -> int:
    """As many as there are if every expert that can have a pair leaves a tile with just one."""
    return (num_pairs + min(num_experts, num_pairs) * (num_rows - 1)) // num_rows


def _sort(chosen: Tensor, workspace: Workspace, num_rows: int, num_experts: int) -> None:
    num_pairs = chosen.numel()
    block = min(triton.next_power_of_2(num_pairs), _MOST_COUNTED)
    launch(
        sort_kernel, (num_experts,), workspace.order, workspace.tiles, chosen,
        num_pairs, _most_tiles(num_pairs, num_experts, num_rows),
        NUM_BINS=triton.next_power_of_2(num_experts), BLOCK=block, BLOCK_M=num_rows,
        num_warps=8 if block == _MOST_COUNTED else 4,
    )  # fmt: skip


def _multiply(
    out: Tensor,
    x: Tensor,
    matrices: Tensor,
    chosen: Tensor,
    workspace: Workspace,
    tiling: Tiling,
    activation: Activation | None,
) -> None:
    """A row of out for each pair. With an activation x has a row for each token, else one for each pair."""
    num_experts, num_weight_rows, depth = matrices.shape
    num_outputs = num_weight_rows if activation is None else num_weight_rows // 2
    block = tiling.num_weight_rows if activation is None else tiling.num_weight_rows // 2
    num_pairs = chosen.numel()
    is_sorted = num_pairs > _MOST_COMPARED
    num_tiles = _most_tiles(num_pairs, num_experts, tiling.num_rows) if is_sorted else num_pairs
    launch(
        multiply_kernel, (num_tiles * triton.cdiv(num_outputs, block),),
        out, x, matrices, chosen, workspace.order, workspace.tiles, num_pairs, num_tiles,
        PAIRS_PER_ROW=1 if activation is None else chosen.shape[1],
        NUM_OUTPUTS=num_outputs, DEPTH=depth, ACTIVATION=activation,
        COMPARED=0 if is_sorted else triton.next_power_of_2(num_pairs),
        BLOCK_M=tiling.num_rows, BLOCK_N=block, BLOCK_K=tiling.depth,
        num_warps=tiling.num_warps, num_stages=tiling.num_stages, enable_fp_fusion=False,
    )  # fmt: skip


# -- bringing together ------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["num_pairs", "most_tiles"])
def sort_kernel(
    order, tiles, chosen, num_pairs, most_tiles,
    NUM_BINS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The pairs of one expert and their tiles. Each program counts for itself, so that none waits for another."""
    let_next_start(EARLY)
    expert = tl.program_id(0)
    bins = tl.arange(0, NUM_BINS)
    counts = tl.zeros([NUM_BINS], tl.int32)
    await_inputs(EARLY)
    for start in range(0, num_pairs, BLOCK):
        pairs = start + tl.arange(0, BLOCK)
        choices = tl.load(chosen + pairs, mask=pairs < num_pairs, other=0).to(tl.int32)
        counts += tl.histogram(choices, NUM_BINS, mask=pairs < num_pairs)
    num_tiles = (counts + BLOCK_M - 1) // BLOCK_M
    first = tl.sum(tl.where(bins < expert, counts, 0), 0)
    end = first + tl.sum(tl.where(bins == expert, counts, 0), 0)
    first_tile = tl.sum(tl.where(bins < expert, num_tiles, 0), 0)
    if expert == tl.num_programs(0) - 1:
        for tile in range(tl.sum(num_tiles, 0), most_tiles):
            tl.store(tiles + tile * 3 + 2, 0)
    for start in range(first, end, BLOCK_M):
        tile = tiles + (first_tile + (start - first) // BLOCK_M) * 3
        tl.store(tile, expert)
        tl.store(tile + 1, start)
        tl.store(tile + 2, tl.minimum(end - start, BLOCK_M))
    for start in range(0, num_pairs, BLOCK):
        pairs = start + tl.arange(0, BLOCK)
        is_own = tl.load(chosen + pairs, mask=pairs < num_pairs, other=-1).to(tl.int32) == expert
        places = first + tl.cumsum(is_own.to(tl.int32), 0) - 1
        tl.store(order + places, pairs, mask=is_own)
        first += tl.sum(is_own.to(tl.int32), 0)


@triton.jit
def _sorted_tile(tile, order, tiles, BLOCK_M: tl.constexpr):
    """The expert of a tile, its number of pairs, and these; the last again and again where it has fewer."""
    expert, first, number = tl.load(tiles + tile * 3), tl.load(tiles + tile * 3 + 1), tl.load(tiles + tile * 3 + 2)
    rows = tl.minimum(tl.arange(0, BLOCK_M), number - 1)
    return expert, number, tl.load(order + first + rows, mask=rows >= 0, other=0)


@triton.jit
def _compared_tile(tile, chosen, num_pairs, COMPARED: tl.constexpr, BLOCK_M: tl.constexpr):
    """The same of the tile that starts with pair number `tile`. It is empty where that pair is in an earlier one."""
    pairs = tl.arange(0, COMPARED)
    expert = tl.load(chosen + tile).to(tl.int32)
    is_same = (tl.load(chosen + pairs, mask=pairs < num_pairs, other=-1).to(tl.int32) == expert).to(tl.int32)
    earlier = tl.sum(tl.where(pairs < tile, is_same, 0), 0)
    number = tl.where(earlier % BLOCK_M == 0, tl.minimum(tl.sum(is_same, 0) - earlier, BLOCK_M), 0)
    ranks = tl.where(is_same != 0, tl.cumsum(is_same, 0) - 1, -1)  # [COMPARED] among pairs of the same expert.
    rows = earlier + tl.minimum(tl.arange(0, BLOCK_M), number - 1)
    return expert, number, tl.sum(tl.where(ranks[None, :] == rows[:, None], pairs[None, :], 0), 1)


# -- products ---------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["num_pairs", "most_tiles"])
def multiply_kernel(
    out, x, matrices, chosen, order, tiles, num_pairs, most_tiles,
    PAIRS_PER_ROW: tl.constexpr, NUM_OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, ACTIVATION: tl.constexpr,
    COMPARED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Some outputs of a tile of pairs. With an activation a matrix has the rows of gate, then those of up."""
    let_next_start(EARLY)
    num_blocks: tl.constexpr = (NUM_OUTPUTS + BLOCK_N - 1) // BLOCK_N
    group = tl.program_id(0) // (_BESIDE * num_blocks)
    within = tl.program_id(0) % (_BESIDE * num_blocks)
    num_beside = tl.minimum(most_tiles - group * _BESIDE, _BESIDE)
    tile = group * _BESIDE + within % num_beside
    outputs = within // num_beside * BLOCK_N + tl.arange(0, BLOCK_N)
    await_inputs(EARLY)
    if COMPARED:
        expert, number, pairs = _compared_tile(tile, chosen, num_pairs, COMPARED, BLOCK_M)
    else:
        expert, number, pairs = _sorted_tile(tile, order, tiles, BLOCK_M)
    if number == 0:
        return

    is_gated: tl.constexpr = ACTIVATION is not None
    dtype: tl.constexpr = x.dtype.element_ty
    depth = tl.arange(0, BLOCK_K)
    weight_rows: tl.constexpr = 2 * NUM_OUTPUTS if is_gated else NUM_OUTPUTS
    # Past the last output its weights are read again: what is made of them is not stored.
    weights = matrices + expert.to(tl.int64) * weight_rows * DEPTH
    weights += tl.minimum(outputs, NUM_OUTPUTS - 1)[:, None] * DEPTH + depth[None, :]  # [BLOCK_N, BLOCK_K]
    rows = x + (pairs // PAIRS_PER_ROW).to(tl.int64)[None, :] * DEPTH + depth[:, None]  # [BLOCK_K, BLOCK_M]
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    total_up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    inside = tl.full([BLOCK_K], 1, tl.int1)
    for start in range(0, DEPTH, BLOCK_K):
        if DEPTH % BLOCK_K:
            inside = start + depth < DEPTH
        inputs = tl.load(rows + start, mask=inside[:, None], other=0.0)
        total = dot(tl.load(weights + start, mask=inside[None, :], other=0.0), inputs, total)
        if is_gated:
            up = tl.load(weights + (start + NUM_OUTPUTS * DEPTH), mask=inside[None, :], other=0.0)
            total_up = dot(up, inputs, total_up)
    made = narrow(total, dtype)
    if is_gated:
        made = narrow(nonlinear(made.to(tl.float32), ACTIVATION), dtype)
        made = narrow(made.to(tl.float32) * narrow(total_up, dtype).to(tl.float32), dtype)
    is_there = (tl.arange(0, BLOCK_M) < number)[None, :] & (outputs < NUM_OUTPUTS)[:, None]
    tl.store(out + pairs.to(tl.int64)[None, :] * NUM_OUTPUTS + outputs[:, None], made, mask=is_there)


# -- adding up --------------------------------------------------------------------------------------------------------


@triton.jit
def combine_kernel(
    out, rows, weights, NUM_CHOSEN: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    """Some columns of a token: the rows of its places, in their order, by their weights."""
    let_next_start(EARLY)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    await_inputs(EARLY)
    for place in tl.static_range(NUM_CHOSEN):
        pair = token * NUM_CHOSEN + place
        row = tl.load(rows + pair * HIDDEN + columns, mask=columns < HIDDEN, other=0.0)
        total = tl.fma(row.to(tl.float32), tl.load(weights + pair), total)
    tl.store(out + token * HIDDEN + columns, narrow(total, out.dtype.element_ty), mask=columns < HIDDEN)
