"""What GEMMs of all quantized formats share: tiles and epilogues."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.triton.elementwise import QuantizedRows, magnitude, nonlinear, quantize_8bit, round_to, scale_of
from archerfish.ops.triton.runtime import prefetch

MULTIPROCESSORS = 132
"""Multiprocessors of a Hopper GPU. Fewer programs leave some of them idle; on other GPUs only the speed differs."""
FEW_ROWS = 16
"""Rows up to which reading the weights takes all the time."""
_LINE = 128
_MOST_LINES = 16
_WHOLE_GROUP_INPUTS = 128
"""Inputs of a stage when tiles are whole groups: more would not fit shared memory with as many outputs."""
_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_NEIGHBOURS: tl.constexpr = tl.constexpr(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedTiles:
    """How a GEMM is divided. None of this changes a bit."""

    outputs: int
    rows: int
    step: int
    """Inputs of one multiplication; with int4, of either group of a pair."""
    at_once: int
    """Steps whose loads are issued together."""
    warps: int
    stages: int
    sides: int = 1
    """Steps that are multiplied concurrently, each by a warp of its own, where integers are summed. Few outputs would
    keep too few warps busy."""
    prefetches: bool = True
    """Prefetch weights before the rows are ready. Most programs of a large matrix start later than that."""

    @property
    def prefetched_lines(self) -> int:
        """Cache lines of each output that are prefetched before the rows are ready: as much as will be in flight, where
        reading the weights takes all the time."""
        ahead = max(1, self.at_once * self.sides * self.step * self.stages // _LINE)
        return min(_power_of_two(ahead), _MOST_LINES) if self.prefetches and self.rows <= FEW_ROWS else 0

    def settings(self, epilogue: "QuantizedEpilogue") -> dict[str, Any]:
        """Return the settings of a launch that are the same for every format."""
        return {
            "OUTPUTS": self.outputs,
            "ROWS": self.rows,
            "LINES": self.prefetched_lines,
            "DTYPE": _DTYPES[epilogue.dtype],
            "ACTIVATION": epilogue.activation,
            "num_warps": self.warps,
            "num_stages": self.stages,
            "enable_fp_fusion": False,
        }

    def count(self, num_outputs: int, num_rows: int) -> int:
        """Return the number of programs."""
        return -(-num_outputs // self.outputs) * -(-num_rows // self.rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuantizedEpilogue:
    """What a GEMM does with its result y, rounded to the dtype of the model."""

    out: Tensor
    """[rows, outputs] with contiguous columns, in the dtype of the model or a wider one."""
    dtype: torch.dtype
    """Dtype of the model."""
    bias: Tensor | None = None
    """[outputs of the weight], added to y before it is rounded."""
    residual: Tensor | None = None
    """Added to the rounded y, and rounded again. May be out."""
    activation: Activation | None = None
    """Applied to the first half of the weight's outputs, which is then multiplied with the second; rounded after
    each."""
    quantized_out: QuantizedRows | None = None
    """Rows that out is the data of: each tile is one of their groups, and is quantized to eight bits."""

    @property
    def scales_and_sums(self) -> tuple[Tensor | None, Tensor | None]:
        """Buffers of scales and sums of groups, if out is quantized."""
        return (None, None) if self.quantized_out is None else (self.quantized_out.scales, self.quantized_out.sums)

    @property
    def strides(self) -> tuple[int, int, int]:
        """Strides between rows of out and of the residual, and between groups of scales and sums."""
        scales_and_sums = 0 if self.quantized_out is None else self.quantized_out.scales.stride(0)
        return self.out.stride(0), 0 if self.residual is None else self.residual.stride(0), scales_and_sums


def largest_divisor(number: int, candidates: tuple[int, ...]) -> int:
    """Return the first of the candidates, largest first, that divides a number."""
    return next(candidate for candidate in candidates if number % candidate == 0)


def stages_ahead(inputs: int, ahead: int) -> int:
    """Return the number of stages of so many inputs, for about `ahead` of them to be in flight."""
    return min(8, max(4, ahead // inputs))


def whole_groups(tiles: QuantizedTiles, group: int) -> QuantizedTiles:
    """Return tiles of few rows that compute one group of outputs each, so that a program has all that scales it."""
    at_once = max(1, min(tiles.at_once, _WHOLE_GROUP_INPUTS // tiles.step))
    return replace(tiles, outputs=group, warps=max(1, group // 16), at_once=at_once, stages=4, sides=1)


def rows_of_tile(num_rows: int, least: int) -> int:
    """Return the rows of a tile: the least power of two that holds all rows, from `least` to 64."""
    return min(64, max(least, _power_of_two(num_rows)))


def _power_of_two(number: int) -> int:
    """Return the next power of two."""
    return 1 << (number - 1).bit_length()


@triton.jit
def tile_of(num_outputs, num_rows, OUTPUTS: tl.constexpr, ROWS: tl.constexpr):
    """Return the first output and the first row of a program. Some tiles of rows are walked together: they share
    weights, and their rows stay in the cache until the next weights are loaded."""
    tiles_across = tl.cdiv(num_outputs, OUTPUTS)
    tiles_down = tl.cdiv(num_rows, ROWS)
    program = tl.program_id(0)
    first = program // (tiles_across * _NEIGHBOURS) * _NEIGHBOURS
    together = tl.minimum(tiles_down - first, _NEIGHBOURS)
    index = program % (tiles_across * _NEIGHBOURS)
    return index // together * OUTPUTS, (first + index % together) * ROWS


@triton.jit
def prefetch_rows(weight, outputs, num_inputs, LINES: tl.constexpr, PDL: tl.constexpr):
    """Prefetch the start of some rows of weights, while an earlier kernel still computes the activations."""
    if PDL and LINES > 0:
        lines = tl.arange(0, LINES) * 128
        prefetch(weight + outputs[:, None].to(tl.int64) * num_inputs + tl.minimum(lines, num_inputs - 1)[None, :])


@triton.jit
def counted(left, right):
    """Multiply bytes to int32: a tuple with left @ right of each side, in order.

    Sides are the first of three dimensions, and 2 or 4; two dimensions are one side.
    """
    counts = tl.dot(left, right, out_dtype=tl.int32)
    if len(left.shape) == 2:
        return (counts,)
    elif left.shape[0] == 2:  # noqa: RET505
        first, second = tl.split(tl.permute(counts, (1, 2, 0)))
        return (first, second)
    else:
        tl.static_assert(left.shape[0] == 4)
        even, odd = tl.split(tl.reshape(tl.permute(counts, (1, 2, 0)), (counts.shape[1], counts.shape[2], 2, 2)))
        first, third = tl.split(even)
        second, fourth = tl.split(odd)
        return (first, second, third, fourth)


@triton.jit
def side_by_side(pointers, apart, SIDES: tl.constexpr):
    """Return pointers of several sides, `apart` from each other; unchanged, if there is only one."""
    if SIDES == 1:
        return pointers
    else:  # noqa: RET505
        return pointers[None, :, :] + (tl.arange(0, SIDES) * apart)[:, None, None]


@triton.jit
def with_bias(y, bias, outputs):
    if bias is not None:
        y += tl.load(bias + outputs).to(tl.float32)[:, None]
    return y


@triton.jit
def store_epilogue(
    out, scales, sums, y, up, residual, first_output, rows, num_outputs, num_rows,
    out_stride, residual_stride, scale_out_stride, DTYPE: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Store a tile [outputs, rows] of y; with an activation, activation(y) * up."""
    outputs = first_output + tl.arange(0, y.shape[0])
    inside = (outputs < num_outputs)[:, None] & (rows < num_rows)[None, :]
    result = round_to(y, DTYPE)
    if ACTIVATION is not None:
        result = round_to(nonlinear(result.to(tl.float32), ACTIVATION), DTYPE)
        result = round_to(result.to(tl.float32) * round_to(up, DTYPE).to(tl.float32), DTYPE)
    if residual is not None:
        before = residual + rows[None, :].to(tl.int64) * residual_stride + outputs[:, None]
        result = round_to(tl.load(before, mask=inside, other=0.0).to(tl.float32) + result.to(tl.float32), DTYPE)
    addresses = out + rows[None, :].to(tl.int64) * out_stride + outputs[:, None]
    if scales is None:
        tl.store(addresses, result.to(out.dtype.element_ty), mask=inside)
    else:
        wide = tl.where(inside, result.to(tl.float32), 0.0)
        largest = tl.max(magnitude(wide), 0)
        quantized_out = quantize_8bit(wide, largest[None, :], tl.int8)
        tl.store(addresses, quantized_out, mask=inside)
        scales_and_sums = first_output // y.shape[0] * scale_out_stride + rows
        tl.store(scales + scales_and_sums, scale_of(largest, tl.int8), mask=rows < num_rows)
        tl.store(sums + scales_and_sums, tl.sum(quantized_out.to(tl.int32), 0), mask=rows < num_rows)
