"""GEMM of 16-bit floats: a kernel for few rows, whose bits equal cuBLAS's for many.

Tensor cores add up blocks of 16 along K, one after the other, in float32; nothing else of a GEMM's shape enters its
bits. So a row has the same bits however many rows there are, as long as K is walked in order. cuBLAS walks it in order
too when it may not split K; where that was not observed, for a shape and a number of rows, cuBLAS is not used.

For matrices with few outputs K is split into a fixed number of parts, which are walked in parallel where rows are few:
a single walk would take longer than reading the matrix. The number of splits depends on the matrix, never on the rows.
These GEMMs always run here: no library adds up splits in a fixed order.
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.triton.elementwise import add_rounded, nonlinear, round_to
from archerfish.ops.triton.gemm.float_tiles import FloatTiles, chosen_tiles, num_k_splits
from archerfish.ops.triton.runtime import INTERPRETED, dot, launch, pdl_trigger, pdl_wait, prefetch

_MOST_SHARED_TILES = 1 << 16
_LINE = 128
"""Bytes of one prefetch."""


# -- the kernel -------------------------------------------------------------------------------------------------------


@triton.jit
def _first_tile(weight_pointers, has_output, split_length, BLOCK_K: tl.constexpr, EVEN: tl.constexpr):
    """Load the first tile of weights, which depend on no earlier kernel."""
    if EVEN:
        tile = tl.load(weight_pointers)
    else:
        inputs = tl.arange(0, BLOCK_K)
        tile = tl.load(weight_pointers, mask=has_output & (inputs < split_length), other=0.0)
    return tile


@triton.jit
def _pair_at(at, weight_pointers, has_output, row_pointers, has_row, left, BLOCK_K: tl.constexpr, EVEN: tl.constexpr):
    """Load a tile of weights and one of rows, of which `left` inputs remain."""
    if EVEN:
        w = tl.load(weight_pointers + at)
        r = tl.load(row_pointers + at, mask=has_row, other=0.0)
    else:
        inside = tl.arange(0, BLOCK_K) < left
        w = tl.load(weight_pointers + at, mask=inside & has_output, other=0.0)
        r = tl.load(row_pointers + at, mask=inside & has_row, other=0.0)
    return w, r


@triton.jit
def _accumulate(
    w,
    weight_pointers,
    has_output,
    row_pointers,
    has_row,
    split_length,
    BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Return sums [outputs, rows] float32, or one of them per split; w is the first tile of weights.

    Pointers and masks are [outputs or rows, inputs], with splits as the first dimension where these are walked in
    parallel.
    """
    inputs = tl.arange(0, BLOCK_K)
    r = tl.load(row_pointers, mask=has_row & (inputs < split_length), other=0.0)
    if len(w.shape) == 3:
        total = tl.zeros((w.shape[0], w.shape[1], r.shape[1]), tl.float32)
    else:
        total = tl.zeros((w.shape[0], r.shape[0]), tl.float32)
    total = dot(w, transposed(r), total)
    for first in range(BLOCK_K, split_length, BLOCK_K):
        w, r = _pair_at(first, weight_pointers, has_output, row_pointers, has_row, split_length - first, BLOCK_K, EVEN)
        total = dot(w, transposed(r), total)
    return total


@triton.jit
def _accumulate_serially(
    weight_pointers,
    has_output,
    row_pointers,
    has_row,
    split_length,
    SPLIT_K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Return the sum of all splits [outputs, rows] float32, which one program walks one after the other."""
    total = tl.zeros((weight_pointers.shape[0], row_pointers.shape[0]), tl.float32)
    for part in tl.range(0, SPLIT_K, flatten=True):
        partial = tl.zeros(total.shape, tl.float32)
        for first in range(0, split_length, BLOCK_K):
            at = part * split_length + first
            w, r = _pair_at(at, weight_pointers, has_output, row_pointers, has_row, split_length - first, BLOCK_K, EVEN)
            partial = dot(w, tl.trans(r), partial)
        total = tl.where(part == 0, partial, total + partial)
    return total


@triton.jit
def transposed(x):
    """Exchange the last two dimensions."""
    return tl.trans(x, (0, 2, 1)) if len(x.shape) == 3 else tl.trans(x)


@triton.jit
def _sum_splits(total):
    """Sum [splits, outputs, rows] -> [outputs, rows], one split after the other."""
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
    """Apply the gated activation [rows, gates and then others] -> [rows, half as many], rounding after each
    operation."""
    dtype: tl.constexpr = y.dtype
    gate, up = tl.split(tl.permute(tl.reshape(y, (y.shape[0], 2, y.shape[1] // 2)), (0, 2, 1)))
    gate = round_to(nonlinear(gate.to(tl.float32), ACTIVATION), dtype)
    return round_to(gate.to(tl.float32) * up.to(tl.float32), dtype)


@triton.jit
def _store_epilogue(
    out, out_stride, bias, residual, residual_stride, factor, total,
    rows, outputs, written, num_rows, num_outputs, has_output, dtype: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Store sums [outputs, rows] after bias, activation and residual."""
    y = tl.trans(total)
    if HAS_BIAS:
        y += tl.load(bias + outputs, mask=has_output, other=0.0).to(tl.float32)[None, :]
    y = round_to(y, dtype)
    if ACTIVATION is not None:
        y = gated(y, ACTIVATION)
    where = (rows < num_rows)[:, None] & (written < num_outputs)[None, :]
    if HAS_RESIDUAL:
        addresses = residual + rows[:, None].to(tl.int64) * residual_stride + written[None, :]
        before = tl.load(addresses, mask=where, other=0.0).to(tl.float32)
        y = add_rounded(before, y.to(tl.float32), factor, dtype)
    addresses = out + rows[:, None].to(tl.int64) * out_stride + written[None, :]
    tl.store(addresses, y.to(out.dtype.element_ty), mask=where)


# -- split K among programs -------------------------------------------------------------------------------------------


@triton.jit
def _partial_pointers(partials, part, shape: tl.constexpr, SPLIT_K: tl.constexpr):
    """Return pointers to a split's partial sums of this program's tile."""
    tile = (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64)
    size: tl.constexpr = shape[0] * shape[1]
    inside = tl.arange(0, shape[0])[:, None] * shape[1] + tl.arange(0, shape[1])[None, :]
    return partials + (tile * SPLIT_K + part) * size + inside


@triton.jit
def _store_partial(partials, total, SPLIT_K: tl.constexpr):
    tl.store(_partial_pointers(partials, tl.program_id(2), total.shape, SPLIT_K), total)
    tl.debug_barrier()  # All threads have stored before one of them counts the program.


@triton.jit
def _arrives_last(counters, SPLIT_K: tl.constexpr):
    """Return whether the other programs of the tile have stored their sums. The last one resets the counter."""
    counter = counters + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    is_last = tl.atomic_add(counter, 1) == SPLIT_K - 1
    if is_last:
        tl.store(counter, 0)
    return is_last


@triton.jit
def _sum_partials(partials, like, SPLIT_K: tl.constexpr):
    """Sum the partial sums of a tile, one split after the other."""
    total = tl.load(_partial_pointers(partials, 0, like.shape, SPLIT_K))
    for part in tl.static_range(1, SPLIT_K):
        total += tl.load(_partial_pointers(partials, part, like.shape, SPLIT_K))
    return total


@triton.jit(do_not_specialize=["num_rows"])
def _float_gemm_kernel(
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
    split_length,
    SPLIT_K: tl.constexpr,
    SPLIT_K_MODE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    EVEN: tl.constexpr,
    PREFETCH_BYTES: tl.constexpr,
    LATE_TRIGGER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute a tile. With an activation the matrix holds gates, then as many others, and a tile has half of each."""
    if not LATE_TRIGGER:
        pdl_trigger(PDL)
    dtype: tl.constexpr = x.dtype.element_ty
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    if ACTIVATION is None:
        written = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        outputs, has_output = written, written < num_outputs
    else:
        HALF: tl.constexpr = BLOCK_N // 2
        written = tl.program_id(0) * HALF + tl.arange(0, HALF)
        column = tl.arange(0, BLOCK_N)
        gates = tl.program_id(0) * HALF + column % HALF
        outputs, has_output = gates + column // HALF * num_outputs, gates < num_outputs

    inputs = tl.arange(0, BLOCK_K)[None, :]
    weight_pointers = weight + outputs[:, None].to(tl.int64) * num_inputs + inputs
    row_pointers = x + rows[:, None].to(tl.int64) * x_stride + inputs
    of_output, of_row = has_output[:, None], (rows < num_rows)[:, None]
    if SPLIT_K > 1 and SPLIT_K_MODE == "warps":
        splits = tl.arange(0, SPLIT_K)[:, None, None] * split_length
        weight_pointers, row_pointers = weight_pointers[None, :, :] + splits, row_pointers[None, :, :] + splits
        of_output, of_row = of_output[None, :, :], of_row[None, :, :]
    if SPLIT_K_MODE == "serial":
        pdl_wait(PDL)
        total = _accumulate_serially(
            weight_pointers, of_output, row_pointers, of_row, split_length, SPLIT_K, BLOCK_K, EVEN
        )
    else:
        if SPLIT_K_MODE == "programs":
            weight_pointers += tl.program_id(2) * split_length
            row_pointers += tl.program_id(2) * split_length
        w = _first_tile(weight_pointers, of_output, split_length, BLOCK_K, EVEN)
        if PREFETCH_BYTES > 0:
            lines = BLOCK_K + tl.arange(0, PREFETCH_BYTES // 128)[None, :] * 64
            prefetch(weight + tl.where(has_output, outputs, 0)[:, None].to(tl.int64) * num_inputs + lines)
        pdl_wait(PDL)
        if LATE_TRIGGER:
            pdl_trigger(PDL)
        total = _accumulate(w, weight_pointers, of_output, row_pointers, of_row, split_length, BLOCK_K, EVEN)

    if SPLIT_K_MODE == "programs":
        _store_partial(partials, total, SPLIT_K)
        if _arrives_last(counters, SPLIT_K):
            _store_epilogue(
                out, out_stride, bias, residual, residual_stride, factor, _sum_partials(partials, total, SPLIT_K),
                rows, outputs, written, num_rows, num_outputs, has_output, dtype, HAS_BIAS, HAS_RESIDUAL, ACTIVATION,
            )  # fmt: skip
    else:
        _store_epilogue(
            out, out_stride, bias, residual, residual_stride, factor, _sum_splits(total),
            rows, outputs, written, num_rows, num_outputs, has_output, dtype, HAS_BIAS, HAS_RESIDUAL, ACTIVATION,
        )  # fmt: skip


# -- launching it -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class FloatEpilogue:
    """What a GEMM does with its result before storing it."""

    activation: Activation | None = None
    """The matrix holds gates, then as many others: activation(gate) * other is the result."""
    residual: Tensor | None = None
    """[T, outputs] that the result, times factor, is added to."""
    factor: float = 1.0


_PLAIN = FloatEpilogue()


def float_gemm_into(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    epilogue: FloatEpilogue = _PLAIN,
    tiles: FloatTiles | None = None,
) -> None:
    """Multiply x with a weight into out. Any number of rows works; the kernel is fast for few."""
    num_rows, num_inputs = x.shape
    is_gated = epilogue.activation is not None
    num_outputs = len(weight) // 2 if is_gated else len(weight)
    tiles = tiles or chosen_tiles(num_rows, len(weight), num_inputs, is_gated)
    splits = num_k_splits(len(weight), num_inputs)
    split_length = num_inputs // splits
    block = tiles.outputs // 2 if is_gated else tiles.outputs
    residual = out if epilogue.residual is None else epilogue.residual
    grid = (
        triton.cdiv(num_outputs, block),
        triton.cdiv(num_rows, tiles.rows),
        splits if tiles.split_k_mode == "programs" else 1,
    )
    launch(
        _float_gemm_kernel,
        grid,
        out, out.stride(0), x, x.stride(0), weight, weight if bias is None else bias,
        residual, residual.stride(0), epilogue.factor, *_split_k_workspace(grid, tiles, x.device),
        num_rows, num_outputs, num_inputs, split_length,
        SPLIT_K=splits,
        SPLIT_K_MODE=tiles.split_k_mode,
        BLOCK_N=tiles.outputs,
        BLOCK_K=tiles.inputs,
        BLOCK_M=tiles.rows,
        EVEN=split_length % tiles.inputs == 0 and num_outputs % block == 0,
        PREFETCH_BYTES=0 if INTERPRETED else _power_below(min(tiles.prefetch_bytes, 2 * (split_length - tiles.inputs))),
        LATE_TRIGGER=tiles.late_trigger,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=epilogue.residual is not None,
        ACTIVATION=epilogue.activation,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        # With fused multiply-adds an activation would differ in the last bit from a separate one.
        enable_fp_fusion=False,
    )  # fmt: skip


def _split_k_workspace(
    grid: tuple[int, int, int], tiles: FloatTiles, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Allocate partial sums and arrival counters for programs that share a tile."""
    if tiles.split_k_mode != "programs":
        return None, None
    num_tiles = grid[0] * grid[1]
    assert num_tiles <= _MOST_SHARED_TILES, f"{num_tiles} tiles, and {_MOST_SHARED_TILES} counters"
    partials = torch.empty(num_tiles * grid[2] * tiles.outputs * tiles.rows, dtype=torch.float32, device=device)
    return partials, _counters(device)


@cache
def _counters(device: torch.device) -> Tensor:
    """Return arrival counters, one per tile, zero before and after every launch."""
    return torch.zeros(_MOST_SHARED_TILES, dtype=torch.int32, device=device)


def _power_below(num_bytes: int) -> int:
    """Return the largest power of two up to num_bytes that is whole cache lines, or 0."""
    return 0 if num_bytes < _LINE else 1 << (num_bytes.bit_length() - 1)
