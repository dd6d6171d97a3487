"""Operations on rows: embeddings, sums, norms, rotation, activation.

Each has a function that writes into given tensors, which captured graphs need, and tensor that allocates its output.
Columns are contiguous, rows may have any stride.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.triton.elementwise import row_kernels
from archerfish.ops.triton.elementwise.quantized_rows import QuantizedRows
from archerfish.ops.triton.runtime import launch, summing_vector_of, vector_of, warps_for

WIDEST_NORM = 16384
"""Widest row of a norm, which holds the row in registers."""
_BLOCK = 1024


# -- number by number -------------------------------------------------------------------------------------------------


def embed(tokens: Tensor, table: Tensor) -> Tensor:
    out = table.new_empty(len(tokens), table.shape[1])
    embed_into(out, tokens, table)
    return out


def embed_into(out: Tensor, tokens: Tensor, table: Tensor, factor: float = 1.0) -> None:
    """Look up rows of the table, multiplied by the factor. Tokens are contiguous int32 or int64."""
    vector = vector_of(table.shape[1], out, table)
    arguments = (out, tokens, table, _stride(out, vector), _stride(table, vector), factor)
    _launch_by_block(row_kernels.embed_kernel, out, *arguments, VECTOR=vector)


def add(x: Tensor, y: Tensor, factor: float) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    add_into(out, x, y, factor)
    return out


def add_into(out: Tensor, x: Tensor, y: Tensor, factor: float) -> None:
    """Set out = x + y * factor. out may be x or y."""
    vector = vector_of(x.shape[1], out, x, y)
    strides = (_stride(tensor, vector) for tensor in (out, x, y))
    _launch_by_block(row_kernels.add_kernel, out, out, x, y, *strides, factor, VECTOR=vector)


def scale(x: Tensor, factor: float) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    scale_into(out, x, factor)
    return out


def scale_into(out: Tensor, x: Tensor, factor: float) -> None:
    """Set out = x * factor. out may be x."""
    _scale_into(out, x, factor, caps=False)


def softcap(x: Tensor, cap: float) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    softcap_into(out, x, cap)
    return out


def softcap_into(out: Tensor, x: Tensor, cap: float) -> None:
    """Set out = cap * tanh(x / cap). out may be x."""
    _scale_into(out, x, cap, caps=True)


def _scale_into(out: Tensor, x: Tensor, number: float, caps: bool) -> None:
    vector = vector_of(x.shape[1], out, x)
    strides = (_stride(out, vector), _stride(x, vector))
    _launch_by_block(row_kernels.scale_kernel, out, out, x, *strides, number, CAPS=caps, VECTOR=vector)


def activate(x: Tensor, activation: Activation, gated: bool) -> Tensor:
    out = x.new_empty(len(x), x.shape[1] // 2 if gated else x.shape[1])
    activate_into(out, x, activation, gated)
    return out


def activate_into(out: Tensor, x: Tensor, activation: Activation, gated: bool) -> None:
    vector = vector_of(out.shape[1], out, x)
    strides = (_stride(out, vector), _stride(x, vector))
    settings = {"ACTIVATION": activation, "GATED": gated, "VECTOR": vector}
    _launch_by_block(row_kernels.activate_kernel, out, out, x, *strides, **settings)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    rotate_into(out, x, angles)
    return out


def rotate_into(out: Tensor, x: Tensor, angles: Tensor) -> None:
    """Rotate heads by angles. out may be x."""
    num_tokens, num_heads, width = x.shape
    half = angles.shape[1] // 2
    block = triton.next_power_of_2(half)
    heads = min(triton.next_power_of_2(num_heads), max(1, 512 // block))
    vector = vector_of(half, out, x, angles)
    launch(
        row_kernels.rotate_kernel,
        (num_tokens, triton.cdiv(num_heads, heads)),
        *(out, x, angles),
        *(tensor.stride(dimension) // vector for tensor in (out, x) for dimension in (0, 1)),
        _stride(angles, vector),
        NUM_HEADS=num_heads,
        WIDTH=width,
        HALF=half,
        HEADS=heads,
        BLOCK=block,
        VECTOR=vector,
        num_warps=4,
        enable_fp_fusion=False,
    )


# -- norms ------------------------------------------------------------------------------------------------------------


def rms_norm(x: Tensor, weight: Tensor, eps: float, weight_offset: float) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    rms_norm_into(out, x, weight, eps, weight_offset)
    return out


def rms_norm_into(out: Tensor, x: Tensor, weight: Tensor, eps: float, weight_offset: float) -> None:
    """Normalize rows by their root mean square. out may be x."""
    _rms_norm_into(_Norm(out, x, weight, eps, weight_offset))


def rms_norm_quantized_into(
    rounded: QuantizedRows, x: Tensor, weight: Tensor, eps: float, weight_offset: float
) -> None:
    """Compute `rms_norm`, quantized to eight bits."""
    _rms_norm_into(_Norm(rounded.data, x, weight, eps, weight_offset, rounded=rounded))


def add_rms_norm_into(
    out: Tensor, total: Tensor, x: Tensor, y: Tensor, factor: float, weight: Tensor, eps: float, weight_offset: float
) -> None:
    """Set total = x + y * factor, and out to its norm. total may be x."""
    _rms_norm_into(_Norm(out, x, weight, eps, weight_offset, y=y, factor=factor, total=total))


def add_rms_norm_quantized_into(
    rounded: QuantizedRows,
    total: Tensor,
    x: Tensor,
    y: Tensor,
    factor: float,
    weight: Tensor,
    eps: float,
    weight_offset: float,
) -> None:
    """Compute `add_rms_norm_into`, with the norm quantized to eight bits. total may be x."""
    _rms_norm_into(_Norm(rounded.data, x, weight, eps, weight_offset, y=y, factor=factor, total=total, rounded=rounded))


class _Norm(NamedTuple):
    out: Tensor
    x: Tensor
    weight: Tensor
    eps: float
    weight_offset: float
    y: Tensor | None = None
    factor: float = 1.0
    total: Tensor | None = None
    rounded: QuantizedRows | None = None


def _rms_norm_into(norm: _Norm) -> None:
    width = norm.x.shape[-1]
    added = [tensor for tensor in (norm.y, norm.total) if tensor is not None]
    vector = summing_vector_of(width, norm.x, norm.out, norm.weight, *added)
    rows = _rows(norm.x, vector)
    scales, sums = (None, None) if norm.rounded is None else (norm.rounded.scales, norm.rounded.sums)
    launch(
        row_kernels.rms_norm_kernel,
        (rows.num_rows,),
        *(norm.out, scales, sums, norm.total, norm.x, norm.y, norm.weight),
        *(*_split_rows(norm.out, rows.num_inner, vector), *rows.strides),
        *(0 if tensor is None else _stride(tensor, vector) for tensor in (norm.y, norm.total)),
        0 if sums is None else sums.stride(0),
        *(norm.factor, norm.eps, norm.weight_offset),
        GROUP=None if norm.rounded is None else norm.rounded.group,
        NUM_INNER=rows.num_inner,
        VECTOR=vector,
        **_whole_row(width),
    )


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    layer_norm_into(out, x, weight, bias, eps)
    return out


def layer_norm_into(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> None:
    """Normalize rows by mean and variance. out may be x."""
    width = x.shape[-1]
    vector = summing_vector_of(width, x, out, weight, bias)
    rows = _rows(x, vector)
    strides = (*_split_rows(out, rows.num_inner, vector), *rows.strides)
    settings = {"NUM_INNER": rows.num_inner, "VECTOR": vector, **_whole_row(width)}
    launch(row_kernels.layer_norm_kernel, (rows.num_rows,), out, x, weight, bias, *strides, eps, **settings)


# -- how rows lie -----------------------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    num_rows: int
    num_inner: int
    strides: tuple[int, int]
    """Strides of the outer and the inner dimension, in units of `vector` numbers."""


def _rows(x: Tensor, vector: int) -> _Rows:
    """View rows of any leading shape as two dimensions of rows."""
    if x.dim() < 3 or x.is_contiguous():
        flat = x.view(-1, x.shape[-1])
        return _Rows(len(flat), 1, (_stride(flat, vector), 0))
    x = x.view(-1, *x.shape[-2:])
    return _Rows(len(x) * x.shape[1], x.shape[1], (x.stride(0) // vector, x.stride(1) // vector))


def _split_rows(x: Tensor, num_inner: int, vector: int) -> tuple[int, int]:
    """Return the strides of rows that are counted as another tensor's are, with num_inner in the inner dimension."""
    x = x.view(-1, num_inner, x.shape[-1])
    return x.stride(0) // vector, x.stride(1) // vector


def _stride(x: Tensor, vector: int) -> int:
    return x.stride(0) // vector


def _launch_by_block(kernel: Any, out: Tensor, *arguments: Any, **settings: Any) -> None:
    """Launch several programs per row, for operations without reductions."""
    num_rows, width = out.shape
    block = min(triton.next_power_of_2(width), _BLOCK)
    grid = (num_rows, triton.cdiv(width, block))
    launch(kernel, grid, *arguments, WIDTH=width, BLOCK=block, num_warps=4, enable_fp_fusion=False, **settings)


def _whole_row(width: int) -> dict[str, Any]:
    """Return the settings of kernels that hold a row in registers."""
    assert width <= WIDEST_NORM, f"rows of {width} numbers are wider than {WIDEST_NORM}"
    block = triton.next_power_of_2(width)
    return {"WIDTH": width, "BLOCK": block, "num_warps": warps_for(block), "enable_fp_fusion": False}
