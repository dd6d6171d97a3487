"""How Triton kernels are compiled, launched and tuned."""

from archerfish.ops.triton.runtime.alignment import summing_vector_of, vector_of
from archerfish.ops.triton.runtime.kernel_launch import (
    INTERPRETED,
    await_inputs,
    compiled_directory,
    dot,
    is_rehearsal,
    launch,
    let_next_start,
    prefetch,
    rehearsal,
    wake_compiler,
    warps_for,
)
from archerfish.ops.triton.runtime.tuning import Product, Tuned, kernel_version, stored, tune

__all__ = [
    "INTERPRETED",
    "Product",
    "Tuned",
    "await_inputs",
    "compiled_directory",
    "dot",
    "is_rehearsal",
    "kernel_version",
    "launch",
    "let_next_start",
    "prefetch",
    "rehearsal",
    "stored",
    "summing_vector_of",
    "tune",
    "vector_of",
    "wake_compiler",
    "warps_for",
]
