"""Products of rows with a matrix in 16-bit floats: the kernel for few rows; many are cuBLAS's, with the same bits.

Tensor cores add up blocks of 16 along K, one after the other, in float32; nothing else of a product's shape enters its
bits. So a row has the same bits however many there are, as long as K is walked in order. cuBLAS does that too, once it
may not split K; where it was not seen to, for a shape and a number of rows, it is not used.

Of matrices with few outputs K is cut into a fixed number of parts, which are walked at once where rows are few: a
single walk would take longer than reading the matrix. How many parts is a property of the matrix, never of the rows.
These products are made here whatever the rows: no library adds up parts.
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.triton.elementwise import added, narrow, nonlinear
from archerfish.ops.triton.gemm.float_tiles import FloatTiles, chosen_tiles, num_parts
from archerfish.ops.triton.runtime import INTERPRETED, await_inputs, dot, launch, let_next_start, prefetch

_MOST_SHARED_TILES = 1 << 16
_LINE = 128
"""Bytes that are fetched ahead at once."""


# -- the kernel -------------------------------------------------------------------------------------------------------


@triton.jit
def _first_tile(weight_pointers, has_output, part_length, BLOCK_K: tl.constexpr, EVEN: tl.constexpr):
    """Of weights, which need wait for nobody."""
    if EVEN:
        tile = tl.load(weight_pointers)
    else:
        inputs = tl.arange(0, BLOCK_K)
        tile = tl.load(weight_pointers, mask=has_output & (inputs < part_length), other=0.0)
    return tile


@triton.jit
def _pair_at(at, weight_pointers, has_output, row_pointers, has_row, left, BLOCK_K: tl.constexpr, EVEN: tl.constexpr):
    """A tile of weights and one of rows, of which so many inputs are left."""
    if EVEN:
        w = tl.load(weight_pointers + at)
        r = tl.load(row_pointers + at, mask=has_row, other=0.0)
    else:
        inside = tl.arange(0, BLOCK_K) < left
        w = tl.load(weight_pointers + at, mask=inside & has_output, other=0.0)
        r = tl.load(row_pointers + at, mask=inside & has_row, other=0.0)
    return w, r


@triton.jit
def _walk(
    w,
    weight_pointers,
    has_output,
    row_pointers,
    has_row,
    part_length,
    BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr,
):
    """[outputs, rows] float32, or one of them for each part: what w is the first tile of, with the rows.

    Pointers and masks are [outputs or rows, inputs], with parts before them where these are walked at once.
    """
    inputs = tl.arange(0, BLOCK_K)
    r = tl.load(row_pointers, mask=has_row & (inputs < part_length), other=0.0)
    if len(w.shape) == 3:
        total = tl.zeros((w.shape[0], w.shape[1], r.shape[1]), tl.float32)
    else:
        total = tl.zeros((w.shape[0], r.shape[0]), tl.float32)
    total = dot(w, turned(r), total)
    for first in range(BLOCK_K, part_length, BLOCK_K):
        w, r = _pair_at(first, weight_pointers, has_output, row_pointers, has_row, part_length - first, BLOCK_K, EVEN)
        total = dot(w, turned(r), total)
    return total


@triton.jit
def _walk_in_turn(
    weight_pointers,
    has_output,
    row_pointers,
    has_row,
    part_length,
    PARTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr,
):
    """[outputs, rows] float32: the sum of all parts, walked by one program in turn."""
    total = tl.zeros((weight_pointers.shape[0], row_pointers.shape[0]), tl.float32)
    for part in tl.range(0, PARTS, flatten=True):
        one = tl.zeros(total.shape, tl.float32)
        for first in range(0, part_length, BLOCK_K):
            at = part * part_length + first
            w, r = _pair_at(at, weight_pointers, has_output, row_pointers, has_row, part_length - first, BLOCK_K, EVEN)
            one = dot(w, tl.trans(r), one)
        total = tl.where(part == 0, one, total + one)
    return total


@triton.jit
def turned(x):
    """The last two dimensions exchanged."""
    return tl.trans(x, (0, 2, 1)) if len(x.shape) == 3 else tl.trans(x)


@triton.jit
def added_up(total):
    """[parts, outputs, rows] -> [outputs, rows], one part after the other."""
    if len(total.shape) == 2:
        result = total
    else:
        tl.static_assert(total.shape[0] == 4)
        pairs = tl.reshape(tl.permute(total, (1, 2, 0)), (total.shape[1], total.shape[2], 2, 2))
        even, odd = tl.split(pairs)
        first, third = tl.split(even)
        second, fourth = tl.split(odd)
        result = first + second + third + fourth
    return result


@triton.jit
def gated(y, ACTIVATION: tl.constexpr):
    """[rows, gates and then others] -> [rows, half as many], rounded after each step."""
    dtype: tl.constexpr = y.dtype
    gate, up = tl.split(tl.permute(tl.reshape(y, (y.shape[0], 2, y.shape[1] // 2)), (0, 2, 1)))
    gate = narrow(nonlinear(gate.to(tl.float32), ACTIVATION), dtype)
    return narrow(gate.to(tl.float32) * up.to(tl.float32), dtype)


@triton.jit
def _finish(
    out, out_stride, bias, residual, residual_stride, factor, total,
    rows, outputs, written, num_rows, num_outputs, has_output, dtype: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Store sums [outputs, rows], or what becomes of them."""
    y = tl.trans(total)
    if HAS_BIAS:
        y += tl.load(bias + outputs, mask=has_output, other=0.0).to(tl.float32)[None, :]
    y = narrow(y, dtype)
    if ACTIVATION is not None:
        y = gated(y, ACTIVATION)
    where = (rows < num_rows)[:, None] & (written < num_outputs)[None, :]
    if HAS_RESIDUAL:
        places = residual + rows[:, None].to(tl.int64) * residual_stride + written[None, :]
        before = tl.load(places, mask=where, other=0.0).to(tl.float32)
        y = added(before, y.to(tl.float32), factor, dtype)
    places = out + rows[:, None].to(tl.int64) * out_stride + written[None, :]
    tl.store(places, y.to(out.dtype.element_ty), mask=where)


# -- parts of K by programs of their own ------------------------------------------------------------------------------


@triton.jit
def _places_of_part(partials, part, shape: tl.constexpr, PARTS: tl.constexpr):
    """Of a part of this program's tile."""
    tile = (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64)
    size: tl.constexpr = shape[0] * shape[1]
    inside = tl.arange(0, shape[0])[:, None] * shape[1] + tl.arange(0, shape[1])[None, :]
    return partials + (tile * PARTS + part) * size + inside


@triton.jit
def _leave_part(partials, total, PARTS: tl.constexpr):
    tl.store(_places_of_part(partials, tl.program_id(2), total.shape, PARTS), total)
    tl.debug_barrier()  # One thread says that all have stored.


@triton.jit
def _is_last(counters, PARTS: tl.constexpr):
    """Whether the others that share the tile have left theirs. The counter is as it was before."""
    counter = counters + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    is_last = tl.atomic_add(counter, 1) == PARTS - 1
    if is_last:
        tl.store(counter, 0)
    return is_last


@triton.jit
def _all_parts(partials, like, PARTS: tl.constexpr):
    """One after the other."""
    total = tl.load(_places_of_part(partials, 0, like.shape, PARTS))
    for part in tl.static_range(1, PARTS):
        total += tl.load(_places_of_part(partials, part, like.shape, PARTS))
    return total


@triton.jit(do_not_specialize=["num_rows"])
def _linear_kernel(
    out,
    out_stride,
    x,
    x_stride,
    weight,
    bias,
    residual,
    residual_stride,
    factor,
    partials,
    counters,
    num_rows,
    num_outputs,
    num_inputs,
    part_length,
    PARTS: tl.constexpr,
    PARTS_BY: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    EVEN: tl.constexpr,
    AHEAD: tl.constexpr,
    LATE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """With an activation the matrix holds all gates, then as many others, and a program takes half of each."""
    if not LATE:
        let_next_start(EARLY)
    dtype: tl.constexpr = x.dtype.element_ty
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    if ACTIVATION is None:
        written = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        outputs, has_output = written, written < num_outputs
    else:
        HALF: tl.constexpr = BLOCK_N // 2
        written = tl.program_id(0) * HALF + tl.arange(0, HALF)
        place = tl.arange(0, BLOCK_N)
        gates = tl.program_id(0) * HALF + place % HALF
        outputs, has_output = gates + place // HALF * num_outputs, gates < num_outputs

    inputs = tl.arange(0, BLOCK_K)[None, :]
    weight_pointers = weight + outputs[:, None].to(tl.int64) * num_inputs + inputs
    row_pointers = x + rows[:, None].to(tl.int64) * x_stride + inputs
    of_output, of_row = has_output[:, None], (rows < num_rows)[:, None]
    if PARTS > 1 and PARTS_BY == "warps":
        parts = tl.arange(0, PARTS)[:, None, None] * part_length
        weight_pointers, row_pointers = weight_pointers[None, :, :] + parts, row_pointers[None, :, :] + parts
        of_output, of_row = of_output[None, :, :], of_row[None, :, :]
    if PARTS_BY == "turns":
        await_inputs(EARLY)
        total = _walk_in_turn(weight_pointers, of_output, row_pointers, of_row, part_length, PARTS, BLOCK_K, EVEN)
    else:
        if PARTS_BY == "programs":
            weight_pointers += tl.program_id(2) * part_length
            row_pointers += tl.program_id(2) * part_length
        w = _first_tile(weight_pointers, of_output, part_length, BLOCK_K, EVEN)
        if AHEAD > 0:
            lines = BLOCK_K + tl.arange(0, AHEAD // 128)[None, :] * 64
            prefetch(weight + tl.where(has_output, outputs, 0)[:, None].to(tl.int64) * num_inputs + lines)
        await_inputs(EARLY)
        if LATE:
            let_next_start(EARLY)
        total = _walk(w, weight_pointers, of_output, row_pointers, of_row, part_length, BLOCK_K, EVEN)

    if PARTS_BY == "programs":
        _leave_part(partials, total, PARTS)
        if _is_last(counters, PARTS):
            _finish(
                out, out_stride, bias, residual, residual_stride, factor, _all_parts(partials, total, PARTS),
                rows, outputs, written, num_rows, num_outputs, has_output, dtype, HAS_BIAS, HAS_RESIDUAL, ACTIVATION,
            )  # fmt: skip
    else:
        _finish(
            out, out_stride, bias, residual, residual_stride, factor, added_up(total),
            rows, outputs, written, num_rows, num_outputs, has_output, dtype, HAS_BIAS, HAS_RESIDUAL, ACTIVATION,
        )  # fmt: skip


# -- launching it -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class FloatEpilogue:
    """What becomes of a product before it is stored."""

    activation: Activation | None = None
    """The matrix holds gates, then as many others: activation(gate) * other is the result."""
    residual: Tensor | None = None
    """[T, outputs] what the result, times factor, is added to."""
    factor: float = 1.0


_PLAIN = FloatEpilogue()


def linear_by_kernel(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    finish: FloatEpilogue = _PLAIN,
    tiles: FloatTiles | None = None,
) -> None:
    """Any number of rows; meant for few."""
    num_rows, num_inputs = x.shape
    is_gated = finish.activation is not None
    num_outputs = len(weight) // 2 if is_gated else len(weight)
    tiles = tiles or chosen_tiles(num_rows, len(weight), num_inputs, is_gated)
    parts = num_parts(len(weight), num_inputs)
    part_length = num_inputs // parts
    block = tiles.outputs // 2 if is_gated else tiles.outputs
    residual = out if finish.residual is None else finish.residual
    grid = (
        triton.cdiv(num_outputs, block),
        triton.cdiv(num_rows, tiles.rows),
        parts if tiles.parts_by == "programs" else 1,
    )
    launch(
        _linear_kernel,
        grid,
        out, out.stride(0), x, x.stride(0), weight, weight if bias is None else bias,
        residual, residual.stride(0), finish.factor, *_room_for_parts(grid, tiles, x.device),
        num_rows, num_outputs, num_inputs, part_length,
        PARTS=parts,
        PARTS_BY=tiles.parts_by,
        BLOCK_N=tiles.outputs,
        BLOCK_K=tiles.inputs,
        BLOCK_M=tiles.rows,
        EVEN=part_length % tiles.inputs == 0 and num_outputs % block == 0,
        AHEAD=0 if INTERPRETED else _power_below(min(tiles.fetched_ahead, 2 * (part_length - tiles.inputs))),
        LATE=tiles.starts_next_late,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=finish.residual is not None,
        ACTIVATION=finish.activation,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        # Contracted, an activation would differ in the last bit from one of its own.
        enable_fp_fusion=False,
    )  # fmt: skip


def _room_for_parts(
    grid: tuple[int, int, int], tiles: FloatTiles, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Where programs leave the sums of their parts, and count who has."""
    if tiles.parts_by != "programs":
        return None, None
    num_tiles = grid[0] * grid[1]
    assert num_tiles <= _MOST_SHARED_TILES, f"{num_tiles} tiles, and {_MOST_SHARED_TILES} counters"
    partials = torch.empty(num_tiles * grid[2] * tiles.outputs * tiles.rows, dtype=torch.float32, device=device)
    return partials, _counters(device)


@cache
def _counters(device: torch.device) -> Tensor:
    """One for each tile, zero before and after every launch."""
    return torch.zeros(_MOST_SHARED_TILES, dtype=torch.int32, device=device)


def _power_below(num_bytes: int) -> int:
    """The largest power of two up to it that is whole lines, or 0."""
    return 0 if num_bytes < _LINE else 1 << (num_bytes.bit_length() - 1)
