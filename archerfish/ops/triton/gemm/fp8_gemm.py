"""GEMM of float8_e4m3fn rows and weights.

Sums are computed by warpgroup instructions, 32 inputs after the other: those of single warps would round differently.
So no tile has fewer than 64 outputs, 16 rows and four warps, and K is never split.
"""

from dataclasses import replace
from functools import partial

import torch
import triton
import triton.language as tl

from archerfish.ops.triton.device_weight import DeviceWeight
from archerfish.ops.triton.elementwise import QuantizedRows, quantize_rows
from archerfish.ops.triton.gemm.bit_comparison import BitComparison
from archerfish.ops.triton.gemm.quantized_tiles import (
    FEW_ROWS,
    MULTIPROCESSORS,
    QuantizedEpilogue,
    QuantizedTiles,
    largest_divisor,
    prefetch_rows,
    rows_of_tile,
    store_epilogue,
    tile_of,
    with_bias,
)
from archerfish.ops.triton.runtime import dot, is_compile_only, launch, pdl_trigger, pdl_wait

LIBRARY_ROWS = 1024
"""Rows of every call of the library: its bits are verified for this number only."""
_cublas = BitComparison()
"""Whether cuBLAS has the kernel's bits, by shape and device of the weight."""


def fp8_gemm_into(
    epilogue: QuantizedEpilogue, rows: QuantizedRows, weight: DeviceWeight, tiles: QuantizedTiles | None = None
) -> None:
    """Compute y = (sum * scale of the row) * scale of the output."""
    num_rows = len(epilogue.out)
    if not _takes_library(epilogue, weight):
        _by_tiles(epilogue, rows, weight, tiles)
        return
    by_library = num_rows - num_rows % LIBRARY_ROWS
    for first in range(0, by_library, LIBRARY_ROWS):
        _by_library(epilogue, rows, weight, slice(first, first + LIBRARY_ROWS))
    if by_library < num_rows:
        rest = slice(by_library, num_rows)
        _by_tiles(_part(epilogue, rest), rows.part(rest), weight, tiles)


def _part(epilogue: QuantizedEpilogue, part: slice) -> QuantizedEpilogue:
    residual = None if epilogue.residual is None else epilogue.residual[part]
    return replace(epilogue, out=epilogue.out[part], residual=residual)


def _by_tiles(
    epilogue: QuantizedEpilogue, rows: QuantizedRows, weight: DeviceWeight, tiles: QuantizedTiles | None = None
) -> None:
    num_rows, num_outputs = epilogue.out.shape
    tiles = tiles or fp8_tiles(weight, num_outputs, num_rows)
    launch(
        fp8_kernel,
        (tiles.count(num_outputs, num_rows),),
        *(epilogue.out, *epilogue.scales_and_sums, rows.data, rows.scales),
        *(weight.data, weight.scales, epilogue.bias, epilogue.residual),
        *(num_rows, num_outputs, weight.num_inputs, *epilogue.strides),
        STEP=tiles.step,
        **tiles.settings(epilogue),
    )


def fp8_tiles(weight: DeviceWeight, num_outputs: int, num_rows: int) -> QuantizedTiles:
    """Return tiles. A program of a gated GEMM computes two, of num_outputs each."""
    is_gated = num_outputs < weight.num_outputs
    if num_rows > 64:
        for rows in (256, 128):
            large = _tiles(weight, 64 if is_gated else 128, rows, 128, warps=8)
            if large.count(num_outputs, num_rows) >= MULTIPROCESSORS:
                return large
    step = 128 if is_gated or num_rows > FEW_ROWS else 256
    small = _tiles(weight, 64, rows_of_tile(num_rows, least=16), step, warps=4)
    if is_gated and num_rows <= FEW_ROWS:
        return replace(small, stages=8, prefetches=False)
    # With fewer programs than multiprocessors, each must have more loads in flight.
    return small if small.count(num_outputs, num_rows) >= MULTIPROCESSORS else replace(small, stages=6)


def _tiles(weight: DeviceWeight, outputs: int, rows: int, step: int, *, warps: int) -> QuantizedTiles:
    step = min(step, largest_divisor(weight.num_inputs, (256, 128, 64, 32)))
    return QuantizedTiles(outputs=outputs, rows=rows, step=step, at_once=1, warps=warps, stages=4)


@triton.jit
def fp8_kernel(
    out, out_scales, out_sums, rows, row_scales, weight, weight_scales, bias, residual,
    num_rows, num_outputs, num_inputs, out_stride, residual_stride, scale_out_stride,
    STEP: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
    LINES: tl.constexpr,
    DTYPE: tl.constexpr, ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute a tile of outputs, in both halves of the weight if there is an activation."""
    pdl_trigger(PDL)
    first_output, first_row = tile_of(num_outputs, num_rows, OUTPUTS, ROWS)
    outputs = first_output + tl.arange(0, OUTPUTS)
    row_indices = first_row + tl.arange(0, ROWS)
    stored = tl.minimum(outputs, num_outputs - 1)  # Outputs past the end are computed twice, and not stored.
    others = stored + num_outputs
    gated: tl.constexpr = ACTIVATION is not None
    prefetch_rows(weight, stored, num_inputs, LINES, PDL)
    if gated:
        prefetch_rows(weight, others, num_inputs, LINES, PDL)
    y, up = fp8_tile(
        rows, row_scales, weight, weight_scales, bias, stored, others, row_indices, num_rows, num_inputs,
        STEP, OUTPUTS, ROWS, ACTIVATION, PDL,
    )  # fmt: skip
    store_epilogue(
        out, out_scales, out_sums, y, up, residual, first_output, row_indices, num_outputs, num_rows,
        out_stride, residual_stride, scale_out_stride, DTYPE, ACTIVATION,
    )  # fmt: skip


@triton.jit
def fp8_tile(
    rows, row_scales, weight, weight_scales, bias, stored, others, row_indices, num_rows, num_inputs,
    STEP: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
    ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute outputs at the weight rows `stored`, and with an activation at `others`, for some rows of activations."""
    gated: tl.constexpr = ACTIVATION is not None
    inputs = tl.arange(0, STEP)
    lefts = weight + stored.to(tl.int64)[:, None] * num_inputs + inputs[None, :]
    other_lefts = weight + others.to(tl.int64)[:, None] * num_inputs + inputs[None, :]
    rights = rows + row_indices.to(tl.int64)[None, :] * num_inputs + inputs[:, None]
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    other = tl.zeros((OUTPUTS, ROWS), tl.float32)
    pdl_wait(PDL)
    for first in range(0, num_inputs, STEP):
        right = tl.load(rights + first, mask=(row_indices < num_rows)[None, :], other=0.0)
        total = dot(tl.load(lefts + first), right, total)
        if gated:
            other = dot(tl.load(other_lefts + first), right, other)
    factors = tl.load(row_scales + row_indices, mask=row_indices < num_rows, other=0.0)[None, :]
    y = with_bias(total * factors * tl.load(weight_scales + stored)[:, None], bias, stored)
    up = y
    if gated:
        up = with_bias(other * factors * tl.load(weight_scales + others)[:, None], bias, others)
    return y, up


# -- cuBLAS -----------------------------------------------------------------------------------------------------------


def _takes_library(epilogue: QuantizedEpilogue, weight: DeviceWeight) -> bool:
    """Return whether cuBLAS computes the GEMM: it is faster for many rows, if its bits are those of the kernel."""
    out = epilogue.out
    is_plain = epilogue.bias is None and epilogue.activation is None and out.is_contiguous()
    fits = (
        out.is_cuda
        and len(out) >= LIBRARY_ROWS
        and out.dtype == epilogue.dtype == torch.bfloat16
        and weight.num_outputs % 16 == 0
    )
    return is_plain and fits and _cublas.agrees((weight.shape, weight.data.device), partial(_has_cublas_bits, weight))


def _has_cublas_bits(weight: DeviceWeight) -> bool | None:
    """Compare the bits for random rows; None while a graph is captured, during which nothing can be read."""
    if torch.cuda.is_current_stream_capturing():
        return None
    device = weight.data.device
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(LIBRARY_ROWS, weight.num_inputs, generator=generator, device=device)
    rows = quantize_rows(x)
    ours = torch.empty(LIBRARY_ROWS, weight.num_outputs, dtype=torch.bfloat16, device=device)
    theirs = torch.empty_like(ours)
    _by_tiles(QuantizedEpilogue(out=ours, dtype=ours.dtype), rows, weight)
    _by_library(QuantizedEpilogue(out=theirs, dtype=theirs.dtype), rows, weight, slice(None))
    if is_compile_only() or not ours.any():  # A weight of zeros proves nothing.
        return None
    return torch.equal(ours.view(torch.int16), theirs.view(torch.int16))


def _by_library(epilogue: QuantizedEpilogue, rows: QuantizedRows, weight: DeviceWeight, part: slice) -> None:
    out = epilogue.out[part]
    result = out if epilogue.residual is None else torch.empty_like(out)
    torch._scaled_mm(
        rows.data[part],
        weight.data.t(),
        scale_a=rows.scales[0, part, None],
        scale_b=weight.scales[None, :],
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
        out=result,
    )
    if epilogue.residual is not None:
        torch.add(epilogue.residual[part], result, out=out)
