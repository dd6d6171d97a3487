"""Recorded operations of a forward pass, their fusion, and the kernels that a replayed step begins and ends with."""

from archerfish.ops.triton.graph.fuse_quantize import join_rounding
from archerfish.ops.triton.graph.recording import (
    RECORDED_ROWS,
    Program,
    Recording,
    join_activation,
    join_placing,
    join_residual,
    join_widening,
)
from archerfish.ops.triton.graph.step_kernels import find_tokens, keep_tokens, scatter, select_into

__all__ = [
    "RECORDED_ROWS",
    "Program",
    "Recording",
    "find_tokens",
    "join_activation",
    "join_placing",
    "join_residual",
    "join_rounding",
    "join_widening",
    "keep_tokens",
    "scatter",
    "select_into",
]
