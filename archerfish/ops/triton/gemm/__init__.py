"""Matrix multiplications by Triton kernels and cuBLAS, in 16-bit floats and with quantized weights."""

from archerfish.ops.triton.gemm.float_gemm import FloatEpilogue, linear_by_kernel
from archerfish.ops.triton.gemm.float_tiles import FloatTiles, candidate_tiles, chosen_tiles, num_parts
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
    linear_add_rounded_norm,
    row_dtype,
    walk_in_order,
    wide_linear,
)
from archerfish.ops.triton.gemm.quantized_gemm import quantize_for, rounded_gated, rounded_norm, rounding_of, tiles_of
from archerfish.ops.triton.gemm.quantized_tiles import QuantizedTiles, finish

__all__ = [
    "FloatEpilogue",
    "FloatTiles",
    "Norm",
    "QuantizedTiles",
    "candidate_tiles",
    "chosen_tiles",
    "embed",
    "finish",
    "fp8_tile",
    "gated_linear",
    "int4_tile",
    "int8_tile",
    "linear",
    "linear_add",
    "linear_add_norm",
    "linear_add_rounded_norm",
    "linear_by_kernel",
    "num_parts",
    "quantize_for",
    "rounded_gated",
    "rounded_norm",
    "rounding_of",
    "row_dtype",
    "tiles_of",
    "walk_in_order",
    "wide_linear",
]
