"""GEMM of int8 rows and int4 weights, both scaled by group.

Weights are unpacked to bytes by three instructions for eight of them. Products are summed as integers, in any order;
groups are added up in their order, each by one fused multiply-add. So tiles change no bits.
"""

from dataclasses import replace

import triton
import triton.language as tl

from archerfish.ops.triton.device_weight import TILE, DeviceWeight
from archerfish.ops.triton.elementwise import QuantizedRows
from archerfish.ops.triton.gemm.quantized_tiles import (
    FEW_ROWS,
    MULTIPROCESSORS,
    QuantizedEpilogue,
    QuantizedTiles,
    counted,
    largest_divisor,
    rows_of_tile,
    side_by_side,
    stages_ahead,
    store_epilogue,
    tile_of,
    with_bias,
)
from archerfish.ops.triton.runtime import INTERPRETED, launch, pdl_trigger, pdl_wait, prefetch

_TILE: tl.constexpr = tl.constexpr(TILE)
_INTERPRETED: tl.constexpr = tl.constexpr(INTERPRETED)
_SIXTEENTH: tl.constexpr = tl.constexpr(1 / 16)


def int4_gemm_into(
    epilogue: QuantizedEpilogue, rows: QuantizedRows, weight: DeviceWeight, tiles: QuantizedTiles | None = None
) -> None:
    num_rows, num_outputs = epilogue.out.shape
    tiles = tiles or int4_tiles(weight, num_outputs, num_rows)
    assert weight.zeros is None or rows.sums is not None, "weights with zero points need the sums of groups"
    launch(
        int4_kernel,
        (tiles.count(num_outputs, num_rows),),
        *(
            epilogue.out,
            *epilogue.scales_and_sums,
            rows.data,
            rows.scales,
            rows.sums,
            weight.data,
            weight.scales,
            weight.zeros,
        ),
        *(epilogue.bias, epilogue.residual),
        *(num_rows, num_outputs, weight.num_inputs, rows.scales.shape[1], *epilogue.strides),
        ODD=weight.num_groups % 2 == 1,
        GROUP=weight.group,
        AT_ONCE=tiles.at_once,
        SIDES=tiles.sides,
        **tiles.settings(epilogue),
    )


def int4_tiles(weight: DeviceWeight, num_outputs: int, num_rows: int, *, alone: bool = True) -> QuantizedTiles:
    """Return tiles. A program of a gated GEMM computes two, of num_outputs each. Alone, few outputs get several
    sides."""
    is_gated = num_outputs < weight.num_outputs
    is_wide = weight.num_outputs > 64 * MULTIPROCESSORS
    if num_rows <= FEW_ROWS:
        rows = rows_of_tile(num_rows, least=8)
        inputs = 256 if weight.zeros is None else 128
        if not is_wide and not is_gated:
            narrow = _tiles(weight, 16, rows, 128 if alone else inputs, warps=1)
            return _sides(narrow, weight) if alone else narrow
        if is_gated:
            return replace(_tiles(weight, 64, rows, 128, warps=4), stages=6, prefetches=False)
        return replace(_tiles(weight, 32, rows, inputs, warps=2), prefetches=False)
    if num_rows > 64:
        # Registers hold unpacked weights, scales of both sides and two kinds of sums, and no more than that.
        warps = 8 if weight.group == 128 or weight.zeros is not None else 4
        large = _tiles(weight, 64 if is_gated else 128, 64, 32, warps=warps)
        if large.count(num_outputs, num_rows) >= MULTIPROCESSORS:
            return large
    outputs = 64 if is_wide and not is_gated else 32
    rows = rows_of_tile(num_rows, least=32)
    return _tiles(weight, outputs, rows, 64, warps=4 if is_wide or is_gated else 2)


def _sides(tiles: QuantizedTiles, weight: DeviceWeight) -> QuantizedTiles:
    """Return the tiles with several warps, as far as there are pairs of groups for them."""
    sides = largest_divisor(weight.data.shape[1] // tiles.at_once, (4, 2, 1))
    return replace(tiles, sides=sides, warps=sides, stages=6)


def _tiles(weight: DeviceWeight, outputs: int, rows: int, inputs: int, *, warps: int) -> QuantizedTiles:
    """Return tiles; inputs are the number that a stage should have of either group of a pair."""
    most = max(1, inputs // weight.group)
    at_once = min(most, largest_divisor(weight.data.shape[1], (8, 4, 2, 1)))
    stages = stages_ahead(weight.group * at_once, 1536) if rows <= FEW_ROWS else 4
    return QuantizedTiles(outputs=outputs, rows=rows, step=weight.group, at_once=at_once, warps=warps, stages=stages)


@triton.jit
def int4_kernel(
    out, out_scales, out_sums, rows, row_scales, sums, weight, weight_scales, zeros, bias, residual,
    num_rows, num_outputs, num_inputs, scale_stride, out_stride, residual_stride, scale_out_stride,
    ODD: tl.constexpr, GROUP: tl.constexpr, AT_ONCE: tl.constexpr, SIDES: tl.constexpr,
    OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
    LINES: tl.constexpr, DTYPE: tl.constexpr, ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute a tile of outputs, in both halves of the weight if there is an activation.

    With an ODD number of groups the last pair has one.
    """
    pdl_trigger(PDL)
    first_output, first_row = tile_of(num_outputs, num_rows, OUTPUTS, ROWS)
    outputs = first_output + tl.arange(0, OUTPUTS)
    row_indices = first_row + tl.arange(0, ROWS)
    stored = tl.minimum(outputs, num_outputs - 1)  # Outputs past the end are computed twice, and not stored.
    others = stored + num_outputs
    gated: tl.constexpr = ACTIVATION is not None
    num_pairs = (num_inputs // GROUP + 1) // 2
    _prefetch_tiles(weight, weight_scales, stored, num_pairs, GROUP, LINES, PDL)
    if gated:
        _prefetch_tiles(weight, weight_scales, others, num_pairs, GROUP, LINES, PDL)
    y, up = int4_tile(
        rows, row_scales, sums, weight, weight_scales, zeros, bias, stored, others, row_indices, num_rows, num_inputs,
        scale_stride, ODD, GROUP, AT_ONCE, SIDES, OUTPUTS, ROWS, ACTIVATION, PDL,
    )  # fmt: skip
    store_epilogue(
        out, out_scales, out_sums, y, up, residual, first_output, row_indices, num_outputs, num_rows,
        out_stride, residual_stride, scale_out_stride, DTYPE, ACTIVATION,
    )  # fmt: skip


@triton.jit
def int4_tile(
    rows, row_scales, sums, weight, weight_scales, zeros, bias, stored, others, row_indices, num_rows, num_inputs,
    scale_stride, ODD: tl.constexpr, GROUP: tl.constexpr, AT_ONCE: tl.constexpr, SIDES: tl.constexpr,
    OUTPUTS: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute outputs at the weight rows `stored`, and with an activation at `others`, for some rows of activations."""
    gated: tl.constexpr = ACTIVATION is not None
    shifted: tl.constexpr = zeros is not None
    num_groups = num_inputs // GROUP
    num_pairs = (num_groups + 1) // 2
    tiles, other_tiles = _first_of(stored, num_pairs), _first_of(others, num_pairs)
    inputs = tl.arange(0, GROUP)
    lefts = side_by_side(weight + tiles[:, None] * GROUP + inputs[None, :], _TILE * GROUP, SIDES)
    other_lefts = side_by_side(weight + other_tiles[:, None] * GROUP + inputs[None, :], _TILE * GROUP, SIDES)
    rights = rows + row_indices.to(tl.int64)[None, :] * num_inputs + inputs[:, None]
    rights = side_by_side(rights, 2 * GROUP, SIDES)
    has_row = (row_indices < num_rows)[None, :] if SIDES == 1 else (row_indices < num_rows)[None, None, :]
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    other = tl.zeros((OUTPUTS, ROWS), tl.float32)
    # Scales come from memory like weights: they are fetched while the weights before them are multiplied.
    scales, shifts = _words(weight_scales, zeros, tiles, 0, AT_ONCE * SIDES)
    if gated:
        other_scales, other_shifts = _words(weight_scales, zeros, other_tiles, 0, AT_ONCE * SIDES)
    pdl_wait(PDL)
    for first in range(0, num_pairs, AT_ONCE * SIDES):
        following = tl.minimum(first + AT_ONCE * SIDES, num_pairs - AT_ONCE * SIDES)
        next_scales, next_shifts = _words(weight_scales, zeros, tiles, following, AT_ONCE * SIDES)
        if gated:
            next_other_scales, next_other_shifts = _words(weight_scales, zeros, other_tiles, following, AT_ONCE * SIDES)
        for ahead in tl.static_range(AT_ONCE):
            pair = first + ahead * SIDES
            right = tl.load(rights + 2 * pair * GROUP, mask=has_row, other=0)
            # The last side of an odd number of groups has no second group.
            is_inside = _has_second(has_row, pair, num_groups, SIDES) if ODD else has_row
            second = tl.load(rights + (2 * pair + 1) * GROUP, mask=is_inside, other=0)
            group = 2 * pair * scale_stride
            counts = _counts(tl.load(lefts + pair * (_TILE * GROUP)), right, second)
            if gated:
                other_counts = _counts(tl.load(other_lefts + pair * (_TILE * GROUP)), right, second)
            for side in tl.static_range(SIDES):
                total = _with_pair(
                    total, counts[0][side], counts[1][side], row_scales + group, sums + group,
                    row_indices, scale_stride, 2 * (pair + side) + 1 < num_groups if ODD else True,
                    scales[ahead * SIDES + side], shifts[ahead * SIDES + side], shifted,
                )  # fmt: skip
                if gated:
                    other = _with_pair(
                        other, other_counts[0][side], other_counts[1][side], row_scales + group, sums + group,
                        row_indices, scale_stride, 2 * (pair + side) + 1 < num_groups if ODD else True,
                        other_scales[ahead * SIDES + side], other_shifts[ahead * SIDES + side], shifted,
                    )  # fmt: skip
                group += 2 * scale_stride
        scales, shifts = next_scales, next_shifts
        if gated:
            other_scales, other_shifts = next_other_scales, next_other_shifts
    y = with_bias(total * _SIXTEENTH, bias, stored)
    up = y
    if gated:
        up = with_bias(other * _SIXTEENTH, bias, others)
    return y, up


@triton.jit
def _first_of(outputs, num_pairs):
    """Return the offset of an output's numbers that have one entry per pair of groups."""
    return (outputs // _TILE).to(tl.int64) * num_pairs * _TILE + outputs % _TILE


@triton.jit
def _words(weight_scales, zeros, tiles, first, AT_ONCE: tl.constexpr):
    """Load scales and zero points of some pairs of groups, one word per output; without zero points scales twice."""
    scales = ()
    shifts = ()
    for ahead in tl.static_range(AT_ONCE):
        row_indices = tiles + (first + ahead) * _TILE
        scales = scales + (tl.load(weight_scales + row_indices),)  # type: ignore[assignment]  # noqa: RUF005
        if zeros is not None:
            shifts = shifts + (tl.load(zeros + row_indices),)  # type: ignore[assignment]  # noqa: RUF005
    return scales, shifts if zeros is not None else scales


@triton.jit
def _prefetch_tiles(
    weight, weight_scales, outputs, num_pairs, GROUP: tl.constexpr, LINES: tl.constexpr, PDL: tl.constexpr
):
    """Prefetch the start of each tile, while an earlier kernel still computes the activations.

    A tile is contiguous in memory, and each output prefetches its share.
    """
    if PDL and LINES > 0:
        tiles = (outputs // _TILE).to(tl.int64) * num_pairs * _TILE
        lines = ((outputs % _TILE)[:, None] * LINES + tl.arange(0, LINES)[None, :]) * 128
        prefetch(weight + tiles[:, None] * GROUP + tl.minimum(lines, num_pairs * (_TILE * GROUP) - 1))
        prefetch(weight_scales + tiles + tl.minimum(outputs % _TILE * 32, num_pairs * _TILE - 1))


@triton.jit
def _counts(packed, right, second):
    """Return sums of products, times 16, of the first and the second group of a pair, for each side."""
    lower, upper = _unpack_int4(packed)
    return counted(lower, right), counted(upper, second)


@triton.jit
def _has_second(has_row, pair, num_groups, SIDES: tl.constexpr):
    if SIDES == 1:
        return has_row & (2 * pair + 1 < num_groups)
    else:  # noqa: RET505
        return has_row & (2 * (pair + tl.arange(0, SIDES)) + 1 < num_groups)[:, None, None]


@triton.jit
def _with_pair(
    total, counts, second_counts, row_scales, sums, row_indices, scale_stride, has_second, scales, shifts,
    SHIFTED: tl.constexpr,
):  # fmt: skip
    """Add both groups of a pair, the first before the second."""
    inside = row_indices < scale_stride
    total = _with_group(total, counts, row_scales + row_indices, sums + row_indices, inside, scales, shifts, SHIFTED)
    row_indices += scale_stride
    inside = inside & has_second
    scales, shifts = scales >> 16, shifts >> 16
    return _with_group(
        total, second_counts, row_scales + row_indices, sums + row_indices, inside, scales, shifts, SHIFTED
    )


@triton.jit
def _with_group(total, counts, row_scales, sums, inside, scales, shifts, SHIFTED: tl.constexpr):
    """Add a group. Its scales and shifts are in the lower halves.

    Counts are 16 times too large, and so is the total, exactly: a power of two changes no digits.
    """
    factors = tl.load(row_scales, mask=inside, other=0.0)
    if SHIFTED:
        totals = tl.load(sums, mask=inside, other=0)
        counts += (shifts.to(tl.int16).to(tl.int32) * 16)[:, None] * totals[None, :]
    wide = scales.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return tl.fma(counts.to(tl.float32), wide[:, None] * factors[None, :], total)


@triton.jit
def _unpack_int4(packed):
    """Return the lower and the upper four bits of each byte, as signed numbers times 16."""
    if _INTERPRETED:
        return packed << 4, packed & -16
    else:  # noqa: RET505  (Four bytes at once: the compiler would take them apart to shift each by itself.)
        return tl.inline_asm_elementwise(
            "{ .reg .b32 moved; shl.b32 moved, $2, 4; and.b32 $0, moved, 0xF0F0F0F0; and.b32 $1, $2, 0xF0F0F0F0; }",
            "=r,=r,r",
            [packed],
            dtype=(tl.int8, tl.int8),
            is_pure=True,
            pack=4,
        )
