"""Products with weights of few bits, and embeddings from them: the operations; each format has kernels of its own.

A row's bits depend on that row and the weight alone, whatever else is in the step.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.triton.device_weight import DeviceWeight
from archerfish.ops.triton.fp8_product import fp8_product_into
from archerfish.ops.triton.int4_product import int4_product_into
from archerfish.ops.triton.int8_product import int8_product_into
from archerfish.ops.triton.launch import await_inputs, launch, let_next_start
from archerfish.ops.triton.product_tiles import Ending
from archerfish.ops.triton.quantized_rows import QuantizedRows, quantize_into
from archerfish.ops.triton.row_kernels import narrow
from archerfish.ops.triton.rows import rms_norm_quantized_into

_BLOCK = 1024


class Rounding(NamedTuple):
    """What activations become before they are multiplied."""

    dtype: torch.dtype
    group: int
    """Inputs that share a scale; all of a row, if there are no groups."""


Rows = Tensor | QuantizedRows
"""[T, K] as a product finds them: perhaps rounded by whoever made them, as `rounding_of` its weight says."""


def rounding_of(weight: DeviceWeight) -> Rounding:
    return Rounding(torch.float8_e4m3fn if weight.format == "fp8" else torch.int8, weight.group)


def quantized_linear(x: Rows, weight: DeviceWeight, bias: Tensor | None) -> Tensor:
    """[T, K] x [N, K] -> [T, N], in the type of x; of rounded rows, in that of the model."""
    rows = quantize_for(x, weight)
    out = _room(x, rows, weight, weight.num_outputs)
    quantized_linear_into(out, rows, weight, bias)
    return out


def quantized_gated(x: Rows, weight: DeviceWeight, bias: Tensor | None, activation: Activation) -> Tensor:
    """[T, K] x [2I, K], gate and then up -> activation(gate) * up, [T, I]."""
    rows = quantize_for(x, weight)
    out = _room(x, rows, weight, weight.num_outputs // 2)
    quantized_gated_into(out, rows, weight, bias, activation)
    return out


def _room(x: Rows, rows: QuantizedRows, weight: DeviceWeight, width: int) -> Tensor:
    dtype = x.dtype if isinstance(x, Tensor) else weight.dtype
    return torch.empty(len(rows.data), width, dtype=dtype, device=rows.data.device)


def quantize_for(x: Rows, weight: DeviceWeight) -> QuantizedRows:
    if isinstance(x, QuantizedRows):
        return x
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


def quantized_linear_into(
    out: Tensor, rows: QuantizedRows, weight: DeviceWeight, bias: Tensor | None = None, residual: Tensor | None = None
) -> None:
    """The product, rounded; with a residual, what comes of adding that, rounded again. The residual may be out."""
    _product_into(Ending(out=out, bias=bias, residual=residual), rows, weight)


def quantized_gated_into(
    out: Tensor, rows: QuantizedRows, weight: DeviceWeight, bias: Tensor | None, activation: Activation
) -> None:
    """Rounds where a product and then a gated activation would."""
    _product_into(Ending(out=out, bias=bias, activation=activation), rows, weight)


def _product_into(ending: Ending, rows: QuantizedRows, weight: DeviceWeight) -> None:
    num_outputs = weight.num_outputs if ending.activation is None else weight.num_outputs // 2
    expected = (len(rows.data), num_outputs)
    assert ending.out.shape == expected and ending.out.stride(1) == 1, f"{tuple(ending.out.shape)} is not {expected}"
    assert rows.data.shape[1] == weight.num_inputs and rows.group == weight.group, (
        f"rows of {rows.data.shape[1]} in groups of {rows.group} for {weight.num_inputs} in groups of {weight.group}"
    )
    if not len(rows.data):
        return
    match weight.format:
        case "int8" | "w8a8":
            int8_product_into(ending, rows, weight)
        case "int4":
            int4_product_into(ending, rows, weight)
        case "fp8":
            fp8_product_into(ending, rows, weight)


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
