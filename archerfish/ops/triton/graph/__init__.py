"""Recorded operations of a forward pass, their fusion, and the kernels that a replayed step begins and ends with."""

from archerfish.ops.triton.graph.fuse_quantize import fuse_activation_quantize
from archerfish.ops.triton.graph.fusion import (
    fuse_activation,
    fuse_float_output,
    fuse_qk_norm_rope_kv_write,
    fuse_residual,
)
from archerfish.ops.triton.graph.recording import RECORDED_ROWS, TritonProgram, TritonRecording
from archerfish.ops.triton.graph.step_kernels import gather_tokens, scatter, select_into, store_tokens

__all__ = [
    "RECORDED_ROWS",
    "TritonProgram",
    "TritonRecording",
    "fuse_activation",
    "fuse_activation_quantize",
    "fuse_float_output",
    "fuse_qk_norm_rope_kv_write",
    "fuse_residual",
    "gather_tokens",
    "scatter",
    "select_into",
    "store_tokens",
]
