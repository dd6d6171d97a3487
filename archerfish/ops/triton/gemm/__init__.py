"""Matrix multiplications by Triton kernels and cuBLAS, in 16-bit floats and with quantized weights."""

from archerfish.ops.triton.gemm.float_gemm import FloatEpilogue, float_gemm_into
from archerfish.ops.triton.gemm.float_tiles import FloatTiles, candidate_tiles, chosen_tiles, num_k_splits
from archerfish.ops.triton.gemm.fp8_gemm import fp8_tile
from archerfish.ops.triton.gemm.int4_gemm import int4_tile
from archerfish.ops.triton.gemm.int8_gemm import int8_tile
from archerfish.ops.triton.gemm.linear_ops import (
    Norm,
    embed,
    gated_linear,
    linear,
    linear_add,
    linear_add_norm,
    linear_add_norm_quantized,
    require_ordered_cublas,
    row_dtype,
    wide_linear,
)
from archerfish.ops.triton.gemm.quantized_gemm import (
    activation_format,
    gated_linear_quantized,
    quantize_for,
    rms_norm_quantized,
    tiles_of,
)
from archerfish.ops.triton.gemm.quantized_tiles import QuantizedTiles, store_epilogue

__all__ = [
    "FloatEpilogue",
    "FloatTiles",
    "Norm",
    "QuantizedTiles",
    "activation_format",
    "candidate_tiles",
    "chosen_tiles",
    "embed",
    "float_gemm_into",
    "fp8_tile",
    "gated_linear",
    "gated_linear_quantized",
    "int4_tile",
    "int8_tile",
    "linear",
    "linear_add",
    "linear_add_norm",
    "linear_add_norm_quantized",
    "num_k_splits",
    "quantize_for",
    "require_ordered_cublas",
    "rms_norm_quantized",
    "row_dtype",
    "store_epilogue",
    "tiles_of",
    "wide_linear",
]
