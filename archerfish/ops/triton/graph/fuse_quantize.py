"""Finds rows that only products with weights of few bits read, and has whoever makes them round them.

Knows recorded lines, joined as far as they can be otherwise; how rows are rounded is `quantized`'s to say.
"""

from archerfish.ops.triton.device_weight import DeviceWeight
from archerfish.ops.triton.elementwise import Rounding
from archerfish.ops.triton.gemm import rounding_of
from archerfish.ops.triton.graph.recording import Line, Made, Operand

_PRODUCTS = ("linear", "wide_linear", "gated_linear", "linear_add", "linear_add_norm")
_MAKERS = ("rms_norm", "linear_add_norm", "gated_linear")
"""Their rows are the last of what they make."""


def join_rounding(lines: list[Line], kept: set[int]) -> list[Line]:
    """Norms and gated products leave their rows as the products that read them want them."""
    roundings = {line.made: _rounding(line.made[-1], lines, kept) for line in lines if _can_round(line)}
    rounded = {made[-1] for made, rounding in roundings.items() if rounding is not None}
    joined = []
    for line in lines:
        rounding, reading = roundings.get(line.made), _of_rounded(line, rounded)
        joined.append(reading if rounding is None else _rounding_line(reading, rounding))
    return joined


def _can_round(line: Line) -> bool:
    """A product only by the kernels of weights of few bits."""
    return line.operation in _MAKERS and (line.operation != "gated_linear" or _is_quantized(line))


def _rounding_line(line: Line, rounding: Rounding) -> Line:
    """The same, which leaves its rows rounded."""
    if line.operation == "rms_norm":
        return Line("rounded_norm", (*line.arguments, rounding), line.made)
    if line.operation == "gated_linear":
        return Line("rounded_gated_linear", (*line.arguments, rounding), line.made)
    *product, weight, eps, weight_offset = line.arguments
    return Line("linear_add_rounded_norm", (*product, (weight, eps, weight_offset), rounding), line.made)


def _rounding(rows: int, lines: list[Line], kept: set[int]) -> Rounding | None:
    """What all readers want; None where there are none, or one wants the rows themselves, or they differ."""
    readers = [line for line in lines if any(operand.buffer == rows for operand in line.read)]
    if rows in kept or not readers or not all(_reads_as_input(line, rows) for line in readers):
        return None
    wanted = {rounding_of(line.arguments[1]) for line in readers}
    return wanted.pop() if len(wanted) == 1 else None


def _reads_as_input(line: Line, rows: int) -> bool:
    """Whether it multiplies them as they lie, with weights of few bits, and does nothing else with them."""
    operand, *others = line.read
    return (
        line.operation in _PRODUCTS
        and _is_quantized(line)
        and isinstance(operand, Operand)
        and operand is line.arguments[0]
        and operand.strides == (*operand.shape, 1)
        and all(other.buffer != rows for other in others)
    )


def _is_quantized(line: Line) -> bool:
    return isinstance(line.arguments[1], DeviceWeight)


def _of_rounded(line: Line, rounded: set[int]) -> Line:
    """The same, reading rows as they were made if they are rounded."""
    first = line.arguments[0] if line.arguments else None
    if not isinstance(first, Operand) or first.buffer not in rounded:
        return line
    return Line(line.operation, (Made(first.buffer), *line.arguments[1:]), line.made)
