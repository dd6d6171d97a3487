"""Linear operations on weights of any format, fused with what follows them; few rows by our kernel, many by cuBLAS."""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.triton import elementwise
from archerfish.ops.triton.device_weight import DeviceWeight
from archerfish.ops.triton.elementwise import ActivationFormat, QuantizedRows
from archerfish.ops.triton.gemm.bit_comparison import BitComparison
from archerfish.ops.triton.gemm.float_gemm import FloatEpilogue, float_gemm_into
from archerfish.ops.triton.gemm.float_tiles import num_k_splits
from archerfish.ops.triton.gemm.quantized_gemm import (
    Rows,
    empty_quantized,
    quantized_add,
    quantized_embed,
    quantized_gated,
    quantized_linear,
    rms_norm_quantized,
)
from archerfish.ops.triton.runtime import INTERPRETED, is_compile_only

Weight = Tensor | DeviceWeight
"""A matrix [outputs, inputs]."""


class SumAndNorm(NamedTuple):
    total: Tensor
    normed: Tensor


class SumAndQuantizedNorm(NamedTuple):
    total: Tensor
    normed: QuantizedRows


Norm = tuple[Tensor, float, float]
"""Weight, eps and weight offset."""


def row_dtype(table: Weight) -> torch.dtype:
    """Return the dtype of rows that are looked up in a table."""
    return table.dtype


def embed(tokens: Tensor, table: Weight) -> Tensor:
    return quantized_embed(tokens, table) if isinstance(table, DeviceWeight) else elementwise.embed(tokens, table)


def linear(x: Rows, weight: Weight, bias: Tensor | None) -> Tensor:
    if isinstance(weight, DeviceWeight):
        return quantized_linear(x, weight, bias)
    assert isinstance(x, Tensor)
    if _is_many(x, weight, bias):
        return F.linear(x, weight, bias)
    out = _empty_rows(x, len(weight))
    float_gemm_into(out, x, weight, bias)
    return out


def wide_linear(x: Rows, weight: Weight, bias: Tensor | None) -> Tensor:
    """Return `linear` in float32."""
    if isinstance(weight, DeviceWeight):
        return quantized_linear(x, weight, bias, torch.float32)
    assert isinstance(x, Tensor)
    if _is_many(x, weight, bias):
        return F.linear(x, weight, bias).float()
    out = torch.empty((len(x), len(weight)), dtype=torch.float32, device=x.device)
    float_gemm_into(out, x, weight, bias)
    return out


def gated_linear(x: Rows, weight: Weight, bias: Tensor | None, activation: Activation) -> Tensor:
    """Return activation(gate) * other, for a matrix that holds gates, then as many others."""
    if isinstance(weight, DeviceWeight):
        return quantized_gated(x, weight, bias, activation)
    assert isinstance(x, Tensor)
    if _is_many(x, weight, bias, _MOST_GATED_ROWS):
        return elementwise.activate(F.linear(x, weight, bias), activation, True)
    out = _empty_rows(x, len(weight) // 2)
    float_gemm_into(out, x, weight, bias, FloatEpilogue(activation=activation))
    return out


def linear_add(x: Rows, weight: Weight, bias: Tensor | None, residual: Tensor, factor: float) -> Tensor:
    """Return residual + linear * factor."""
    if isinstance(weight, DeviceWeight):
        if factor != 1.0:
            return elementwise.add(residual, quantized_linear(x, weight, bias), factor)
        return quantized_add(x, weight, bias, residual)
    assert isinstance(x, Tensor)
    if _is_many(x, weight, bias):
        return elementwise.add(residual, F.linear(x, weight, bias), factor)
    out = _empty_rows(x, len(weight))
    float_gemm_into(out, x, weight, bias, FloatEpilogue(residual=residual, factor=factor))
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
    """Return `linear_add` and its norm."""
    if isinstance(x, Tensor) and not isinstance(weight, DeviceWeight) and _is_many(x, weight, bias):
        total, normed = torch.empty_like(residual), torch.empty_like(residual)
        y = F.linear(x, weight, bias)
        elementwise.add_rms_norm_into(normed, total, residual, y, factor, norm_weight, eps, weight_offset)
        return SumAndNorm(total, normed)
    total = linear_add(x, weight, bias, residual, factor)
    return SumAndNorm(total, elementwise.rms_norm(total, norm_weight, eps, weight_offset))


def linear_add_norm_quantized(
    x: Rows,
    weight: Weight,
    bias: Tensor | None,
    residual: Tensor,
    factor: float,
    norm: Norm,
    out_format: ActivationFormat,
) -> SumAndQuantizedNorm:
    """Return `linear_add` and its norm, quantized."""
    if factor == 1.0:
        total = linear_add(x, weight, bias, residual, factor)
        return SumAndQuantizedNorm(total, rms_norm_quantized(total, *norm, out_format))
    total = torch.empty_like(residual)
    normed = empty_quantized(residual, out_format)
    elementwise.add_rms_norm_quantized_into(normed, total, residual, linear(x, weight, bias), factor, *norm)
    return SumAndQuantizedNorm(total, normed)


def require_ordered_cublas() -> None:
    """Make cuBLAS add up K in order, from one end to the other. torch then uses cuBLASLt for all GEMMs."""
    if not INTERPRETED:
        torch.backends.cuda.preferred_blas_library("cublaslt")
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = (False, False)


# -- kernel or cuBLAS -------------------------------------------------------------------------------------------------

_cublas = BitComparison()
"""Whether cuBLAS has the kernel's bits, by outputs, inputs, rows, bias and dtype."""
_COMPARED_ROWS = 16
_MOST_ROWS = 32
"""Rows up to which the kernel is faster; gated GEMMs have their own limit. Matrices with split K never use cuBLAS."""
_MOST_GATED_ROWS = 64


def _is_many(x: Tensor, weight: Tensor, bias: Tensor | None, most: int = _MOST_ROWS) -> bool:
    """Return whether cuBLAS multiplies x. Its bits are compared once for each size, before any graph is captured."""
    num_rows = len(x)
    if num_rows <= most or num_k_splits(*weight.shape) > 1 or INTERPRETED:
        return False
    size = (*weight.shape, num_rows, bias is not None, x.dtype)
    return _cublas.agrees(size, partial(_has_cublas_bits, x, weight, bias))


def _has_cublas_bits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Compare some rows from the start and the middle: rows at the end may be padding without defined numbers."""
    assert not torch.cuda.is_current_stream_capturing(), "a size must be compared before it is captured"
    theirs, half, equal = F.linear(x, weight, bias), len(x) // 2, True
    for rows in (slice(_COMPARED_ROWS), slice(half - _COMPARED_ROWS, half)):
        ours = _empty_rows(x[rows], len(weight))
        float_gemm_into(ours, x[rows], weight, bias)
        equal = equal and (is_compile_only() or torch.equal(ours, theirs[rows]))
    return equal


def _empty_rows(x: Tensor, width: int) -> Tensor:
    return torch.empty((len(x), width), dtype=x.dtype, device=x.device)
