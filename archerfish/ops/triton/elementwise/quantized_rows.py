"""Rows of activations rounded to eight bits, once for all products that read them. Knows no weights.

A row depends on itself alone: groups are rounded each by its own largest number.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
import triton
import triton.language as tl
from torch import Tensor

from archerfish.ops.triton.elementwise.row_kernels import quantize_kernel, store_groups
from archerfish.ops.triton.runtime import await_inputs, launch, let_next_start, vector_of, warps_for

_GROUPS = (32, 64, 128)
_PADDING = 16
_BLOCK = 1024
_WIDEST_BLOCK = 8192
"""Wider rows are read twice."""


class Rounding(NamedTuple):
    """What activations become before they are multiplied."""

    dtype: torch.dtype
    """int8 or float8_e4m3fn."""
    group: int
    """Inputs that share a scale; all of a row, if there are no groups."""

    @property
    def by_group(self) -> bool:
        """Also where a row is a single group."""
        return self.dtype == torch.int8 and self.group in _GROUPS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuantizedRows:
    """[rows, inputs]."""

    group: int
    """Inputs that share a scale; all of a row, if there are no groups."""
    data: Tensor
    """[rows, inputs] int8 or float8_e4m3fn."""
    scales: Tensor
    """[groups, rows] float32: what a 1 stands for. A group of zeros has 0, one with what is no finite number NaN.

    With groups, filled up with anything to a multiple of 16 rows: so several are loaded at once.
    """
    sums: Tensor | None = None
    """[groups, rows] int32, filled up likewise: of each group's numbers. Only weights with zero points need them."""

    @classmethod
    def empty(cls, num_rows: int, num_inputs: int, group: int, dtype: torch.dtype, device: torch.device | str) -> Self:
        """Room for rows of int8 or float8_e4m3fn."""
        has_sums = Rounding(dtype, group).by_group
        per_group = (num_inputs // group, -(-num_rows // _PADDING) * _PADDING if has_sums else num_rows)
        return cls(
            group=group,
            data=torch.empty(num_rows, num_inputs, dtype=dtype, device=device),
            scales=torch.empty(per_group, dtype=torch.float32, device=device),
            sums=torch.empty(per_group, dtype=torch.int32, device=device) if has_sums else None,
        )

    def part(self, rows: slice) -> Self:
        """Some of them, where there are no groups."""
        assert self.sums is None
        return replace(self, data=self.data[rows], scales=self.scales[:, rows])


def quantize_groups(x: Tensor, group: int) -> QuantizedRows:
    """[rows, inputs] to int8 in groups; one group for a whole row, if it is as long."""
    rows = QuantizedRows.empty(len(x), x.shape[1], group, torch.int8, x.device)
    quantize_into(rows, x)
    return rows


def quantize_rows(x: Tensor) -> QuantizedRows:
    """[rows, inputs] to float8_e4m3fn, with one scale for a row."""
    rows = QuantizedRows.empty(len(x), x.shape[1], x.shape[1], torch.float8_e4m3fn, x.device)
    quantize_into(rows, x)
    return rows


def quantize_into(rows: QuantizedRows, x: Tensor) -> None:
    """As the rows' own format and group say. Rows of x may lie apart, their numbers side by side.

    A row, or a group, of zeros has a scale of 0, one with what is no finite number has NaN.
    """
    assert x.shape == rows.data.shape and x.stride(1) == 1, f"rows of {tuple(x.shape)} for {tuple(rows.data.shape)}"
    if not len(x):
        return
    if rows.sums is None:
        _quantize_whole(rows, x)
    else:
        _quantize_groups(rows, rows.sums, x)


def _quantize_whole(rows: QuantizedRows, x: Tensor) -> None:
    width = x.shape[1]
    vector = vector_of(width, x, rows.data)
    block = min(triton.next_power_of_2(width), _WIDEST_BLOCK)
    launch(
        quantize_kernel,
        (len(x),),
        *(rows.data, rows.scales, x, rows.data.stride(0) // vector, x.stride(0) // vector),
        WIDTH=width,
        BLOCK=block,
        VECTOR=vector,
        num_warps=warps_for(block),
        enable_fp_fusion=False,
    )


def _quantize_groups(rows: QuantizedRows, sums: Tensor, x: Tensor) -> None:
    num_rows, width = x.shape
    launch(
        _groups_kernel,
        (num_rows, triton.cdiv(width, _BLOCK)),
        *(rows.data, rows.scales, sums, x, x.stride(0), sums.shape[1], width),
        GROUP=rows.group,
        BLOCK=_BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )


@triton.jit
def _groups_kernel(
    out, scales, sums, x, x_stride, scale_stride, width,
    GROUP: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Some groups of a row."""
    let_next_start(EARLY)
    row = tl.program_id(0)
    groups = tl.program_id(1) * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    await_inputs(EARLY)
    source = x + row.to(tl.int64) * x_stride + columns
    values = tl.load(source, mask=(groups < width // GROUP)[:, None], other=0.0).to(tl.float32)
    target = out + row.to(tl.int64) * width
    store_groups(target, scales + row, sums + row, values, groups, width // GROUP, scale_stride)
