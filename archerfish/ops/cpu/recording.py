"""A program recorded from one pass through a model: operations fused where they can be, memory planned once.

The pass runs over a few rows only to see strides. The program then serves any number of rows up to a maximum, because
every operation treats rows alike.
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
from archerfish.ops.cpu.program import ExpertGroups, ExpertRoutes, IndexSource, Operation, PackedRows, StridedRows
from archerfish.ops.packed import PackedWeight

RECORDED_ROWS = 2
"""Rows of a recorded pass: two, so that the stride from one row to the next can be seen."""
_ALIGNMENT = 64

READS: dict[Operation, tuple[str, ...]] = {
    Operation.EMBED: (),
    Operation.ADD: ("left", "right"),
    Operation.SCALE: ("input",),
    Operation.SOFTCAP: ("input",),
    Operation.RMS_NORM: ("input", "residual"),
    Operation.LAYER_NORM: ("input", "residual"),
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
"""For each operation, the arguments that it reads rows from."""
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
"""For each operation, the arguments that it writes rows to."""


POINTERS: dict[type[Structure], tuple[str, ...]] = {
    StridedRows: ("data",),
    PackedRows: ("data", "scales", "sums"),
    ExpertRoutes: ("expert_ids", "weights"),
    ExpertGroups: ("sorted_indices", "blocks", "num_blocks"),
}
"""The fields of an operand that point to numbers which change from step to step."""


@dataclass(slots=True)
class _RecordedOperation:
    operation: Operation
    arguments: Any
    selected: bool
    """Works on the rows at the step's logit indices."""


@dataclass(frozen=True, slots=True)
class _RowBuffer:
    """Rows that exist during a step only."""

    start: int
    """Address in the recorded pass."""
    row_bytes: int
    max_rows: int
    pinned: bool
    """Read or written from outside, so that its memory is not shared with other buffers."""


@dataclass(frozen=True, slots=True)
class CpuProgram:
    """Instructions with everything they point to."""

    instructions: program.Instructions
    rows: tuple[Tensor, ...]
    """Inputs to fill in and outputs to read, [most rows, width] each; after a selection, rows at logit indices."""
    referenced: tuple[Any, ...]


class CpuRecording:
    """Records operations, and makes a program of them at the end."""

    def __init__(
        self, tokens: Tensor | None = None, positions: Tensor | None = None, slots: tuple[Tensor, ...] = ()
    ) -> None:
        self._tokens, self._positions, self._slots = tokens, positions, slots
        self._operations: list[_RecordedOperation] = []
        self._tensors: list[Tensor] = []
        """Rows of the pass, referenced so that their addresses are not used again before memory is planned."""
        self._referenced: list[Any] = []
        self._packed: dict[tuple[int, int, int], PackedRows] = {}
        self._selected = False
        self._selected_addresses: set[int] = set()

    # -- recording ----------------------------------------------------------------------------------------------------

    def record(self, operation: Operation, arguments: Structure, referenced: tuple[Any, ...]) -> None:
        """Append an operation. The objects that its arguments point to live as long as the program."""
        self._operations.append(_RecordedOperation(operation, arguments, self._selected))
        self._referenced += [thing for thing in referenced if thing is not None]

    def select(self) -> None:
        """Let all further operations work on the rows at the step's logit indices."""
        self._selected = True

    def add_buffer(self, tensor: Tensor) -> None:
        """Plan memory for these rows."""
        self._tensors.append(tensor)
        if self._selected:
            self._selected_addresses.add(tensor.data_ptr())

    def index_source(self, tensor: Tensor) -> IndexSource:
        """Return which of the step's numbers an embedding is looked up by."""
        assert tensor is self._tokens or tensor is self._positions, "embeddings are looked up by token or position"
        return IndexSource.TOKENS if tensor is self._tokens else IndexSource.POSITIONS

    def kv_group(self, slots: Tensor) -> int:
        """Return which of the step's KV groups has these slots."""
        return next(group for group, known in enumerate(self._slots) if known is slots)

    def packed(self, x: Tensor, weight: PackedWeight) -> PackedRows | None:
        """Return rows that were packed the same way before: GEMMs with the same input share them."""
        return self._packed.get((x.data_ptr(), min(weight.format, program.Format.INT8), weight.group))

    def remember_packed(self, x: Tensor, weight: PackedWeight, packed: PackedRows) -> None:
        """Share packed rows with later GEMMs."""
        self._packed[x.data_ptr(), min(weight.format, program.Format.INT8), weight.group] = packed

    # -- finishing ----------------------------------------------------------------------------------------------------

    def finish(
        self, max_rows: int, *, max_logits: int = 0, inputs: tuple[Tensor, ...] = (), outputs: tuple[Tensor, ...]
    ) -> CpuProgram:
        """Make the program. Inputs are rows that are filled in before each run."""
        visible = (*inputs, *outputs)
        pinned = {tensor.data_ptr() for tensor in visible}
        operations = _fuse_rotations(_fuse_packing(_fuse_residuals(self._operations)), pinned)
        _drop_unread_rows(operations, pinned)
        tensors = {tensor.data_ptr(): tensor for tensor in (*inputs, *self._tensors)}
        capacities = {start: max_logits if start in self._selected_addresses else max_rows for start in tensors}
        buffers = [
            _RowBuffer(start, tensors[start].nbytes // RECORDED_ROWS, capacities[start], start in pinned)
            for start in sorted(tensors)
        ]
        plan = _MemoryPlan(operations, buffers)
        # Zeroed by numpy, whose pages take no memory until they are written: most steps have few rows.
        arena = torch.from_numpy(np.zeros(plan.num_bytes + _ALIGNMENT, np.uint8))
        first = -arena.data_ptr() % _ALIGNMENT
        for recorded in operations:
            for operand, field in _row_pointers(recorded):
                setattr(operand, field, arena.data_ptr() + first + plan.offset(getattr(operand, field)))
        rows = []
        for tensor in visible:
            start, count = first + plan.offset(tensor.data_ptr()), capacities[tensor.data_ptr()]
            numbers = arena[start : start + count * tensor.shape[1] * tensor.itemsize]
            rows.append(numbers.view(tensor.dtype).view(count, tensor.shape[1]))
        calls = [program.RecordedCall(op.operation, op.arguments, op.selected) for op in operations]
        instructions = program.Instructions.of(calls, max_rows=max_rows, max_logits=max_logits)
        return CpuProgram(instructions, tuple(rows), (arena, *(op.arguments for op in operations), *self._referenced))


def _row_pointers(recorded: _RecordedOperation) -> list[tuple[Any, str]]:
    """Return every pointer of an operation to rows of the step, as (structure, field)."""
    return _pointers(recorded, (*READS[recorded.operation], *WRITES[recorded.operation]))


def _pointers(recorded: _RecordedOperation, names: tuple[str, ...]) -> list[tuple[Any, str]]:
    operands = [getattr(recorded.arguments, name) for name in names]
    return [(operand, field) for operand in operands for field in POINTERS[type(operand)] if getattr(operand, field)]


def _fuse_residuals(operations: list[_RecordedOperation]) -> list[_RecordedOperation]:
    """Let norms compute the sum that they normalize."""
    fused: list[_RecordedOperation] = []
    for recorded in operations:
        before = fused[-1] if fused else None
        is_norm = recorded.operation in (Operation.RMS_NORM, Operation.LAYER_NORM)
        if is_norm and before is not None and before.operation == Operation.ADD:
            norm, add = recorded.arguments, before.arguments
            # A norm of the heads of a sum reads only a part of each row.
            is_whole = norm.input.num_parts == 1 and norm.input.width == add.out.width
            if norm.input.data == add.out.data and is_whole:
                norm.input, norm.residual, norm.sum = add.left, add.right, add.out
                norm.factor, norm.has_residual = add.factor, 1
                fused.pop()
        fused.append(recorded)
    return fused


def _fuse_packing(operations: list[_RecordedOperation]) -> list[_RecordedOperation]:
    """Let norms and activations pack the rows that they compute."""
    fused: list[_RecordedOperation] = []
    for recorded in operations:
        if recorded.operation == Operation.PACK:
            address = recorded.arguments.input.data
            producer = next((other for other in reversed(fused) if _writes(other, address)), None)
            if producer is not None and _can_pack(producer):
                producer.arguments.packed, producer.arguments.has_packed = recorded.arguments.packed, 1
                continue
        fused.append(recorded)
    return fused


def _can_pack(producer: _RecordedOperation) -> bool:
    arguments = producer.arguments
    return hasattr(arguments, "has_packed") and not arguments.has_packed and arguments.out.num_parts == 1


def _drop_unread_rows(operations: list[_RecordedOperation], pinned: set[int]) -> None:
    """Remove the memory of rows that are only read packed: each is computed in a thread's scratch memory."""
    read = {getattr(*pointer) for op in operations for pointer in _pointers(op, READS[op.operation])}
    for recorded in operations:
        if getattr(recorded.arguments, "has_packed", 0) and recorded.arguments.out.data not in read | pinned:
            recorded.arguments.out.data = None


def _fuse_rotations(operations: list[_RecordedOperation], pinned: set[int]) -> list[_RecordedOperation]:
    """Rotate keys where they are stored and queries where they attend, if nothing else reads them rotated."""
    rotations = {op.arguments.out.data: op for op in operations if op.operation == Operation.ROTATE}
    read = [getattr(*pointer) for op in operations for pointer in _pointers(op, READS[op.operation])]
    fused: list[_RecordedOperation] = []
    for recorded in operations:
        name = {Operation.WRITE_KV: "keys", Operation.ATTEND: "queries"}.get(recorded.operation)
        rotation = None if name is None else rotations.get(getattr(recorded.arguments, name).data)
        if name is not None and rotation is not None and _is_read_once(rotation.arguments.out, read, pinned):
            setattr(recorded.arguments, name, rotation.arguments.input)
            recorded.arguments.angles = rotation.arguments.angles
            fused.remove(rotation)
        fused.append(recorded)
    return fused


def _is_read_once(rows: StridedRows, read: list[int], pinned: set[int]) -> bool:
    addresses = range(rows.data, rows.data + RECORDED_ROWS * rows.stride * ctypes.sizeof(ctypes.c_float))
    return rows.data not in pinned and sum(address in addresses for address in read) == 1


def _writes(recorded: _RecordedOperation, address: int) -> bool:
    operands = (getattr(recorded.arguments, name) for name in WRITES[recorded.operation])
    return any(isinstance(operand, StridedRows) and operand.data == address for operand in operands)


class _MemoryPlan:
    """The offset of each buffer in one arena. Buffers that are needed at the same time do not overlap; others may."""

    def __init__(self, operations: list[_RecordedOperation], buffers: list[_RowBuffer]) -> None:
        self._starts = [buffer.start for buffer in buffers]
        self._sizes = [_aligned(buffer.row_bytes * buffer.max_rows) for buffer in buffers]
        self._offsets = [0] * len(buffers)
        self.num_bytes = 0
        lifetimes = self._lifetimes(operations, buffers)
        planned: list[int] = []
        for index in sorted(lifetimes, key=lambda index: -self._sizes[index]):
            concurrent = [other for other in planned if _overlap(lifetimes[index], lifetimes[other])]
            self._offsets[index] = self._lowest_gap(self._sizes[index], concurrent)
            planned.append(index)
            self.num_bytes = max(self.num_bytes, self._offsets[index] + self._sizes[index])

    def offset(self, address: int) -> int:
        """Return the offset of an address of the recorded pass, which is in the first row of its buffer."""
        index = self._buffer_index(address)
        return self._offsets[index] + address - self._starts[index]

    def _buffer_index(self, address: int) -> int:
        return bisect.bisect_right(self._starts, address) - 1

    def _lifetimes(self, operations: list[_RecordedOperation], buffers: list[_RowBuffer]) -> dict[int, range]:
        """Return the operations during which each buffer is needed, from the first to write to the last to read it."""
        lifetimes = {index: range(len(operations)) for index, buffer in enumerate(buffers) if buffer.pinned}
        for when, recorded in enumerate(operations):
            for operand, field in _row_pointers(recorded):
                index = self._buffer_index(getattr(operand, field))
                if not buffers[index].pinned:
                    first = lifetimes[index].start if index in lifetimes else when
                    lifetimes[index] = range(first, when + 1)
        return lifetimes

    def _lowest_gap(self, size: int, others: list[int]) -> int:
        offset = 0
        for begin, end in sorted((self._offsets[other], self._offsets[other] + self._sizes[other]) for other in others):
            if begin - offset >= size:
                break
            offset = max(offset, end)
        return offset


def _overlap(left: range, right: range) -> bool:
    return left.start < right.stop and right.start < left.stop


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
