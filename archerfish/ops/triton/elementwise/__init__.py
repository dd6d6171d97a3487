"""Triton kernels that compute rows of rows: embeddings, sums, norms, rotation, activation, quantization."""

from archerfish.ops.triton.elementwise.float_order import float_to_order, order_to_float
from archerfish.ops.triton.elementwise.quantized_rows import (
    ActivationFormat,
    QuantizedRows,
    quantize_into,
    quantize_rows,
)
from archerfish.ops.triton.elementwise.row_kernels import (
    add_rounded,
    inverse_rms,
    magnitude,
    nonlinear,
    pairwise_sum,
    quantize_8bit,
    round_to,
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
    "ActivationFormat",
    "QuantizedRows",
    "activate",
    "add",
    "add_rms_norm_into",
    "add_rms_norm_quantized_into",
    "add_rounded",
    "embed",
    "float_to_order",
    "inverse_rms",
    "layer_norm",
    "magnitude",
    "nonlinear",
    "order_to_float",
    "pairwise_sum",
    "quantize_8bit",
    "quantize_into",
    "quantize_rows",
    "rms_norm",
    "rms_norm_quantized_into",
    "rotate",
    "round_to",
    "scale",
    "scale_of",
    "softcap",
]
