"""What products of all formats share: the tile a program makes, and what becomes of its sums. Knows no format."""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.triton.launch import prefetch
from archerfish.ops.triton.row_kernels import narrow, nonlinear

MULTIPROCESSORS = 132
"""Of a Hopper GPU. Fewer programs than these leave some of them idle; on others only the speed differs."""
FEW_ROWS = 16
"""Up to so many, the time is that of reading the weights."""
_LINE = 128
_MOST_LINES = 16
_NEIGHBOURS: tl.constexpr = tl.constexpr(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """How a product is cut. None of this changes a bit of it."""

    outputs: int
    rows: int
    step: int
    """Inputs of one multiplication; of int4, of either group of a pair."""
    at_once: int
    """Steps whose loads are issued together."""
    warps: int
    stages: int

    @property
    def prefetched_lines(self) -> int:
        """Of each output, before the rows are there: as much as will be in flight, where reading is what takes time."""
        ahead = max(1, self.at_once * self.step * self.stages // _LINE)
        return min(_power_of_two(ahead), _MOST_LINES) if self.rows <= FEW_ROWS else 0

    def settings(self, ending: "Ending") -> dict[str, Any]:
        """Of a launch, as far as they are the same for every format."""
        return {
            "OUTPUTS": self.outputs,
            "ROWS": self.rows,
            "LINES": self.prefetched_lines,
            "ACTIVATION": ending.activation,
            "num_warps": self.warps,
            "num_stages": self.stages,
            "enable_fp_fusion": False,
        }

    def count(self, num_outputs: int, num_rows: int) -> int:
        """Programs."""
        return -(-num_outputs // self.outputs) * -(-num_rows // self.rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ending:
    """What becomes of a product y, rounded to the type of out."""

    out: Tensor
    """[rows, outputs]; columns lie side by side."""
    bias: Tensor | None = None
    """Added to y before it is rounded. [outputs of the weight]"""
    residual: Tensor | None = None
    """Added to the rounded y, and rounded again. May be out."""
    activation: Activation | None = None
    """Of the first half of the weight's outputs, multiplied with the second; either is rounded before."""

    @property
    def strides(self) -> tuple[int, int]:
        """From row to row, of out and of the residual."""
        return self.out.stride(0), 0 if self.residual is None else self.residual.stride(0)


def largest_divisor(number: int, candidates: tuple[int, ...]) -> int:
    """The first of the candidates, largest first, that divides a number."""
    return next(candidate for candidate in candidates if number % candidate == 0)


def stages_ahead(inputs: int, ahead: int) -> int:
    """Stages of so many inputs, for about `ahead` of them to be in flight."""
    return min(8, max(4, ahead // inputs))


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
def with_bias(y, bias, outputs):
    if bias is not None:
        y += tl.load(bias + outputs).to(tl.float32)[:, None]
    return y


@triton.jit
def finish(
    out, y, up, residual, outputs, rows, num_outputs, num_rows, out_stride, residual_stride, ACTIVATION: tl.constexpr
):  # fmt: skip
    """Store a tile [outputs, rows] of y; with an activation, of what it makes of y, times up."""
    dtype: tl.constexpr = out.dtype.element_ty
    inside = (outputs < num_outputs)[:, None] & (rows < num_rows)[None, :]
    made = narrow(y, dtype)
    if ACTIVATION is not None:
        made = narrow(nonlinear(made.to(tl.float32), ACTIVATION), dtype)
        made = narrow(made.to(tl.float32) * narrow(up, dtype).to(tl.float32), dtype)
    if residual is not None:
        before = residual + rows[None, :].to(tl.int64) * residual_stride + outputs[:, None]
        made = narrow(tl.load(before, mask=inside, other=0.0).to(tl.float32) + made.to(tl.float32), dtype)
    tl.store(out + rows[None, :].to(tl.int64) * out_stride + outputs[:, None], made, mask=inside)
