"""Triton kernels that compute rows of rows: embeddings, sums, norms, rotation, activation, quantization."""

from archerfish.ops.triton.elementwise.float_order import number_of, order_of
from archerfish.ops.triton.elementwise.quantized_rows import QuantizedRows, Rounding, quantize_into, quantize_rows
from archerfish.ops.triton.elementwise.row_kernels import (
    added,
    added_in_pairs,
    eight_bits,
    inverse_size,
    magnitude,
    narrow,
    nonlinear,
    scale_of,
)
from archerfish.ops.triton.elementwise.row_ops import (
    activate,
    add,
    add_rms_norm_into,
    add_rms_norm_quantized_into,
    embed,
    layer_norm,
    rms_norm,
    rms_norm_quantized_into,
    rotate,
    scale,
    softcap,
)

__all__ = [
    "QuantizedRows",
    "Rounding",
    "activate",
    "add",
    "add_rms_norm_into",
    "add_rms_norm_quantized_into",
    "added",
    "added_in_pairs",
    "eight_bits",
    "embed",
    "inverse_size",
    "layer_norm",
    "magnitude",
    "narrow",
    "nonlinear",
    "number_of",
    "order_of",
    "quantize_into",
    "quantize_rows",
    "rms_norm",
    "rms_norm_quantized_into",
    "rotate",
    "scale",
    "scale_of",
    "softcap",
]
