"""GEMMs of quantized rows with quantized experts: a tile is the pairs of one expert.

Tiles are computed by the functions of the dense kernels: a pair's row has the bits that a GEMM of it alone with its
expert's matrix would have.
"""

from dataclasses import replace
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.triton.device_weight import DeviceExperts
from archerfish.ops.triton.elementwise import QuantizedRows
from archerfish.ops.triton.gemm import QuantizedTiles, fp8_tile, int4_tile, int8_tile, tiles_of
from archerfish.ops.triton.moe.expert_tiles import TiledPairs, pairs_of_program, store_pairs
from archerfish.ops.triton.runtime import launch, pdl_trigger, pdl_wait

_FEWEST, _FEW, _SOME = 8, 16, 64
_LONGEST_STEP = 256
"""Longest step. Rows are not contiguous, and their addresses take registers that a longer step would need."""
_MANY = 1 << 20
"""Pairs for which every format has its largest tiles."""


class ExpertTiles(NamedTuple):
    """Tiles of both GEMMs, which group pairs alike."""

    gate_up: QuantizedTiles
    down: QuantizedTiles

    @property
    def num_rows(self) -> int:
        """Most pairs of a tile."""
        return self.down.rows


def tiles_for(gate_up: DeviceExperts, down: DeviceExperts, num_tokens: int, num_chosen: int) -> ExpertTiles:
    """Return tiles for the average pairs of an expert: the actual numbers are known on the device alone."""
    average = num_tokens * num_chosen / down.num_experts
    if num_tokens <= _FEWEST:  # No expert gets more pairs than tokens: a token chooses different ones.
        num_rows = _FEWEST
    elif average <= 8:
        num_rows = _FEW
    else:
        num_rows = _SOME if average <= 192 else _MANY
    tiles = ExpertTiles(_cut(gate_up, gate_up.num_outputs // 2, num_rows), _cut(down, down.num_outputs, num_rows))
    assert tiles.gate_up.rows == tiles.down.rows, "pairs are grouped once for both GEMMs"
    return tiles


def _cut(matrices: DeviceExperts, num_outputs: int, num_rows: int) -> QuantizedTiles:
    tiles = tiles_of(matrices.expert(0), num_outputs, num_rows, alone=False)
    assert tiles.sides == 1, "experts' kernels multiply one step at a time"
    shorter = -(-tiles.step // _LONGEST_STEP)
    return replace(tiles, step=tiles.step // shorter, stages=tiles.stages * shorter)


def quantized_multiply_into(
    out: Tensor,
    rows: QuantizedRows,
    matrices: DeviceExperts,
    tiled: TiledPairs,
    tiles: QuantizedTiles,
    activation: Activation | None,
) -> None:
    """Store a row of out for each pair. There are as many rows, or one for all pairs of a token."""
    weight = matrices.stacked
    num_outputs = matrices.num_outputs if activation is None else matrices.num_outputs // 2
    grid = (tiled.num_tiles * triton.cdiv(num_outputs, tiles.outputs),)
    settings = {
        "PAIRS_PER_ROW": tiled.num_pairs // len(rows.data), "NUM_OUTPUTS": num_outputs, "COMPARED": tiled.num_compared,
        "OUTPUTS": tiles.outputs, "ROWS": tiles.rows, "ACTIVATION": activation,
        "num_warps": tiles.warps, "num_stages": tiles.stages, "enable_fp_fusion": False,
    }  # fmt: skip
    sizes = (len(rows.data), weight.num_inputs, rows.scales.shape[1])
    match weight.format:
        case "fp8":
            launch(
                fp8_experts_kernel, grid, out, rows.data, rows.scales, weight.data, weight.scales,
                *tiled.arguments, *sizes[:2], STEP=tiles.step, **settings,
            )  # fmt: skip
        case "int8" | "w8a8":
            launch(
                int8_experts_kernel, grid, out, rows.data, rows.scales, weight.data, weight.scales,
                *tiled.arguments, *sizes,
                WHOLE=weight.group == weight.num_inputs, STEP=tiles.step, AT_ONCE=tiles.at_once, **settings,
            )  # fmt: skip
        case "int4":
            launch(
                int4_experts_kernel, grid, out, rows.data, rows.scales, rows.sums,
                weight.data, weight.scales, weight.zeros, *tiled.arguments, *sizes,
                ODD=weight.num_groups % 2 == 1, GROUP=weight.group, AT_ONCE=tiles.at_once, **settings,
            )  # fmt: skip


@triton.jit
def _stored_rows(expert, outputs, NUM_OUTPUTS: tl.constexpr, ACTIVATION: tl.constexpr):
    """Return the rows of some outputs of an expert among those of all experts; with an activation, of gate and of up.

    Past the last output its weights are read again: the result is not stored.
    """
    per_expert: tl.constexpr = NUM_OUTPUTS if ACTIVATION is None else 2 * NUM_OUTPUTS
    stored = expert * per_expert + tl.minimum(outputs, NUM_OUTPUTS - 1)
    return stored, stored + NUM_OUTPUTS


@triton.jit(do_not_specialize=["num_pairs", "most_tiles", "num_rows"])
def fp8_experts_kernel(
    out, rows, row_scales, weight, weight_scales, chosen, order, tiles, num_pairs, most_tiles, num_rows, num_inputs,
    PAIRS_PER_ROW: tl.constexpr, NUM_OUTPUTS: tl.constexpr, COMPARED: tl.constexpr, STEP: tl.constexpr,
    OUTPUTS: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute some outputs of a tile of pairs. With an activation a matrix holds gate, then up."""
    pdl_trigger(PDL)
    pdl_wait(PDL)
    first_output, expert, number, pairs = pairs_of_program(
        chosen, order, tiles, num_pairs, most_tiles, NUM_OUTPUTS, COMPARED, ROWS, OUTPUTS
    )
    if number == 0:
        return
    outputs = first_output + tl.arange(0, OUTPUTS)
    stored, others = _stored_rows(expert, outputs, NUM_OUTPUTS, ACTIVATION)
    y, up = fp8_tile(
        rows, row_scales, weight, weight_scales, None, stored, others, pairs // PAIRS_PER_ROW,
        num_rows, num_inputs, STEP, OUTPUTS, ROWS, ACTIVATION, False,
    )  # fmt: skip
    store_pairs(out, y, up, first_output, pairs, number, num_pairs, NUM_OUTPUTS, ROWS, ACTIVATION)


@triton.jit(do_not_specialize=["num_pairs", "most_tiles", "num_rows", "scale_stride"])
def int8_experts_kernel(
    out, rows, row_scales, weight, weight_scales, chosen, order, tiles, num_pairs, most_tiles,
    num_rows, num_inputs, scale_stride,
    PAIRS_PER_ROW: tl.constexpr, NUM_OUTPUTS: tl.constexpr, COMPARED: tl.constexpr,
    WHOLE: tl.constexpr, STEP: tl.constexpr, AT_ONCE: tl.constexpr,
    OUTPUTS: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute some outputs of a tile of pairs, in int8."""
    pdl_trigger(PDL)
    pdl_wait(PDL)
    first_output, expert, number, pairs = pairs_of_program(
        chosen, order, tiles, num_pairs, most_tiles, NUM_OUTPUTS, COMPARED, ROWS, OUTPUTS
    )
    if number == 0:
        return
    outputs = first_output + tl.arange(0, OUTPUTS)
    stored, others = _stored_rows(expert, outputs, NUM_OUTPUTS, ACTIVATION)
    y, up = int8_tile(
        rows, row_scales, weight, weight_scales, None, stored, others, pairs // PAIRS_PER_ROW,
        num_rows, num_inputs, scale_stride, WHOLE, STEP, AT_ONCE, 1, OUTPUTS, ROWS, ACTIVATION, False,
    )  # fmt: skip
    store_pairs(out, y, up, first_output, pairs, number, num_pairs, NUM_OUTPUTS, ROWS, ACTIVATION)


@triton.jit(do_not_specialize=["num_pairs", "most_tiles", "num_rows", "scale_stride"])
def int4_experts_kernel(
    out, rows, row_scales, sums, weight, weight_scales, zeros, chosen, order, tiles, num_pairs, most_tiles,
    num_rows, num_inputs, scale_stride,
    PAIRS_PER_ROW: tl.constexpr, NUM_OUTPUTS: tl.constexpr, COMPARED: tl.constexpr,
    ODD: tl.constexpr, GROUP: tl.constexpr, AT_ONCE: tl.constexpr,
    OUTPUTS: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute some outputs of a tile of pairs, in int4."""
    pdl_trigger(PDL)
    pdl_wait(PDL)
    first_output, expert, number, pairs = pairs_of_program(
        chosen, order, tiles, num_pairs, most_tiles, NUM_OUTPUTS, COMPARED, ROWS, OUTPUTS
    )
    if number == 0:
        return
    outputs = first_output + tl.arange(0, OUTPUTS)
    stored, others = _stored_rows(expert, outputs, NUM_OUTPUTS, ACTIVATION)
    y, up = int4_tile(
        rows, row_scales, sums, weight, weight_scales, zeros, None, stored, others, pairs // PAIRS_PER_ROW,
        num_rows, num_inputs, scale_stride, ODD, GROUP, AT_ONCE, 1, OUTPUTS, ROWS, ACTIVATION, False,
    )  # fmt: skip
    store_pairs(out, y, up, first_output, pairs, number, num_pairs, NUM_OUTPUTS, ROWS, ACTIVATION)
