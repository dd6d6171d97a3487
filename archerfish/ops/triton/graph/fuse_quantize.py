"""Fuses the quantization of activations into the operations that compute them.

It applies to rows that only GEMMs with quantized weights read. Runs after all other fusion passes.
"""

from archerfish.ops.triton.device_weight import DeviceWeight
from archerfish.ops.triton.elementwise import ActivationFormat
from archerfish.ops.triton.gemm import activation_format
from archerfish.ops.triton.graph.recording import BufferView, RecordedOp, WholeOutput

_GEMMS = ("linear", "wide_linear", "gated_linear", "linear_add", "linear_add_norm")
_PRODUCERS = ("rms_norm", "linear_add_norm", "gated_linear")
"""Operations that can quantize their rows, which are their last output."""


def fuse_activation_quantize(ops: list[RecordedOp], outputs: set[int]) -> list[RecordedOp]:
    """Let norms and gated GEMMs return their rows in the format that the GEMMs reading them take."""
    formats = {op.outputs: _wanted_format(op.outputs[-1], ops, outputs) for op in ops if _can_quantize(op)}
    quantized = {buffers[-1] for buffers, wanted in formats.items() if wanted is not None}
    fused = []
    for op in ops:
        wanted, reading = formats.get(op.outputs), _reading_quantized(op, quantized)
        fused.append(reading if wanted is None else _quantizing(reading, wanted))
    return fused


def _can_quantize(op: RecordedOp) -> bool:
    """Of the GEMMs, only those with quantized weights can quantize their output."""
    return op.operation in _PRODUCERS and (op.operation != "gated_linear" or _has_quantized_weight(op))


def _quantizing(op: RecordedOp, wanted: ActivationFormat) -> RecordedOp:
    """Return the operation that also quantizes its rows."""
    if op.operation == "rms_norm":
        return RecordedOp("rms_norm_quantized", (*op.arguments, wanted), op.outputs)
    if op.operation == "gated_linear":
        return RecordedOp("gated_linear_quantized", (*op.arguments, wanted), op.outputs)
    *linear_add, weight, eps, weight_offset = op.arguments
    return RecordedOp("linear_add_norm_quantized", (*linear_add, (weight, eps, weight_offset), wanted), op.outputs)


def _wanted_format(rows: int, ops: list[RecordedOp], outputs: set[int]) -> ActivationFormat | None:
    """Return the format that all readers take; None without readers, or if one takes full rows, or if they differ."""
    readers = [op for op in ops if any(view.buffer == rows for view in op.inputs)]
    if rows in outputs or not readers or not all(_multiplies_rows(op, rows) for op in readers):
        return None
    wanted = {activation_format(op.arguments[1]) for op in readers}
    return wanted.pop() if len(wanted) == 1 else None


def _multiplies_rows(op: RecordedOp, rows: int) -> bool:
    """Return whether an operation multiplies whole rows with quantized weights and does nothing else with them."""
    view, *others = op.inputs
    return (
        op.operation in _GEMMS
        and _has_quantized_weight(op)
        and isinstance(view, BufferView)
        and view is op.arguments[0]
        and view.strides == (*view.shape, 1)
        and all(other.buffer != rows for other in others)
    )


def _has_quantized_weight(op: RecordedOp) -> bool:
    return isinstance(op.arguments[1], DeviceWeight)


def _reading_quantized(op: RecordedOp, quantized: set[int]) -> RecordedOp:
    """Return the operation with its first argument as it was returned, if that is quantized."""
    first = op.arguments[0] if op.arguments else None
    if not isinstance(first, BufferView) or first.buffer not in quantized:
        return op
    return RecordedOp(op.operation, (WholeOutput(first.buffer), *op.arguments[1:]), op.outputs)
