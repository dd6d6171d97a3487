"""GEMMs and embeddings with quantized weights of all formats; each format has kernels of its own.

A row's bits depend on that row and the weight alone, whatever else is in the step.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.triton.device_weight import DeviceWeight
from archerfish.ops.triton.elementwise import (
    ActivationFormat,
    QuantizedRows,
    quantize_into,
    rms_norm_quantized_into,
    round_to,
)
from archerfish.ops.triton.gemm.fp8_gemm import fp8_gemm_into, fp8_tiles
from archerfish.ops.triton.gemm.int4_gemm import int4_gemm_into, int4_tiles
from archerfish.ops.triton.gemm.int8_gemm import int8_gemm_into, int8_tiles
from archerfish.ops.triton.gemm.quantized_tiles import FEW_ROWS, QuantizedEpilogue, QuantizedTiles, whole_groups
from archerfish.ops.triton.runtime import launch, pdl_trigger, pdl_wait

_BLOCK = 1024


Rows = Tensor | QuantizedRows
"""Activations [T, K], possibly quantized already to the `activation_format` of the weight."""


def activation_format(weight: DeviceWeight) -> ActivationFormat:
    return ActivationFormat(torch.float8_e4m3fn if weight.format == "fp8" else torch.int8, weight.group)


# -- GEMMs ------------------------------------------------------------------------------------------------------------


def quantized_linear(
    x: Rows, weight: DeviceWeight, bias: Tensor | None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """Multiply [T, K] x [N, K] -> [T, N], in the dtype of x (of the model, if x is quantized) or stored in a wider
    one."""
    rows = quantized_input(x, weight)
    dtype = _dtype(x, weight)
    out = _empty_rows(rows, weight.num_outputs, out_dtype or dtype)
    _gemm_into(QuantizedEpilogue(out=out, dtype=dtype, bias=bias), rows, weight)
    return out


def quantized_add(x: Rows, weight: DeviceWeight, bias: Tensor | None, residual: Tensor) -> Tensor:
    """Return residual + quantized_linear."""
    out = torch.empty_like(residual)
    quantized_linear_into(out, quantized_input(x, weight), weight, bias, residual)
    return out


def quantized_gated(x: Rows, weight: DeviceWeight, bias: Tensor | None, activation: Activation) -> Tensor:
    """Multiply [T, K] x [2I, K], gate and then up -> activation(gate) * up, [T, I]."""
    rows = quantized_input(x, weight)
    out = _empty_rows(rows, weight.num_outputs // 2, _dtype(x, weight))
    quantized_gated_into(out, rows, weight, bias, activation)
    return out


def gated_linear_quantized(
    x: Rows, weight: DeviceWeight, bias: Tensor | None, activation: Activation, out_format: ActivationFormat
) -> Rows:
    """Return `quantized_gated` in a GEMM's activation format: few rows in groups are quantized, others are not."""
    rows = quantized_input(x, weight)
    num_rows, width = len(rows.data), weight.num_outputs // 2
    out = _empty_rows(rows, width, _dtype(x, weight))
    epilogue = QuantizedEpilogue(out=out, dtype=out.dtype, bias=bias, activation=activation)
    # Tiles of fp8 have the size that its sums need, whatever a group is.
    if out_format.by_group and num_rows <= FEW_ROWS and weight.format != "fp8":
        rows_out = empty_quantized(out, out_format)
        tiles = whole_groups(tiles_of(weight, width, num_rows), out_format.group)
        _gemm_into(replace(epilogue, out=rows_out.data, quantized_out=rows_out), rows, weight, tiles)
        return rows_out
    _gemm_into(epilogue, rows, weight)
    return out


def _dtype(x: Rows, weight: DeviceWeight) -> torch.dtype:
    return x.dtype if isinstance(x, Tensor) else weight.dtype


def _empty_rows(rows: QuantizedRows, width: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(len(rows.data), width, dtype=dtype, device=rows.data.device)


# -- quantizing activations --------------------------------------------------------------------------------------------


def quantized_input(x: Rows, weight: DeviceWeight) -> QuantizedRows:
    """Return the activations that the weight's kernel takes."""
    return quantize_for(x, weight) if isinstance(x, Tensor) else x


def quantize_for(x: Tensor, weight: DeviceWeight) -> QuantizedRows:
    rows = empty_quantized(x, activation_format(weight))
    quantize_into(rows, x)
    return rows


def empty_quantized(x: Tensor, out_format: ActivationFormat) -> QuantizedRows:
    """Allocate quantized rows of the shape of x."""
    return QuantizedRows.empty(len(x), x.shape[1], out_format.group, out_format.dtype, x.device)


def rms_norm_quantized(
    x: Tensor, weight: Tensor, eps: float, weight_offset: float, out_format: ActivationFormat
) -> QuantizedRows:
    """Return `rms_norm`, quantized."""
    rows = empty_quantized(x, out_format)
    rms_norm_quantized_into(rows, x, weight, eps, weight_offset)
    return rows


# -- GEMMs into given tensors -----------------------------------------------------------------------------------------


def quantized_linear_into(
    out: Tensor,
    rows: QuantizedRows,
    weight: DeviceWeight,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    tiles: QuantizedTiles | None = None,
) -> None:
    """Store the rounded result; with a residual, the rounded sum of both. The residual may be out."""
    _gemm_into(QuantizedEpilogue(out=out, dtype=out.dtype, bias=bias, residual=residual), rows, weight, tiles)


def quantized_gated_into(
    out: Tensor,
    rows: QuantizedRows,
    weight: DeviceWeight,
    bias: Tensor | None,
    activation: Activation,
    tiles: QuantizedTiles | None = None,
) -> None:
    """Store the gated result, rounded as a GEMM and a separate gated activation would round it."""
    _gemm_into(QuantizedEpilogue(out=out, dtype=out.dtype, bias=bias, activation=activation), rows, weight, tiles)


def tiles_of(weight: DeviceWeight, num_outputs: int, num_rows: int, *, alone: bool = True) -> QuantizedTiles:
    """Return tiles for num_outputs outputs (half of the weight's, if gated). A GEMM that is not alone runs concurrently
    with others, and needs no warps side by side."""
    match weight.format:
        case "int8" | "w8a8":
            return int8_tiles(weight, num_outputs, num_rows, alone=alone)
        case "int4":
            return int4_tiles(weight, num_outputs, num_rows, alone=alone)
        case "fp8":
            return fp8_tiles(weight, num_outputs, num_rows)


def _gemm_into(
    epilogue: QuantizedEpilogue, rows: QuantizedRows, weight: DeviceWeight, tiles: QuantizedTiles | None = None
) -> None:
    num_outputs = weight.num_outputs if epilogue.activation is None else weight.num_outputs // 2
    expected = (len(rows.data), num_outputs)
    assert epilogue.out.shape == expected and epilogue.out.stride(1) == 1, (
        f"{tuple(epilogue.out.shape)} is not {expected}"
    )
    group = rows.group if isinstance(rows, QuantizedRows) else rows.data.shape[1]
    assert rows.data.shape[1] == weight.num_inputs and group == weight.group, (
        f"rows of {rows.data.shape[1]} in groups of {group} for {weight.num_inputs} in groups of {weight.group}"
    )
    if not len(rows.data):
        return
    match weight.format:
        case "int8" | "w8a8":
            int8_gemm_into(epilogue, rows, weight, tiles)
        case "int4":
            assert isinstance(rows, QuantizedRows), "activations for int4 weights must be quantized by group"
            int4_gemm_into(epilogue, rows, weight, tiles)
        case "fp8":
            fp8_gemm_into(epilogue, rows, weight, tiles)


# -- embeddings -------------------------------------------------------------------------------------------------------


def quantized_embed(tokens: Tensor, table: DeviceWeight) -> Tensor:
    """Look up [T] -> [T, hidden], in the dtype of the model."""
    out = torch.empty(len(tokens), table.num_inputs, dtype=table.dtype, device=table.data.device)
    quantized_embed_into(out, tokens, table)
    return out


def quantized_embed_into(out: Tensor, tokens: Tensor, table: DeviceWeight, factor: float = 1.0) -> None:
    """Store rows of the table, rounded, then multiplied by the factor and rounded again."""
    assert table.format != "int4", "embeddings in int4 have no kernel: make it int8"
    width = table.num_inputs
    if not len(tokens):
        return
    launch(
        _embed_kernel,
        (len(tokens), triton.cdiv(width, _BLOCK)),
        *(out, tokens, table.data, table.scales, out.stride(0), factor),
        WIDTH=width,
        BLOCK=_BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )


@triton.jit
def _embed_kernel(
    out, tokens, table, scales, out_stride, factor, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    pdl_trigger(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    pdl_wait(PDL)
    token = tl.load(tokens + row).to(tl.int64)
    values = tl.load(table + token * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    dtype: tl.constexpr = out.dtype.element_ty
    plain = round_to(values * tl.load(scales + token), dtype)
    tl.store(out + row * out_stride + columns, round_to(plain.to(tl.float32) * factor, dtype), mask=inside)
