"""Products of int8 rows with int8 weights, scaled by group or by row. Knows no other format.

Sums within a group are whole numbers, which no order changes; groups are added up in their order, each by one fused
multiply-add. So tiles may be cut by what is fastest.
"""

import triton
import triton.language as tl

from archerfish.ops.triton.device_weight import DeviceWeight
from archerfish.ops.triton.launch import await_inputs, launch, let_next_start
from archerfish.ops.triton.product_tiles import (
    FEW_ROWS,
    MULTIPROCESSORS,
    Ending,
    Tiles,
    finish,
    largest_divisor,
    prefetch_rows,
    rows_of_tile,
    stages_ahead,
    tile_of,
    with_bias,
)
from archerfish.ops.triton.quantized_rows import QuantizedRows


def int8_product_into(ending: Ending, rows: QuantizedRows, weight: DeviceWeight) -> None:
    num_rows, num_outputs = ending.out.shape
    tiles = int8_tiles(weight, num_outputs, num_rows)
    launch(
        int8_kernel,
        (tiles.count(num_outputs, num_rows),),
        *(ending.out, rows.data, rows.scales, weight.data, weight.scales, ending.bias, ending.residual),
        *(num_rows, num_outputs, weight.num_inputs, rows.scales.shape[1], *ending.strides),
        WHOLE=weight.group == weight.num_inputs,
        STEP=tiles.step,
        AT_ONCE=tiles.at_once,
        **tiles.settings(ending),
    )


def int8_tiles(weight: DeviceWeight, num_outputs: int, num_rows: int) -> Tiles:
    """A program of a gated product makes two tiles, of num_outputs each."""
    is_gated = num_outputs < weight.num_outputs
    is_wide = weight.num_outputs > 64 * MULTIPROCESSORS
    if num_rows <= FEW_ROWS:
        outputs = 32 if is_wide and not is_gated else 16
        return _tiles(weight, outputs, rows_of_tile(num_rows, least=8), 512, warps=outputs // 16)
    is_whole = weight.group == weight.num_inputs  # Without sums in float32 beside whole ones, larger tiles fit.
    for rows in (256, 128) if is_whole else (128,):
        large = _tiles(weight, 64 if is_gated else 128, rows, 128, warps=8)
        if num_rows > 64 and large.count(num_outputs, num_rows) >= MULTIPROCESSORS:
            return large
    outputs = 64 if is_wide and not is_gated else 32
    return _tiles(weight, outputs, rows_of_tile(num_rows, least=32), 256, warps=4 if is_wide or is_gated else 2)


def _tiles(weight: DeviceWeight, outputs: int, rows: int, inputs: int, *, warps: int) -> Tiles:
    """Inputs are how many a stage should have."""
    if weight.group == weight.num_inputs:
        step, at_once = largest_divisor(weight.num_inputs, (512, 256, 128, 64, 32)), 1
        step = min(step, inputs)
    else:
        step = weight.group
        at_once = min(inputs // step, largest_divisor(weight.num_groups, (8, 4, 2, 1)))
    stages = stages_ahead(step * at_once, 2048) if rows <= FEW_ROWS else 4
    return Tiles(outputs=outputs, rows=rows, step=step, at_once=at_once, warps=warps, stages=stages)


@triton.jit
def int8_kernel(
    out, rows, row_scales, weight, weight_scales, bias, residual,
    num_rows, num_outputs, num_inputs, scale_stride, out_stride, residual_stride,
    WHOLE: tl.constexpr, STEP: tl.constexpr, AT_ONCE: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
    LINES: tl.constexpr, ACTIVATION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A tile of outputs, of the first and the second half of the weight if there is an activation.

    WHOLE rows have one scale, and STEP is any part of them; otherwise STEP is the group.
    """
    let_next_start(EARLY)
    first_output, first_row = tile_of(num_outputs, num_rows, OUTPUTS, ROWS)
    outputs = first_output + tl.arange(0, OUTPUTS)
    places = first_row + tl.arange(0, ROWS)
    stored = tl.minimum(outputs, num_outputs - 1)  # Those past the end are computed twice, and not kept.
    gated: tl.constexpr = ACTIVATION is not None
    prefetch_rows(weight, stored, num_inputs, LINES, EARLY)
    if gated:
        prefetch_rows(weight, stored + num_outputs, num_inputs, LINES, EARLY)
    inputs = tl.arange(0, STEP)
    lefts = weight + stored.to(tl.int64)[:, None] * num_inputs + inputs[None, :]
    other_lefts = weight + (stored + num_outputs).to(tl.int64)[:, None] * num_inputs + inputs[None, :]
    rights = rows + places.to(tl.int64)[None, :] * num_inputs + inputs[:, None]
    total = tl.zeros((OUTPUTS, ROWS), tl.int32 if WHOLE else tl.float32)
    other = tl.zeros((OUTPUTS, ROWS), tl.int32 if WHOLE else tl.float32)
    await_inputs(EARLY)
    for first in range(0, num_inputs // STEP, AT_ONCE):
        for ahead in tl.static_range(AT_ONCE):
            step = first + ahead
            right = tl.load(rights + step * STEP, mask=(places < num_rows)[None, :], other=0)
            scales = row_scales + step * scale_stride
            total = _added(total, tl.load(lefts + step * STEP), right, scales, places, scale_stride, WHOLE)
            if gated:
                left = tl.load(other_lefts + step * STEP)
                other = _added(other, left, right, scales, places, scale_stride, WHOLE)
    y = _scaled(total, row_scales, weight_scales, bias, places, stored, num_rows, WHOLE)
    up = y
    if gated:
        up = _scaled(other, row_scales, weight_scales, bias, places, stored + num_outputs, num_rows, WHOLE)
    finish(
        out, y, up, residual, outputs, places, num_outputs, num_rows, out_stride, residual_stride, ACTIVATION
    )  # fmt: skip


@triton.jit
def _added(total, left, right, scales, places, scale_stride, WHOLE: tl.constexpr):
    if WHOLE:
        return tl.dot(left, right, total, out_dtype=tl.int32)
    else:  # noqa: RET505
        factors = tl.load(scales + places, mask=places < scale_stride, other=0.0)
        counts = tl.dot(left, right, out_dtype=tl.int32)
        return tl.fma(counts.to(tl.float32), factors[None, :], total)


@triton.jit
def _scaled(total, row_scales, weight_scales, bias, places, outputs, num_rows, WHOLE: tl.constexpr):
    if WHOLE:
        scales = tl.load(row_scales + places, mask=places < num_rows, other=0.0)
        total = total.to(tl.float32) * scales[None, :]
    return with_bias(total * tl.load(weight_scales + outputs)[:, None], bias, outputs)
