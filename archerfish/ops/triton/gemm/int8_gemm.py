"""GEMM of int8 rows and int8 weights, scaled by group or by row.

Products within a group are summed as integers, in any order; groups are added up in their order, each by one fused
multiply-add. So tiles change no bits.
"""

from dataclasses import replace

import triton
import triton.language as tl

from archerfish.ops.triton.device_weight import DeviceWeight
from archerfish.ops.triton.elementwise import QuantizedRows
from archerfish.ops.triton.gemm.quantized_tiles import (
    FEW_ROWS,
    MULTIPROCESSORS,
    QuantizedEpilogue,
    QuantizedTiles,
    counted,
    largest_divisor,
    prefetch_rows,
    rows_of_tile,
    side_by_side,
    stages_ahead,
    store_epilogue,
    tile_of,
    with_bias,
)
from archerfish.ops.triton.runtime import launch, pdl_trigger, pdl_wait


def int8_gemm_into(
    epilogue: QuantizedEpilogue, rows: QuantizedRows, weight: DeviceWeight, tiles: QuantizedTiles | None = None
) -> None:
    num_rows, num_outputs = epilogue.out.shape
    tiles = tiles or int8_tiles(weight, num_outputs, num_rows)
    is_whole = weight.group == weight.num_inputs
    launch(
        int8_kernel,
        (tiles.count(num_outputs, num_rows),),
        *(epilogue.out, *epilogue.scales_and_sums, rows.data, rows.scales),
        *(weight.data, weight.scales, epilogue.bias, epilogue.residual),
        *(num_rows, num_outputs, weight.num_inputs, rows.scales.shape[1], *epilogue.strides),
        WHOLE=is_whole,
        STEP=tiles.step,
        AT_ONCE=tiles.at_once,
        SIDES=tiles.sides,
        **tiles.settings(epilogue),
    )


def int8_tiles(weight: DeviceWeight, num_outputs: int, num_rows: int, *, alone: bool = True) -> QuantizedTiles:
    """Return tiles. A program of a gated GEMM computes two, of num_outputs each. Alone, few outputs get several
    sides."""
    is_gated = num_outputs < weight.num_outputs
    is_wide = weight.num_outputs > 64 * MULTIPROCESSORS
    if num_rows <= FEW_ROWS:
        rows = rows_of_tile(num_rows, least=8)
        if not is_wide and not is_gated:
            narrow = _tiles(weight, 16, rows, 128 if alone else 512, warps=1)
            return _sides(narrow, weight) if alone else narrow
        if is_gated and weight.group < weight.num_inputs:
            return replace(_tiles(weight, 64, rows, 128, warps=4), stages=6, prefetches=False)
        outputs = 16 if is_gated else 32
        return replace(_tiles(weight, outputs, rows, 512, warps=outputs // 16), stages=3, prefetches=False)
    is_whole = weight.group == weight.num_inputs  # Without float32 sums next to integer ones, larger tiles fit.
    for rows in (256, 128) if is_whole else (128,):
        large = _tiles(weight, 64 if is_gated else 128, rows, 128, warps=8)
        if num_rows > 64 and large.count(num_outputs, num_rows) >= MULTIPROCESSORS:
            return large
    outputs = 64 if is_wide and not is_gated else 32
    return _tiles(weight, outputs, rows_of_tile(num_rows, least=32), 256, warps=4 if is_wide or is_gated else 2)


def _sides(tiles: QuantizedTiles, weight: DeviceWeight) -> QuantizedTiles:
    """Return the tiles with several warps, as far as there are steps for them."""
    sides = largest_divisor(weight.num_inputs // (tiles.step * tiles.at_once), (4, 2, 1))
    return replace(tiles, sides=sides, warps=sides, stages=8)


def _tiles(weight: DeviceWeight, outputs: int, rows: int, inputs: int, *, warps: int) -> QuantizedTiles:
    """Return tiles; inputs are the number that a stage should have."""
    if weight.group == weight.num_inputs:
        step, at_once = largest_divisor(weight.num_inputs, (512, 256, 128, 64, 32)), 1
        step = min(step, inputs)
    else:
        step = weight.group
        at_once = min(inputs // step, largest_divisor(weight.num_groups, (8, 4, 2, 1)))
    stages = stages_ahead(step * at_once, 2048) if rows <= FEW_ROWS else 4
    return QuantizedTiles(outputs=outputs, rows=rows, step=step, at_once=at_once, warps=warps, stages=stages)


@triton.jit
def int8_kernel(
    out, out_scales, out_sums, rows, row_scales, weight, weight_scales, bias, residual,
    num_rows, num_outputs, num_inputs, scale_stride, out_stride, residual_stride, scale_out_stride,
    WHOLE: tl.constexpr, STEP: tl.constexpr, AT_ONCE: tl.constexpr, SIDES: tl.constexpr,
    OUTPUTS: tl.constexpr, ROWS: tl.constexpr, LINES: tl.constexpr,
    DTYPE: tl.constexpr, ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute a tile of outputs, in both halves of the weight if there is an activation.

    WHOLE rows have one scale, and STEP is any part of them; otherwise STEP is the group.
    """
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
    y, up = int8_tile(
        rows, row_scales, weight, weight_scales, bias, stored, others, row_indices, num_rows, num_inputs,
        scale_stride, WHOLE, STEP, AT_ONCE, SIDES, OUTPUTS, ROWS, ACTIVATION, PDL,
    )  # fmt: skip
    store_epilogue(
        out, out_scales, out_sums, y, up, residual, first_output, row_indices, num_outputs, num_rows,
        out_stride, residual_stride, scale_out_stride, DTYPE, ACTIVATION,
    )  # fmt: skip


@triton.jit
def int8_tile(
    rows, row_scales, weight, weight_scales, bias, stored, others, row_indices, num_rows, num_inputs,
    scale_stride, WHOLE: tl.constexpr, STEP: tl.constexpr, AT_ONCE: tl.constexpr, SIDES: tl.constexpr,
    OUTPUTS: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute outputs at the weight rows `stored`, and with an activation at `others`, for some rows of activations."""
    gated: tl.constexpr = ACTIVATION is not None
    inputs = tl.arange(0, STEP)
    lefts = weight + stored.to(tl.int64)[:, None] * num_inputs + inputs[None, :]
    other_lefts = weight + others.to(tl.int64)[:, None] * num_inputs + inputs[None, :]
    lefts, other_lefts = side_by_side(lefts, STEP, SIDES), side_by_side(other_lefts, STEP, SIDES)
    rights = rows + row_indices.to(tl.int64)[None, :] * num_inputs + inputs[:, None]
    rights = side_by_side(rights, STEP, SIDES)
    has_row = (row_indices < num_rows)[None, :] if SIDES == 1 else (row_indices < num_rows)[None, None, :]
    total = _nothing(OUTPUTS, ROWS, SIDES, WHOLE)
    other = _nothing(OUTPUTS, ROWS, SIDES, WHOLE)
    pdl_wait(PDL)
    for first in range(0, num_inputs // STEP, AT_ONCE * SIDES):
        for ahead in tl.static_range(AT_ONCE):
            step = first + ahead * SIDES
            right = tl.load(rights + step * STEP, mask=has_row, other=0)
            left = tl.load(lefts + step * STEP)
            total = _added(total, left, right, row_scales, step, row_indices, scale_stride, WHOLE)
            if gated:
                left = tl.load(other_lefts + step * STEP)
                other = _added(other, left, right, row_scales, step, row_indices, scale_stride, WHOLE)
    if WHOLE:
        factors = tl.load(row_scales + row_indices, mask=row_indices < num_rows, other=0.0)[None, :]
        total, other = _of_all_sides(total).to(tl.float32) * factors, _of_all_sides(other).to(tl.float32) * factors
    y = with_bias(total * tl.load(weight_scales + stored)[:, None], bias, stored)
    up = y
    if gated:
        up = with_bias(other * tl.load(weight_scales + others)[:, None], bias, others)
    return y, up


@triton.jit
def _nothing(OUTPUTS: tl.constexpr, ROWS: tl.constexpr, SIDES: tl.constexpr, WHOLE: tl.constexpr):
    """Return initial sums: of whole rows each side has its own, because integers may be added in any order."""
    if not WHOLE:
        return tl.zeros((OUTPUTS, ROWS), tl.float32)
    elif SIDES == 1:  # noqa: RET505
        return tl.zeros((OUTPUTS, ROWS), tl.int32)
    else:
        return tl.zeros((SIDES, OUTPUTS, ROWS), tl.int32)


@triton.jit
def _of_all_sides(total):
    return tl.sum(total, 0) if len(total.shape) == 3 else total


@triton.jit
def _added(total, left, right, row_scales, step, row_indices, scale_stride, WHOLE: tl.constexpr):
    if WHOLE:
        return tl.dot(left, right, total, out_dtype=tl.int32)
    else:  # noqa: RET505
        counts = counted(left, right)
        for side in tl.static_range(len(counts)):
            scales = row_scales + (step + side) * scale_stride + row_indices
            factors = tl.load(scales, mask=row_indices < scale_stride, other=0.0)
            total = tl.fma(counts[side].to(tl.float32), factors[None, :], total)
        return total
