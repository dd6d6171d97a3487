"""Activations quantized to eight bits, once for all GEMMs that read them.

A row depends on itself alone: each group is scaled by its own largest number.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
import triton
import triton.language as tl
from torch import Tensor

from archerfish.ops.triton.elementwise.row_kernels import quantize_kernel, store_groups
from archerfish.ops.triton.runtime import launch, pdl_trigger, pdl_wait, vector_of, warps_for

_GROUPS = (32, 64, 128)
_PADDING = 16
_BLOCK = 1024
_WIDEST_BLOCK = 8192
"""Numbers of a row that a program holds. Wider rows are read twice."""


class ActivationFormat(NamedTuple):
    """The format that activations are quantized to before they are multiplied."""

    dtype: torch.dtype
    """int8 or float8_e4m3fn."""
    group: int
    """Inputs that share a scale; the whole row without groups."""

    @property
    def by_group(self) -> bool:
        """Whether rows have groups, be it a single one."""
        return self.dtype == torch.int8 and self.group in _GROUPS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuantizedRows:
    """Quantized activations [rows, inputs]."""

    group: int
    """Inputs that share a scale; the whole row without groups."""
    data: Tensor
    """[rows, inputs] int8 or float8_e4m3fn."""
    scales: Tensor
    """[groups, rows] float32: the value of a 1. Groups of zeros have 0, groups with a number that is not finite NaN.

    With groups, padded to a multiple of 16 rows, so that several scales are loaded at once.
    """
    sums: Tensor | None = None
    """[groups, rows] int32, padded likewise: the sum of each group's numbers, which weights with zero points need."""

    @classmethod
    def empty(cls, num_rows: int, num_inputs: int, group: int, dtype: torch.dtype, device: torch.device | str) -> Self:
        """Allocate rows of int8 or float8_e4m3fn."""
        has_sums = ActivationFormat(dtype, group).by_group
        per_group = (num_inputs // group, -(-num_rows // _PADDING) * _PADDING if has_sums else num_rows)
        return cls(
            group=group,
            data=torch.empty(num_rows, num_inputs, dtype=dtype, device=device),
            scales=torch.empty(per_group, dtype=torch.float32, device=device),
            sums=torch.empty(per_group, dtype=torch.int32, device=device) if has_sums else None,
        )

    def part(self, rows: slice) -> Self:
        """Return some of the rows; only without groups."""
        assert self.sums is None
        return replace(self, data=self.data[rows], scales=self.scales[:, rows])


def quantize_groups(x: Tensor, group: int) -> QuantizedRows:
    """Quantize [rows, inputs] to int8 in groups; one group for the whole row, if it is as long."""
    rows = QuantizedRows.empty(len(x), x.shape[1], group, torch.int8, x.device)
    quantize_into(rows, x)
    return rows


def quantize_rows(x: Tensor) -> QuantizedRows:
    """Quantize [rows, inputs] to float8_e4m3fn with one scale per row."""
    rows = QuantizedRows.empty(len(x), x.shape[1], x.shape[1], torch.float8_e4m3fn, x.device)
    quantize_into(rows, x)
    return rows


def quantize_into(rows: QuantizedRows, x: Tensor) -> None:
    """Quantize x to the format and group of rows. Rows of x may have any stride, their numbers are contiguous.

    Rows, or groups, of zeros have a scale of 0, those with a number that is not finite NaN.
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
    GROUP: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Quantize some groups of a row."""
    pdl_trigger(PDL)
    row = tl.program_id(0)
    groups = tl.program_id(1) * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    pdl_wait(PDL)
    source = x + row.to(tl.int64) * x_stride + columns
    values = tl.load(source, mask=(groups < width // GROUP)[:, None], other=0.0).to(tl.float32)
    target = out + row.to(tl.int64) * width
    store_groups(target, scales + row, sums + row, values, groups, width // GROUP, scale_stride)
