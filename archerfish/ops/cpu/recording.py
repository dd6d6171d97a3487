"""A program written down from one pass through a model: operations joined where they can be, memory laid out once.

The pass runs over a few rows only to see strides; the program then serves any number of rows up to the most there may
be, because every operation treats rows alike.
"""

import bisect
import ctypes
from ctypes import Structure
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archerfish.ops.cpu import program
from archerfish.ops.cpu.program import Groups, Index, Operation, Packed, Routes, Rows
from archerfish.ops.packed import PackedWeight

RECORDED_ROWS = 2
"""Two, so that the stride from one row to the next can be seen."""
_ALIGNMENT = 64

# For each operation, the operands that it reads rows from and those that it writes rows to.
READS: dict[Operation, tuple[str, ...]] = {
    Operation.EMBED: (),
    Operation.ADD: ("left", "right"),
    Operation.SCALE: ("input",),
    Operation.SOFTCAP: ("input",),
    Operation.RMS_NORM: ("input", "added"),
    Operation.LAYER_NORM: ("input", "added"),
    Operation.ROTATE: ("input", "angles"),
    Operation.ACTIVATE: ("input",),
    Operation.PACK: ("input",),
    Operation.LINEAR: ("input",),
    Operation.WRITE_KV: ("keys", "values", "angles"),
    Operation.ATTEND: ("queries", "angles"),
    Operation.ROUTE: ("logits",),
    Operation.GROUP: ("routes",),
    Operation.GATHER: ("input", "routes", "groups"),
    Operation.EXPERT_LINEAR: ("input", "groups"),
    Operation.COMBINE: ("input", "routes", "groups"),
    Operation.SELECT: ("input",),
}
WRITES: dict[Operation, tuple[str, ...]] = {
    Operation.RMS_NORM: ("out", "sum", "packed"),
    Operation.LAYER_NORM: ("out", "sum", "packed"),
    Operation.ACTIVATE: ("out", "packed"),
    Operation.PACK: ("packed",),
    Operation.WRITE_KV: (),
    **{
        operation: ("out",)
        for operation in Operation
        if operation
        not in (Operation.RMS_NORM, Operation.LAYER_NORM, Operation.ACTIVATE, Operation.PACK, Operation.WRITE_KV)
    },
}


POINTERS: dict[type[Structure], tuple[str, ...]] = {
    Rows: ("data",),
    Packed: ("data", "scales", "sums"),
    Routes: ("chosen", "weights"),
    Groups: ("places", "blocks", "num_blocks"),
}
"""The fields of an operand that point to numbers which change from step to step."""


@dataclass(slots=True)
class _Line:
    operation: Operation
    operands: Any
    selected: bool
    """About the rows that the step picked."""


@dataclass(frozen=True, slots=True)
class _Buffer:
    """Rows that exist during a step only."""

    start: int
    """Its address in the recorded pass."""
    row_bytes: int
    max_rows: int
    pinned: bool


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions, and everything they point to."""

    instructions: program.Instructions
    rows: tuple[Tensor, ...]
    """Inputs to fill in and outputs to read, [most rows, width] each: those made after a selection for picked rows."""
    alive: tuple[Any, ...]


class Recording:
    """Takes down operations; finished, it is a Program."""

    def __init__(
        self, tokens: Tensor | None = None, positions: Tensor | None = None, slots: tuple[Tensor, ...] = ()
    ) -> None:
        self._tokens, self._positions, self._slots = tokens, positions, slots
        self._lines: list[_Line] = []
        self._tensors: list[Tensor] = []
        """Of the pass: their addresses stay taken until all is laid out."""
        self._alive: list[Any] = []
        self._packed: dict[tuple[int, int, int], program.Packed] = {}
        self._selected = False
        self._selected_tensors: set[int] = set()
        """By their addresses."""

    # -- writing down -------------------------------------------------------------------------------------------------

    def write_down(self, operation: Operation, operands: Structure, alive: tuple[Any, ...]) -> None:
        self._lines.append(_Line(operation, operands, self._selected))
        self._alive += [thing for thing in alive if thing is not None]

    def select(self) -> None:
        """From here on it is about the rows that the step picks."""
        self._selected = True

    def keep_buffer(self, tensor: Tensor) -> None:
        self._tensors.append(tensor)
        if self._selected:
            self._selected_tensors.add(tensor.data_ptr())

    def index(self, tensor: Tensor) -> Index:
        assert tensor is self._tokens or tensor is self._positions, "looked up by something that is no input"
        return Index.TOKENS if tensor is self._tokens else Index.POSITIONS

    def group(self, slots: Tensor) -> int:
        """Which of the step's KV groups has these slots."""
        return next(group for group, known in enumerate(self._slots) if known is slots)

    def packed(self, x: Tensor, weight: PackedWeight) -> program.Packed | None:
        """The same rows packed the same way before: products that share an input share this."""
        return self._packed.get((x.data_ptr(), min(weight.format, program.Format.INT8), weight.group))

    def keep_packed(self, x: Tensor, weight: PackedWeight, packed: program.Packed) -> None:
        self._packed[x.data_ptr(), min(weight.format, program.Format.INT8), weight.group] = packed

    # -- finishing ----------------------------------------------------------------------------------------------------

    def finish(
        self, max_rows: int, *, max_picked: int = 0, inputs: tuple[Tensor, ...] = (), outputs: tuple[Tensor, ...]
    ) -> Program:
        """Inputs are rows that will be filled in before each run."""
        shown = (*inputs, *outputs)
        pinned = {tensor.data_ptr() for tensor in shown}
        lines = _rotate_where_used(_pack_where_made(_add_where_normalized(self._lines)), pinned)
        _keep_no_rows_unread(lines, pinned)
        tensors = {tensor.data_ptr(): tensor for tensor in (*inputs, *self._tensors)}
        room = {start: max_picked if start in self._selected_tensors else max_rows for start in tensors}
        buffers = [
            _Buffer(start, tensors[start].nbytes // RECORDED_ROWS, room[start], start in pinned)
            for start in sorted(tensors)
        ]
        layout = _Layout(lines, buffers)
        # Through numpy, whose zeroed pages take no room until they are written: most steps have few rows.
        arena = torch.from_numpy(np.zeros(layout.num_bytes + _ALIGNMENT, np.uint8))
        first = -arena.data_ptr() % _ALIGNMENT
        for line in lines:
            for operand, field in _row_pointers(line):
                setattr(operand, field, arena.data_ptr() + first + layout.offset(getattr(operand, field)))
        rows = []
        for tensor in shown:
            start, count = first + layout.offset(tensor.data_ptr()), room[tensor.data_ptr()]
            taken = arena[start : start + count * tensor.shape[1] * tensor.itemsize]
            rows.append(taken.view(tensor.dtype).view(count, tensor.shape[1]))
        made = [program.Line(line.operation, line.operands, line.selected) for line in lines]
        instructions = program.Instructions.of(made, max_rows=max_rows, max_picked=max_picked)
        return Program(instructions, tuple(rows), (arena, *(line.operands for line in lines), *self._alive))


def _row_pointers(line: _Line) -> list[tuple[Any, str]]:
    """Every pointer of an instruction to rows of the step, as (structure, field)."""
    return _pointers(line, (*READS[line.operation], *WRITES[line.operation]))


def _pointers(line: _Line, names: tuple[str, ...]) -> list[tuple[Any, str]]:
    operands = [getattr(line.operands, name) for name in names]
    return [(operand, field) for operand in operands for field in POINTERS[type(operand)] if getattr(operand, field)]


def _add_where_normalized(lines: list[_Line]) -> list[_Line]:
    """A sum that is normalized next is made while it is normalized."""
    joined: list[_Line] = []
    for line in lines:
        before = joined[-1] if joined else None
        is_norm = line.operation in (Operation.RMS_NORM, Operation.LAYER_NORM)
        if is_norm and before is not None and before.operation == Operation.ADD:
            norm, add = line.operands, before.operands
            # Of queries and keys that were added up, a norm takes a part of the row only.
            is_whole = norm.input.num_parts == 1 and norm.input.width == add.out.width
            if norm.input.data == add.out.data and is_whole:
                norm.input, norm.added, norm.sum = add.left, add.right, add.out
                norm.factor, norm.has_added = add.factor, 1
                joined.pop()
        joined.append(line)
    return joined


def _pack_where_made(lines: list[_Line]) -> list[_Line]:
    """Rows are packed by whoever makes them, where that is a norm or an activation."""
    joined: list[_Line] = []
    for line in lines:
        if line.operation == Operation.PACK:
            maker = next((one for one in reversed(joined) if _writes(one, line.operands.input.data)), None)
            packs = maker is not None and hasattr(maker.operands, "packs") and not maker.operands.packs
            if maker is not None and packs and maker.operands.out.num_parts == 1:
                maker.operands.packed, maker.operands.packs = line.operands.packed, 1
                continue
        joined.append(line)
    return joined


def _keep_no_rows_unread(lines: list[_Line], kept: set[int]) -> None:
    """Rows that are read only as they were packed need no memory: each is made in the thread's own."""
    read = {getattr(*pointer) for line in lines for pointer in _pointers(line, READS[line.operation])}
    for line in lines:
        if getattr(line.operands, "packs", 0) and line.operands.out.data not in read | kept:
            line.operands.out.data = None


def _rotate_where_used(lines: list[_Line], kept: set[int]) -> list[_Line]:
    """Keys are rotated by whoever stores them and queries by whoever attends, if nobody else wants them rotated."""
    rotations = {line.operands.out.data: line for line in lines if line.operation == Operation.ROTATE}
    read = [getattr(*pointer) for line in lines for pointer in _pointers(line, READS[line.operation])]
    joined: list[_Line] = []
    for line in lines:
        name = {Operation.WRITE_KV: "keys", Operation.ATTEND: "queries"}.get(line.operation)
        rotation = None if name is None else rotations.get(getattr(line.operands, name).data)
        if name is not None and rotation is not None and _is_read_once(rotation.operands.out, read, kept):
            setattr(line.operands, name, rotation.operands.input)
            line.operands.angles = rotation.operands.angles
            joined.remove(rotation)
        joined.append(line)
    return joined


def _is_read_once(rows: program.Rows, read: list[int], kept: set[int]) -> bool:
    taken = range(rows.data, rows.data + RECORDED_ROWS * rows.stride * ctypes.sizeof(ctypes.c_float))
    return rows.data not in kept and sum(address in taken for address in read) == 1


def _writes(line: _Line, address: int) -> bool:
    operands = (getattr(line.operands, name) for name in WRITES[line.operation])
    return any(isinstance(operand, program.Rows) and operand.data == address for operand in operands)


class _Layout:
    """Where each buffer lies in one piece of memory: those needed at the same time do not overlap, others may."""

    def __init__(self, lines: list[_Line], buffers: list[_Buffer]) -> None:
        self._starts = [buffer.start for buffer in buffers]
        self._sizes = [_aligned(buffer.row_bytes * buffer.max_rows) for buffer in buffers]
        self._offsets = [0] * len(buffers)
        self.num_bytes = 0
        spans = self._spans(lines, buffers)
        placed: list[int] = []
        for place in sorted(spans, key=lambda place: -self._sizes[place]):
            meanwhile = [other for other in placed if _overlap(spans[place], spans[other])]
            self._offsets[place] = self._lowest_gap(self._sizes[place], meanwhile)
            placed.append(place)
            self.num_bytes = max(self.num_bytes, self._offsets[place] + self._sizes[place])

    def offset(self, address: int) -> int:
        """Of an address of the recorded pass, which lies in the first row of its buffer."""
        place = self._place(address)
        return self._offsets[place] + address - self._starts[place]

    def _place(self, address: int) -> int:
        return bisect.bisect_right(self._starts, address) - 1

    def _spans(self, lines: list[_Line], buffers: list[_Buffer]) -> dict[int, range]:
        """When each buffer is needed, from the first line that writes to the last that reads it."""
        spans = {place: range(len(lines)) for place, buffer in enumerate(buffers) if buffer.pinned}
        for when, line in enumerate(lines):
            for operand, field in _row_pointers(line):
                place = self._place(getattr(operand, field))
                if not buffers[place].pinned:
                    first = spans[place].start if place in spans else when
                    spans[place] = range(first, when + 1)
        return spans

    def _lowest_gap(self, size: int, others: list[int]) -> int:
        offset = 0
        for begin, end in sorted((self._offsets[other], self._offsets[other] + self._sizes[other]) for other in others):
            if begin - offset >= size:
                break
            offset = max(offset, end)
        return offset


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
