"""What products of all formats share: the tile a program makes, and what becomes of its sums. Knows no format."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.triton.elementwise import QuantizedRows, eight_bits, magnitude, narrow, nonlinear, scale_of
from archerfish.ops.triton.runtime import prefetch

MULTIPROCESSORS = 132
"""Of a Hopper GPU. Fewer programs than these leave some of them idle; on others only the speed differs."""
FEW_ROWS = 16
"""Up to so many, the time is that of reading the weights."""
_LINE = 128
_MOST_LINES = 16
_WHOLE_GROUP_INPUTS = 128
"""Of a stage: more would not fit shared memory with as many outputs."""
_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_NEIGHBOURS: tl.constexpr = tl.constexpr(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedTiles:
    """How a product is cut. None of this changes a bit of it."""

    outputs: int
    rows: int
    step: int
    """Inputs of one multiplication; of int4, of either group of a pair."""
    at_once: int
    """Steps whose loads are issued together."""
    warps: int
    stages: int
    sides: int = 1
    """Steps that are multiplied side by side, each by a warp of its own, where whole numbers are added up. Few outputs
    keep too few warps busy otherwise."""
    prefetches: bool = True
    """Weights are asked for before the rows are there. Of a large matrix most programs start later than that."""

    @property
    def prefetched_lines(self) -> int:
        """Of each output, before the rows are there: as much as will be in flight, where reading is what takes time."""
        ahead = max(1, self.at_once * self.sides * self.step * self.stages // _LINE)
        return min(_power_of_two(ahead), _MOST_LINES) if self.prefetches and self.rows <= FEW_ROWS else 0

    def settings(self, epilogue: "QuantizedEpilogue") -> dict[str, Any]:
        """Of a launch, as far as they are the same for every format."""
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
        """Programs."""
        return -(-num_outputs // self.outputs) * -(-num_rows // self.rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuantizedEpilogue:
    """What becomes of a product y, rounded to the type of the model."""

    out: Tensor
    """[rows, outputs]; columns lie side by side. Of a wider type than the model's, if that is what is wanted."""
    dtype: torch.dtype
    """Of the model."""
    bias: Tensor | None = None
    """Added to y before it is rounded. [outputs of the weight]"""
    residual: Tensor | None = None
    """Added to the rounded y, and rounded again. May be out."""
    activation: Activation | None = None
    """Of the first half of the weight's outputs, multiplied with the second; either is rounded before."""
    rounded: QuantizedRows | None = None
    """Rows whose data out is: each tile is one of their groups, and rounded to eight bits."""

    @property
    def beside(self) -> tuple[Tensor | None, Tensor | None]:
        """What is stored beside out: scales and sums of groups."""
        return (None, None) if self.rounded is None else (self.rounded.scales, self.rounded.sums)

    @property
    def strides(self) -> tuple[int, int, int]:
        """From row to row, of out and of the residual; of what is stored beside, from one line of it to the next."""
        beside = 0 if self.rounded is None else self.rounded.scales.stride(0)
        return self.out.stride(0), 0 if self.residual is None else self.residual.stride(0), beside


def largest_divisor(number: int, candidates: tuple[int, ...]) -> int:
    """The first of the candidates, largest first, that divides a number."""
    return next(candidate for candidate in candidates if number % candidate == 0)


def stages_ahead(inputs: int, ahead: int) -> int:
    """Stages of so many inputs, for about `ahead` of them to be in flight."""
    return min(8, max(4, ahead // inputs))


def whole_groups(tiles: QuantizedTiles, group: int) -> QuantizedTiles:
    """Return tiles of few rows that compute one group of outputs each, so that a program has all that scales it."""
    at_once = max(1, min(tiles.at_once, _WHOLE_GROUP_INPUTS // tiles.step))
    return replace(tiles, outputs=group, warps=max(1, group // 16), at_once=at_once, stages=4, sides=1)


def rows_of_tile(num_rows: int, least: int) -> int:
    """As few as hold them all, from `least` to 64."""
    return min(64, max(least, _power_of_two(num_rows)))


def _power_of_two(number: int) -> int:
    """The next one up."""
    return 1 << (number - 1).bit_length()


@triton.jit
def tile_of(num_outputs, num_rows, OUTPUTS: tl.constexpr, ROWS: tl.constexpr):
    """The first output and the first row of a program. Few tiles of rows are walked together: they share weights, and
    their rows stay in the cache until the next weights come."""
    tiles_across = tl.cdiv(num_outputs, OUTPUTS)
    tiles_down = tl.cdiv(num_rows, ROWS)
    program = tl.program_id(0)
    first = program // (tiles_across * _NEIGHBOURS) * _NEIGHBOURS
    together = tl.minimum(tiles_down - first, _NEIGHBOURS)
    place = program % (tiles_across * _NEIGHBOURS)
    return place // together * OUTPUTS, (first + place % together) * ROWS


@triton.jit
def prefetch_rows(weight, outputs, num_inputs, LINES: tl.constexpr, EARLY: tl.constexpr):
    """The start of some rows of bytes, while an earlier kernel still makes what they will be multiplied with."""
    if EARLY and LINES > 0:
        lines = tl.arange(0, LINES) * 128
        prefetch(weight + outputs[:, None].to(tl.int64) * num_inputs + tl.minimum(lines, num_inputs - 1)[None, :])


@triton.jit
def counted(left, right):
    """left @ right of bytes, in int32: a tuple of one for each side, in their order.

    Sides are the first of three dimensions, and 2 or 4; with two dimensions there is one.
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
    """The same places of several sides, so far apart; as they are, if there is but one."""
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
def finish(
    out, scales, sums, y, up, residual, first_output, rows, num_outputs, num_rows,
    out_stride, residual_stride, beside_stride, DTYPE: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Store a tile [outputs, rows] of y; with an activation, of what it makes of y, times up."""
    outputs = first_output + tl.arange(0, y.shape[0])
    inside = (outputs < num_outputs)[:, None] & (rows < num_rows)[None, :]
    made = narrow(y, DTYPE)
    if ACTIVATION is not None:
        made = narrow(nonlinear(made.to(tl.float32), ACTIVATION), DTYPE)
        made = narrow(made.to(tl.float32) * narrow(up, DTYPE).to(tl.float32), DTYPE)
    if residual is not None:
        before = residual + rows[None, :].to(tl.int64) * residual_stride + outputs[:, None]
        made = narrow(tl.load(before, mask=inside, other=0.0).to(tl.float32) + made.to(tl.float32), DTYPE)
    places = out + rows[None, :].to(tl.int64) * out_stride + outputs[:, None]
    if scales is None:
        tl.store(places, made.to(out.dtype.element_ty), mask=inside)
    else:
        wide = tl.where(inside, made.to(tl.float32), 0.0)
        largest = tl.max(magnitude(wide), 0)
        rounded = eight_bits(wide, largest[None, :], tl.int8)
        tl.store(places, rounded, mask=inside)
        beside = first_output // y.shape[0] * beside_stride + rows
        tl.store(scales + beside, scale_of(largest, tl.int8), mask=rows < num_rows)
        tl.store(sums + beside, tl.sum(rounded.to(tl.int32), 0), mask=rows < num_rows)
