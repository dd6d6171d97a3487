"""Linear operations on weights of any format, fused with what follows them; few rows by our kernel, many by cuBLAS."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.triton import elementwise
from archerfish.ops.triton.device_weight import DeviceWeight
from archerfish.ops.triton.elementwise import QuantizedRows, Rounding
from archerfish.ops.triton.gemm.float_gemm import FloatEpilogue, linear_by_kernel
from archerfish.ops.triton.gemm.float_tiles import num_parts
from archerfish.ops.triton.gemm.quantized_gemm import (
    Rows,
    quantized_add,
    quantized_embed,
    quantized_gated,
    quantized_linear,
    room_for,
    rounded_norm,
)
from archerfish.ops.triton.runtime import INTERPRETED, is_rehearsal

Weight = Tensor | DeviceWeight
"""[outputs, inputs]."""


class SumAndNorm(NamedTuple):
    total: Tensor
    normed: Tensor


class SumAndRoundedNorm(NamedTuple):
    total: Tensor
    normed: QuantizedRows


Norm = tuple[Tensor, float, float]
"""Weight, eps and weight offset."""


def row_dtype(table: Weight) -> torch.dtype:
    """Number format of the rows that are looked up in a table."""
    return table.dtype


def embed(tokens: Tensor, table: Weight) -> Tensor:
    return quantized_embed(tokens, table) if isinstance(table, DeviceWeight) else elementwise.embed(tokens, table)


def linear(x: Rows, weight: Weight, bias: Tensor | None) -> Tensor:
    if isinstance(weight, DeviceWeight):
        return quantized_linear(x, weight, bias)
    assert isinstance(x, Tensor)
    if _is_many(x, weight, bias):
        return F.linear(x, weight, bias)
    out = _room(x, len(weight))
    linear_by_kernel(out, x, weight, bias)
    return out


def wide_linear(x: Rows, weight: Weight, bias: Tensor | None) -> Tensor:
    """The numbers of `linear`, in float32."""
    if isinstance(weight, DeviceWeight):
        return quantized_linear(x, weight, bias, torch.float32)
    assert isinstance(x, Tensor)
    if _is_many(x, weight, bias):
        return F.linear(x, weight, bias).float()
    out = torch.empty((len(x), len(weight)), dtype=torch.float32, device=x.device)
    linear_by_kernel(out, x, weight, bias)
    return out


def gated_linear(x: Rows, weight: Weight, bias: Tensor | None, activation: Activation) -> Tensor:
    """activation(gate) * other, of a matrix that holds gates, then as many others."""
    if isinstance(weight, DeviceWeight):
        return quantized_gated(x, weight, bias, activation)
    assert isinstance(x, Tensor)
    if _is_many(x, weight, bias, _MOST_GATED_ROWS):
        return elementwise.activate(F.linear(x, weight, bias), activation, True)
    out = _room(x, len(weight) // 2)
    linear_by_kernel(out, x, weight, bias, FloatEpilogue(activation=activation))
    return out


def linear_add(x: Rows, weight: Weight, bias: Tensor | None, residual: Tensor, factor: float) -> Tensor:
    """residual + linear * factor."""
    if isinstance(weight, DeviceWeight):
        if factor != 1.0:
            return elementwise.add(residual, quantized_linear(x, weight, bias), factor)
        return quantized_add(x, weight, bias, residual)
    assert isinstance(x, Tensor)
    if _is_many(x, weight, bias):
        return elementwise.add(residual, F.linear(x, weight, bias), factor)
    out = _room(x, len(weight))
    linear_by_kernel(out, x, weight, bias, FloatEpilogue(residual=residual, factor=factor))
    return out


def linear_add_norm(
    x: Rows,
    weight: Weight,
    bias: Tensor | None,
    residual: Tensor,
    factor: float,
    norm_weight: Tensor,
    eps: float,
    weight_offset: float,
) -> SumAndNorm:
    """The same, and its norm."""
    if isinstance(x, Tensor) and not isinstance(weight, DeviceWeight) and _is_many(x, weight, bias):
        total, normed = torch.empty_like(residual), torch.empty_like(residual)
        y = F.linear(x, weight, bias)
        elementwise.add_rms_norm_into(normed, total, residual, y, factor, norm_weight, eps, weight_offset)
        return SumAndNorm(total, normed)
    total = linear_add(x, weight, bias, residual, factor)
    return SumAndNorm(total, elementwise.rms_norm(total, norm_weight, eps, weight_offset))


def linear_add_rounded_norm(
    x: Rows, weight: Weight, bias: Tensor | None, residual: Tensor, factor: float, norm: Norm, rounding: Rounding
) -> SumAndRoundedNorm:
    """The same, and the norm rounded."""
    if factor == 1.0:
        total = linear_add(x, weight, bias, residual, factor)
        return SumAndRoundedNorm(total, rounded_norm(total, *norm, rounding))
    total = torch.empty_like(residual)
    normed = room_for(residual, rounding)
    elementwise.add_rms_norm_quantized_into(normed, total, residual, linear(x, weight, bias), factor, *norm)
    return SumAndRoundedNorm(total, normed)


def walk_in_order() -> None:
    """Have cuBLAS add up K in order, from one end to the other. Torch then has its newer interface do all products."""
    if not INTERPRETED:
        torch.backends.cuda.preferred_blas_library("cublaslt")
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = (False, False)


# -- few rows or many -------------------------------------------------------------------------------------------------

_agrees: dict[tuple[int, int, int, bool, torch.dtype], bool] = {}
"""Whether cuBLAS gave the kernel's bits, by outputs, inputs, rows, bias and number format."""
_COMPARED_ROWS = 16
_MOST_ROWS = 32
"""Rows up to which the kernel is faster; of gated products it is so for more. Matrices cut into parts are its own."""
_MOST_GATED_ROWS = 64


def _is_many(x: Tensor, weight: Tensor, bias: Tensor | None, most: int = _MOST_ROWS) -> bool:
    """Return whether cuBLAS multiplies x. Its bits are compared once for each size, before any graph is captured."""
    num_rows = len(x)
    if num_rows <= most or num_parts(*weight.shape) > 1 or INTERPRETED:
        return False
    size = (*weight.shape, num_rows, bias is not None, x.dtype)
    if size not in _agrees:
        assert not torch.cuda.is_current_stream_capturing(), "a size is tried before it is captured"
        theirs = F.linear(x, weight, bias)
        same = True
        # From the start and the middle: at the end there may be rows that only fill up, and hold no numbers.
        for some in (slice(_COMPARED_ROWS), slice(num_rows // 2 - _COMPARED_ROWS, num_rows // 2)):
            ours = _room(x[some], len(weight))
            linear_by_kernel(ours, x[some], weight, bias)
            same = same and (is_rehearsal() or torch.equal(ours, theirs[some]))
        if is_rehearsal():
            return True
        _agrees[size] = same
    return _agrees[size]


def _room(x: Tensor, width: int) -> Tensor:
    return torch.empty((len(x), width), dtype=x.dtype, device=x.device)
