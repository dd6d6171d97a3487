"""How Triton kernels are compiled, launched and tuned."""

from archerfish.ops.triton.runtime.alignment import summing_vector_of, vector_of
from archerfish.ops.triton.runtime.kernel_launch import (
    INTERPRETED,
    compile_cache_directory,
    compile_only,
    dot,
    is_compile_only,
    launch,
    pdl_trigger,
    pdl_wait,
    prefetch,
    start_compiler,
    warps_for,
)
from archerfish.ops.triton.runtime.tuning import GemmShape, TunedGemm, kernel_version, stored_tiles, tune_gemm

__all__ = [
    "INTERPRETED",
    "GemmShape",
    "TunedGemm",
    "compile_cache_directory",
    "compile_only",
    "dot",
    "is_compile_only",
    "kernel_version",
    "launch",
    "pdl_trigger",
    "pdl_wait",
    "prefetch",
    "start_compiler",
    "stored_tiles",
    "summing_vector_of",
    "tune_gemm",
    "vector_of",
    "warps_for",
]
