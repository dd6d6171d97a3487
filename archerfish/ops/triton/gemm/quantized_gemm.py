"""Products with weights of few bits, and embeddings from them: the operations; each format has kernels of its own.

A row's bits depend on that row and the weight alone, whatever else is in the step.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.triton.device_weight import DeviceWeight
from archerfish.ops.triton.elementwise import QuantizedRows, Rounding, narrow, quantize_into, rms_norm_quantized_into
from archerfish.ops.triton.gemm.fp8_gemm import fp8_product_into, fp8_tiles
from archerfish.ops.triton.gemm.int4_gemm import int4_product_into, int4_tiles
from archerfish.ops.triton.gemm.int8_gemm import int8_product_into, int8_tiles
from archerfish.ops.triton.gemm.quantized_tiles import FEW_ROWS, QuantizedEpilogue, QuantizedTiles, whole_groups
from archerfish.ops.triton.runtime import await_inputs, launch, let_next_start

_BLOCK = 1024


Rows = Tensor | QuantizedRows
"""[T, K] as a product finds them: perhaps rounded by whoever made them, as `rounding_of` its weight says."""


def rounding_of(weight: DeviceWeight) -> Rounding:
    return Rounding(torch.float8_e4m3fn if weight.format == "fp8" else torch.int8, weight.group)


# -- products ---------------------------------------------------------------------------------------------------------


def quantized_linear(
    x: Rows, weight: DeviceWeight, bias: Tensor | None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """[T, K] x [N, K] -> [T, N], in the type of x, of rounded rows in the model's; perhaps stored in a wider one."""
    rows = prepared(x, weight)
    dtype = _dtype(x, weight)
    out = _room(rows, weight.num_outputs, out_dtype or dtype)
    _product_into(QuantizedEpilogue(out=out, dtype=dtype, bias=bias), rows, weight)
    return out


def quantized_add(x: Rows, weight: DeviceWeight, bias: Tensor | None, residual: Tensor) -> Tensor:
    """residual + the product."""
    out = torch.empty_like(residual)
    quantized_linear_into(out, prepared(x, weight), weight, bias, residual)
    return out


def quantized_gated(x: Rows, weight: DeviceWeight, bias: Tensor | None, activation: Activation) -> Tensor:
    """[T, K] x [2I, K], gate and then up -> activation(gate) * up, [T, I]."""
    rows = prepared(x, weight)
    out = _room(rows, weight.num_outputs // 2, _dtype(x, weight))
    quantized_gated_into(out, rows, weight, bias, activation)
    return out


def rounded_gated(
    x: Rows, weight: DeviceWeight, bias: Tensor | None, activation: Activation, rounding: Rounding
) -> Rows:
    """The same for a product that wants it rounded so: few rows in groups are, others come in full."""
    rows = prepared(x, weight)
    num_rows, width = len(rows.data), weight.num_outputs // 2
    out = _room(rows, width, _dtype(x, weight))
    epilogue = QuantizedEpilogue(out=out, dtype=out.dtype, bias=bias, activation=activation)
    # Tiles of fp8 have the size that its sums need, whatever a group is.
    if rounding.by_group and num_rows <= FEW_ROWS and weight.format != "fp8":
        made = room_for(out, rounding)
        tiles = whole_groups(tiles_of(weight, width, num_rows), rounding.group)
        _product_into(replace(epilogue, out=made.data, rounded=made), rows, weight, tiles)
        return made
    _product_into(epilogue, rows, weight)
    return out


def _dtype(x: Rows, weight: DeviceWeight) -> torch.dtype:
    return x.dtype if isinstance(x, Tensor) else weight.dtype


def _room(rows: QuantizedRows, width: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(len(rows.data), width, dtype=dtype, device=rows.data.device)


# -- rounding ---------------------------------------------------------------------------------------------------------


def prepared(x: Rows, weight: DeviceWeight) -> QuantizedRows:
    """As the product's kernel takes them."""
    return quantize_for(x, weight) if isinstance(x, Tensor) else x


def quantize_for(x: Tensor, weight: DeviceWeight) -> QuantizedRows:
    rows = room_for(x, rounding_of(weight))
    quantize_into(rows, x)
    return rows


def room_for(x: Tensor, rounding: Rounding) -> QuantizedRows:
    """For as many rows of the same width."""
    return QuantizedRows.empty(len(x), x.shape[1], rounding.group, rounding.dtype, x.device)


def rounded_norm(x: Tensor, weight: Tensor, eps: float, weight_offset: float, rounding: Rounding) -> QuantizedRows:
    """What rms_norm gives, rounded."""
    rows = room_for(x, rounding)
    rms_norm_quantized_into(rows, x, weight, eps, weight_offset)
    return rows


# -- products into given tensors --------------------------------------------------------------------------------------


def quantized_linear_into(
    out: Tensor,
    rows: QuantizedRows,
    weight: DeviceWeight,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    tiles: QuantizedTiles | None = None,
) -> None:
    """The product, rounded; with a residual, what comes of adding that, rounded again. The residual may be out."""
    _product_into(QuantizedEpilogue(out=out, dtype=out.dtype, bias=bias, residual=residual), rows, weight, tiles)


def quantized_gated_into(
    out: Tensor,
    rows: QuantizedRows,
    weight: DeviceWeight,
    bias: Tensor | None,
    activation: Activation,
    tiles: QuantizedTiles | None = None,
) -> None:
    """Rounds where a product and then a gated activation would."""
    _product_into(QuantizedEpilogue(out=out, dtype=out.dtype, bias=bias, activation=activation), rows, weight, tiles)


def tiles_of(weight: DeviceWeight, num_outputs: int, num_rows: int, *, alone: bool = True) -> QuantizedTiles:
    """How a product is cut, of so many outputs; half of the weight's, if it is gated. One that is not alone has others
    at work beside it, and needs no warps side by side."""
    match weight.format:
        case "int8" | "w8a8":
            return int8_tiles(weight, num_outputs, num_rows, alone=alone)
        case "int4":
            return int4_tiles(weight, num_outputs, num_rows, alone=alone)
        case "fp8":
            return fp8_tiles(weight, num_outputs, num_rows)


def _product_into(
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
            int8_product_into(epilogue, rows, weight, tiles)
        case "int4":
            assert isinstance(rows, QuantizedRows), "rows for weights of four bits are rounded before, by group"
            int4_product_into(epilogue, rows, weight, tiles)
        case "fp8":
            fp8_product_into(epilogue, rows, weight, tiles)


# -- embeddings -------------------------------------------------------------------------------------------------------


def quantized_embed(tokens: Tensor, table: DeviceWeight) -> Tensor:
    """[T] -> [T, hidden], in the type of the model."""
    out = torch.empty(len(tokens), table.num_inputs, dtype=table.dtype, device=table.data.device)
    quantized_embed_into(out, tokens, table)
    return out


def quantized_embed_into(out: Tensor, tokens: Tensor, table: DeviceWeight, factor: float = 1.0) -> None:
    """Rows of the table, rounded, then multiplied by the factor and rounded again."""
    assert table.format != "int4", "a vocabulary of four bits has no kernel: make it int8"
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
    out, tokens, table, scales, out_stride, factor, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    let_next_start(EARLY)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    await_inputs(EARLY)
    token = tl.load(tokens + row).to(tl.int64)
    values = tl.load(table + token * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    dtype: tl.constexpr = out.dtype.element_ty
    plain = narrow(values * tl.load(scales + token), dtype)
    tl.store(out + row * out_stride + columns, narrow(plain.to(tl.float32) * factor, dtype), mask=inside)
