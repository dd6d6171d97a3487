"""A model written down as a list of launches: by one pass over tensors without memory, joined where kernels can be.

The list serves any number of rows. It is run line by line, and each line makes its own results; what it reads is found
by the buffer it lies in, so that views of a row (queries, keys, values of one projection) cost nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

RECORDED_ROWS = 2
"""Two, so that the stride from one row to the next can be seen."""


class Input(NamedTuple):
    """Something that every run brings along, by its name."""

    name: str


class Operand(NamedTuple):
    """Rows of a buffer, or a view into each of them."""

    buffer: int
    shape: tuple[int, ...]
    """Of one row."""
    strides: tuple[int, ...]
    """From row to row, then within one."""
    offset: int


class Made(NamedTuple):
    """What a line made, as it made it: perhaps no tensor."""

    buffer: int


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One operation: what it is called with, and the buffers it makes."""

    operation: str
    arguments: tuple[Any, ...]
    """Operands, what other lines made, inputs, and whatever stays the same (weights, numbers)."""
    made: tuple[int, ...]
    read: tuple[Operand | Made, ...] = field(init=False)

    def __post_init__(self) -> None:
        # Once: whoever joins lines asks each of them hundreds of times.
        read = tuple(argument for argument in self.arguments if isinstance(argument, (Operand, Made)))
        object.__setattr__(self, "read", read)


class Recording:
    """Takes down operations; finished, it is a Program."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        """What stands for the inputs in the recorded pass: told apart by identity."""
        self._inputs = {id(thing): Input(name) for name, thing in inputs.items()}
        self._lines: list[Line] = []
        self._buffers: dict[int, int] = {}
        """By the address of the storage in torch."""
        self._alive: list[Any] = [*inputs.values()]

    def line(self, operation: str, arguments: Sequence[Any], *results: tuple[tuple[int, ...], torch.dtype]) -> Any:
        """Write an operation down. Its results, by the shape of a row and the number format, without memory."""
        made = []
        tensors = [torch.empty((RECORDED_ROWS, *shape), dtype=dtype, device="meta") for shape, dtype in results]
        for tensor in tensors:
            made.append(len(self._buffers))
            self._buffers[_storage(tensor)] = made[-1]
            self._alive.append(tensor)
        self._lines.append(Line(operation, tuple(map(self.operand, arguments)), tuple(made)))
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def operand(self, thing: Any) -> Any:
        """What a line keeps of an argument."""
        if id(thing) in self._inputs:
            return self._inputs[id(thing)]
        if not isinstance(thing, Tensor) or not thing.is_meta:
            return thing
        buffer = self._buffers.get(_storage(thing))
        assert buffer is not None, "a tensor that no recorded operation made"
        return Operand(buffer, tuple(thing.shape[1:]), thing.stride(), int(thing.storage_offset()))

    def finish(self, outputs: Sequence[Tensor], joins: Sequence["Join"]) -> "Program":
        kept = tuple(self.operand(output) for output in outputs)
        lines = self._lines
        for join in joins:
            lines = join(lines, {operand.buffer for operand in kept})
        return Program(lines, kept)


Join = Callable[[list[Line], set[int]], list[Line]]
"""Lines with some of them joined; the buffers in the set must be made whatever becomes of the lines."""


class Program:
    def __init__(self, lines: list[Line], outputs: tuple[Operand, ...]) -> None:
        self.lines = lines
        self._outputs = outputs
        last_use: dict[int, int] = {}
        for when, line in enumerate(lines):
            for buffer in (*line.made, *(operand.buffer for operand in line.read)):
                last_use[buffer] = when
        for operand in outputs:
            last_use.pop(operand.buffer, None)
        self._let_go: list[list[int]] = [[] for _ in lines]
        for buffer, when in last_use.items():
            self._let_go[when].append(buffer)

    def run(self, operations: Mapping[str, Callable[..., Any]], inputs: Mapping[str, Any]) -> list[Tensor]:
        """One pass. Memory of what is not read any more is free for what comes."""
        buffers: dict[int, Any] = {}
        for line, let_go in zip(self.lines, self._let_go, strict=True):
            results = operations[line.operation](*[_argument(one, buffers, inputs) for one in line.arguments])
            if len(line.made) == 1:
                buffers[line.made[0]] = results
            elif line.made:
                buffers.update(zip(line.made, results, strict=True))
            for buffer in let_go:
                del buffers[buffer]
        return [_view(operand, buffers) for operand in self._outputs]


def _argument(argument: Any, buffers: dict[int, Any], inputs: Mapping[str, Any]) -> Any:
    if isinstance(argument, Operand):
        return _view(argument, buffers)
    if isinstance(argument, Made):
        return buffers[argument.buffer]
    return inputs[argument.name] if isinstance(argument, Input) else argument


def _view(operand: Operand, buffers: dict[int, Any]) -> Tensor:
    whole: Tensor = buffers[operand.buffer]
    if operand.offset == 0 and tuple(whole.shape[1:]) == operand.shape:
        return whole
    return whole.as_strided((len(whole), *operand.shape), operand.strides, operand.offset)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


# -- joining ----------------------------------------------------------------------------------------------------------


def join_activation(lines: list[Line], kept: set[int]) -> list[Line]:
    """A gated activation is applied by the product that makes its input."""
    makers = _makers(lines)
    joined = list(lines)
    for line in lines:
        if line.operation != "activate" or not line.arguments[2]:
            continue
        maker = makers[line.arguments[0].buffer]
        if maker.operation == "linear" and _is_read_once(maker.made[0], lines, kept):
            gated = Line("gated_linear", (*maker.arguments, line.arguments[1]), line.made)
            joined[joined.index(line)] = gated
            joined.remove(maker)
    return joined


def join_widening(lines: list[Line], kept: set[int]) -> list[Line]:
    """A product whose numbers are wanted in float32 stores them so."""
    makers = _makers(lines)
    joined = list(lines)
    for line in lines:
        if line.operation != "widen":
            continue
        maker = makers[line.arguments[0].buffer]
        if maker.operation == "linear" and _is_read_once(maker.made[0], lines, kept):
            joined[joined.index(line)] = Line("wide_linear", maker.arguments, line.made)
            joined.remove(maker)
    return joined


def join_residual(lines: list[Line], kept: set[int]) -> list[Line]:
    """A sum is made by the product it adds, and normalized at once where a norm follows."""
    makers = _makers(lines)
    joined = list(lines)
    for line in lines:
        if line.operation != "add":
            continue
        residual, y, factor = line.arguments
        maker = makers.get(y.buffer)
        if maker is None or maker.operation != "linear" or not _is_read_once(y.buffer, lines, kept):
            continue
        joined.remove(maker)
        place = joined.index(line)
        following = joined[place + 1] if place + 1 < len(joined) else None
        arguments = (*maker.arguments, residual, factor)
        if following is not None and following.operation == "rms_norm" and _reads_all(following, line.made[0]):
            norm = following.arguments[1:]
            joined[place : place + 2] = [
                Line("linear_add_norm", (*arguments, *norm), (line.made[0], following.made[0]))
            ]
        else:
            joined[place] = Line("linear_add", arguments, line.made)
    return joined


def join_placing(lines: list[Line], kept: set[int]) -> list[Line]:
    """Heads are normalized, rotated and stored by one kernel, straight from the projection that made them."""
    makers = _makers(lines)
    joined = list(lines)
    for line in lines:
        if line.operation != "attend":
            continue
        placing = _placing(line, lines, makers, kept)
        if placing is not None:
            joined.insert(joined.index(placing.replaced[-1]) + 1, placing.line)
            for replaced in placing.replaced:
                joined.remove(replaced)
    used = {operand.buffer for line in joined for operand in line.read} | kept
    # Angles that no line reads by themselves any more.
    return [line for line in joined if line.operation != "embed" or line.made[0] in used]


class _Placing(NamedTuple):
    line: Line
    replaced: list[Line]


def _placing(attend: Line, lines: list[Line], makers: dict[int, Line], kept: set[int]) -> _Placing | None:
    """None where the layer does something that the kernel does not."""
    q = _trace(attend.arguments[0], makers)
    before = lines[lines.index(attend) - 1]
    write = before if before.operation == "write_kv" else None
    k = None if write is None else _trace(write.arguments[0], makers)
    if q is None or q.rotation is None or (write is not None and k is None):
        return None
    angles = makers.get(q.rotation.arguments[1].buffer)
    if angles is None or angles.operation != "embed":
        return None
    replaced = [one for head in (q, k) if head is not None for one in (head.norm, head.rotation) if one is not None]
    replaced += [] if write is None else [write]
    if any(not _is_read_once(one.made[0], lines, kept) for one in replaced if one.made):
        return None
    if k is not None and (
        k.source.buffer != q.source.buffer or k.rotation is None or (k.norm is None) != (q.norm is None)
    ):
        return None
    norms = [None if head is None or head.norm is None else head.norm.arguments[1:] for head in (q, k)]
    line = Line(
        "place",
        (
            _whole_rows(q.source),
            q.source.shape[0],
            None if write is None else write.arguments[2],
            None if write is None else write.arguments[3],
            *angles.arguments,
            *norms,
        ),
        (attend.arguments[0].buffer,),
    )
    return _Placing(line, replaced)


def _whole_rows(operand: Operand) -> Operand:
    """The whole rows that a view lies in."""
    return Operand(operand.buffer, (operand.strides[0],), (operand.strides[0], 1), 0)


class _Heads(NamedTuple):
    """Where queries or keys come from."""

    source: Operand
    """[heads, D] of the projection."""
    norm: Line | None
    rotation: Line | None


def _trace(operand: Operand, makers: dict[int, Line]) -> _Heads | None:
    """Back through rotation and norm of heads to the projection."""
    norm = rotation = None
    maker = makers.get(operand.buffer)
    if maker is not None and maker.operation == "rotate":
        rotation, operand = maker, maker.arguments[0]
        maker = makers.get(operand.buffer)
    if maker is not None and maker.operation == "rms_norm" and len(operand.shape) == 2:
        norm, operand = maker, maker.arguments[0]
        maker = makers.get(operand.buffer)
    if maker is None or maker.operation != "linear" or len(operand.shape) != 2:
        return None
    return _Heads(operand, norm, rotation)


def _makers(lines: list[Line]) -> dict[int, Line]:
    return {buffer: line for line in lines for buffer in line.made}


def _is_read_once(buffer: int, lines: list[Line], kept: set[int]) -> bool:
    return buffer not in kept and sum(operand.buffer == buffer for line in lines for operand in line.read) == 1


def _reads_all(line: Line, buffer: int) -> bool:
    operand = line.arguments[0]
    return isinstance(operand, Operand) and operand.buffer == buffer and len(operand.shape) == 1
