"""Products of rows with a matrix in 16-bit floats: one kernel for few rows, cuBLAS for many, the same bits from both.

Tensor cores add up blocks of 16 along K, one after the other, in float32; nothing else of a product's shape enters its
bits. So a row has the same bits however many there are, as long as K is walked in order. cuBLAS does that too, once it
may not split K; where it was not seen to, for a shape and a number of rows, it is not used.

Of matrices with few outputs K is cut into a fixed number of parts, which several warps walk at once: a single walk
would take longer than reading the matrix. How many parts is a property of the matrix, never of the rows.
"""

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.triton.launch import INTERPRETED, await_inputs, dot, launch, let_next_start, prefetch
from archerfish.ops.triton.row_kernels import added, narrow, nonlinear
from archerfish.ops.triton.tuning import Product, stored

_FEW_OUTPUTS = 4096
_PARTS = 4
_FEW_ROWS_OF_PARTS = 32
"""Up to so many, the parts of K are walked by the warps of a program."""
_MOST_SPREAD_TILES = 1 << 16
_DEPTH = 16
"""Inputs that a tensor core adds up at once."""
_LINE = 128
"""Bytes that are fetched ahead at once."""
_SMALL = 16 << 20
"""Bytes of a matrix that is read faster than a kernel starts."""
_STAGED = 220 << 10
"""Bytes of weights and rows that may be on their way to one program: somewhat less than a multiprocessor holds."""


class Tiles(NamedTuple):
    """How a launch is cut. None of it enters the bits."""

    outputs: int
    inputs: int
    """Of each part of K."""
    rows: int
    num_warps: int
    num_stages: int
    fetched_ahead: int = 0
    """Bytes of each output's weights that are asked for before the rows are there, beside the first tile."""
    starts_next_late: bool = False
    """The next kernel is let in only when this one has its rows: it would take room that few programs need."""
    spread: bool = False
    """Each part of K has a program of its own, and the last one to end adds them up: for many rows. Otherwise each has
    a warp of its own."""


def num_parts(num_outputs: int, num_inputs: int) -> int:
    """Into how many parts K is cut: fixed by the matrix, because it enters the bits."""
    return _PARTS if num_outputs < _FEW_OUTPUTS and num_inputs % (_PARTS * _DEPTH) == 0 else 1


def default_tiles(num_rows: int, num_outputs: int, num_inputs: int) -> Tiles:
    """Good on an H200. Which are best was measured, not derived."""
    parts = num_parts(num_outputs, num_inputs)
    most_inputs = max(16, triton.next_power_of_2(num_inputs // parts))
    rows = max(8, triton.next_power_of_2(min(num_rows, 64)))
    if parts > 1 and num_rows > 256:
        return Tiles(128, min(64, most_inputs), 128, 8, 4, spread=True)
    if parts > 1 and num_rows > _FEW_ROWS_OF_PARTS:
        return Tiles(64, min(64, most_inputs), 64, 4, 5, spread=True)
    if parts > 1:
        inputs, stages = {8: (256, 3), 16: (128, 4), 32: (128, 4), 64: (128, 3)}[rows]
        return Tiles(16, min(inputs, most_inputs), rows, parts, stages, 512, starts_next_late=True)
    if rows > 8:
        return Tiles(64, min(128, most_inputs), max(16, rows), 4, 4 if rows > 32 else 5, 256)
    if num_outputs >= 4 * _FEW_OUTPUTS:
        return Tiles(32, min(512, most_inputs), 8, 2, 2)
    is_small = num_outputs * num_inputs * 2 < _SMALL
    return Tiles(16, min(512, most_inputs), 8, 1, 3, 1024, starts_next_late=is_small)


def candidate_tiles(num_rows: int, num_outputs: int, num_inputs: int) -> list[Tiles]:
    """Cuts that are worth measuring, the default first."""
    default = default_tiles(num_rows, num_outputs, num_inputs)
    parts = num_parts(num_outputs, num_inputs)
    at_once = 1 if default.spread else parts
    found = [default]
    for outputs, inputs, warps, stages in product((16, 32, 64), (64, 128, 256, 512), (1, 2, 4), (2, 3, 4, 6)):
        staged = 2 * (outputs + default.rows) * inputs * at_once * (stages + 1)  # The first tile has room of its own.
        tiles = default._replace(outputs=outputs, inputs=inputs, num_warps=warps, num_stages=stages)
        # Each part has a warp of its own; and large tiles need many, for their sums to fit into registers.
        is_fit = warps == default.num_warps if parts > 1 else outputs * default.rows <= 1024 * warps
        if is_fit and inputs * parts <= num_inputs and _STAGED // 4 <= staged <= _STAGED and tiles != default:
            found.append(tiles)
    return found


@cache
def chosen_tiles(num_rows: int, num_outputs: int, num_inputs: int, is_gated: bool) -> Tiles:
    """The fastest that was seen on this GPU, or the default where nobody looked."""
    candidates = candidate_tiles(num_rows, num_outputs, num_inputs)
    return stored(Product(num_rows, num_outputs, num_inputs, is_gated), candidates) or candidates[0]


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
        if EVEN:
            w = tl.load(weight_pointers + first)
            r = tl.load(row_pointers + first, mask=has_row, other=0.0)
        else:
            inside = inputs < part_length - first
            w = tl.load(weight_pointers + first, mask=inside & has_output, other=0.0)
            r = tl.load(row_pointers + first, mask=inside & has_row, other=0.0)
        total = dot(w, turned(r), total)
    return total


@triton.jit
def turned(x):
    """The last two dimensions exchanged."""
    return tl.trans(x, (0, 2, 1)) if len(x.shape) == 3 else tl.trans(x)


@triton.jit
def added_up(total):
    """[parts, outputs, rows] -> [outputs, rows]: neighbours first, then neighbouring sums."""
    if len(total.shape) == 2:
        result = total
    else:
        tl.static_assert(total.shape[0] == 4)
        pairs = tl.reshape(tl.permute(total, (1, 2, 0)), (total.shape[1], total.shape[2], 2, 2))
        even, odd = tl.split(pairs)
        first, second = tl.split(even + odd)
        result = first + second
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
    """Neighbours first, then neighbouring sums."""
    tl.static_assert(PARTS == 4)
    first = tl.load(_places_of_part(partials, 0, like.shape, PARTS))
    first += tl.load(_places_of_part(partials, 1, like.shape, PARTS))
    second = tl.load(_places_of_part(partials, 2, like.shape, PARTS))
    second += tl.load(_places_of_part(partials, 3, like.shape, PARTS))
    return first + second


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
    SPREAD: tl.constexpr,
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
    if SPREAD:
        first = tl.program_id(2) * part_length
        weight_pointers += first
        row_pointers += first
    elif PARTS > 1:  # Each is a warp's.
        parts = tl.arange(0, PARTS)[:, None, None] * part_length
        weight_pointers, row_pointers = weight_pointers[None, :, :] + parts, row_pointers[None, :, :] + parts
        of_output, of_row = of_output[None, :, :], of_row[None, :, :]
    w = _first_tile(weight_pointers, of_output, part_length, BLOCK_K, EVEN)
    if AHEAD > 0:
        lines = BLOCK_K + tl.arange(0, AHEAD // 128)[None, :] * 64
        prefetch(weight + tl.where(has_output, outputs, 0)[:, None].to(tl.int64) * num_inputs + lines)
    await_inputs(EARLY)
    if LATE:
        let_next_start(EARLY)

    total = _walk(w, weight_pointers, of_output, row_pointers, of_row, part_length, BLOCK_K, EVEN)
    if SPREAD:
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
class Finish:
    """What becomes of a product before it is stored."""

    activation: Activation | None = None
    """The matrix holds gates, then as many others: activation(gate) * other is the result."""
    residual: Tensor | None = None
    """[T, outputs] what the result, times factor, is added to."""
    factor: float = 1.0


_PLAIN = Finish()


def linear_by_kernel(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, finish: Finish = _PLAIN, tiles: Tiles | None = None
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
    grid = (triton.cdiv(num_outputs, block), triton.cdiv(num_rows, tiles.rows), parts if tiles.spread else 1)
    launch(
        _linear_kernel,
        grid,
        out, out.stride(0), x, x.stride(0), weight, weight if bias is None else bias,
        residual, residual.stride(0), finish.factor, *_room_for_parts(grid, tiles, x.device),
        num_rows, num_outputs, num_inputs, part_length,
        PARTS=parts,
        SPREAD=tiles.spread,
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
    grid: tuple[int, int, int], tiles: Tiles, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Where programs leave the sums of their parts, and count who has."""
    if not tiles.spread:
        return None, None
    num_tiles = grid[0] * grid[1]
    assert num_tiles <= _MOST_SPREAD_TILES, f"{num_tiles} tiles, and {_MOST_SPREAD_TILES} counters"
    partials = torch.empty(num_tiles * grid[2] * tiles.outputs * tiles.rows, dtype=torch.float32, device=device)
    return partials, _counters(device)


@cache
def _counters(device: torch.device) -> Tensor:
    """One for each tile, zero before and after every launch."""
    return torch.zeros(_MOST_SPREAD_TILES, dtype=torch.int32, device=device)


def _power_below(num_bytes: int) -> int:
    """The largest power of two up to it that is whole lines, or 0."""
    return 0 if num_bytes < _LINE else 1 << (num_bytes.bit_length() - 1)


def linear_by_cublas(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same without a finish, by a library that was told not to split K."""
    parts = num_parts(*weight.shape)
    if parts == 1:
        return F.linear(x, weight, bias)
    length = x.shape[1] // parts
    rows, columns = x.split(length, 1), weight.split(length, 1)
    sums = [torch.mm(r, c.t(), out_dtype=torch.float32) for r, c in zip(rows, columns, strict=True)]
    while len(sums) > 1:  # Neighbours first, as the kernel adds them.
        sums = [sums[place].add_(sums[place + 1]) for place in range(0, len(sums), 2)]
    total = sums[0] if bias is None else sums[0].add_(bias)
    return total.to(x.dtype)
