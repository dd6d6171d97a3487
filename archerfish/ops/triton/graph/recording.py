"""Records a model as a list of operations: one forward pass over tensors without memory, which can then be repeated.

The list serves any number of rows. Each operation allocates its own outputs, and its inputs are found by their buffer,
so that views of a row (queries, keys and values of one projection) cost nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

RECORDED_ROWS = 2
"""Rows of the recorded pass: two, so that the stride from one row to the next is visible."""


class RecordedInput(NamedTuple):
    """An input that every run passes by name."""

    name: str


class BufferView(NamedTuple):
    """Rows of a buffer, or a view into each of them."""

    buffer: int
    shape: tuple[int, ...]
    """Shape of one row."""
    strides: tuple[int, ...]
    """Strides from row to row, then within a row."""
    offset: int


class WholeOutput(NamedTuple):
    """The output of an operation as it was returned, which need not be a tensor."""

    buffer: int


@dataclass(frozen=True, slots=True, eq=False)
class RecordedOp:
    """One operation with its arguments and the buffers that it writes."""

    operation: str
    arguments: tuple[Any, ...]
    """Buffer views, whole outputs, inputs, and constants (weights, numbers)."""
    outputs: tuple[int, ...]
    inputs: tuple[BufferView | WholeOutput, ...] = field(init=False)
    """The arguments that other operations computed."""

    def __post_init__(self) -> None:
        # Computed once: fusion passes read it hundreds of times.
        inputs = tuple(argument for argument in self.arguments if isinstance(argument, (BufferView, WholeOutput)))
        object.__setattr__(self, "inputs", inputs)


FusionPass = Callable[[list[RecordedOp], set[int]], list[RecordedOp]]
"""Returns the operations with some of them fused. Buffers in the set are outputs of the model and must be written."""


class TritonRecording:
    """Records operations; `finish` returns them as a program."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        """`inputs` are the values that the recorded pass is called with; they are recognized by identity."""
        self._inputs = {id(value): RecordedInput(name) for name, value in inputs.items()}
        self._ops: list[RecordedOp] = []
        self._buffers: dict[int, int] = {}
        """Buffers by the address of their torch storage."""
        self._alive: list[Any] = [*inputs.values()]
        """References that keep addresses unique while recording."""

    def record(self, operation: str, arguments: Sequence[Any], *results: tuple[tuple[int, ...], torch.dtype]) -> Any:
        """Record an operation; return outputs without memory, by the shape of a row and the dtype of each."""
        outputs = []
        tensors = [torch.empty((RECORDED_ROWS, *shape), dtype=dtype, device="meta") for shape, dtype in results]
        for tensor in tensors:
            outputs.append(len(self._buffers))
            self._buffers[_storage(tensor)] = outputs[-1]
            self._alive.append(tensor)
        self._ops.append(RecordedOp(operation, tuple(map(self._argument, arguments)), tuple(outputs)))
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def finish(self, outputs: Sequence[Tensor], passes: Sequence[FusionPass]) -> "TritonProgram":
        """Return the recorded operations as a program that computes `outputs`, after all fusion passes."""
        views = tuple(self._argument(output) for output in outputs)
        ops = self._ops
        for fuse in passes:
            ops = fuse(ops, {view.buffer for view in views})
        return TritonProgram(ops, views)

    def _argument(self, value: Any) -> Any:
        """Return what an operation stores of an argument."""
        if id(value) in self._inputs:
            return self._inputs[id(value)]
        if not isinstance(value, Tensor) or not value.is_meta:
            return value
        buffer = self._buffers.get(_storage(value))
        assert buffer is not None, "a tensor that no recorded operation computed"
        return BufferView(buffer, tuple(value.shape[1:]), value.stride(), int(value.storage_offset()))


class TritonProgram:
    """Recorded operations that can be run with any number of rows."""

    def __init__(self, ops: list[RecordedOp], outputs: tuple[BufferView, ...]) -> None:
        self.ops = ops
        self._outputs = outputs
        last_use: dict[int, int] = {}
        for index, op in enumerate(ops):
            for buffer in (*op.outputs, *(view.buffer for view in op.inputs)):
                last_use[buffer] = index
        for view in outputs:
            last_use.pop(view.buffer, None)
        self._freed: list[list[int]] = [[] for _ in ops]
        """Buffers that no operation after the one of this index reads."""
        for buffer, index in last_use.items():
            self._freed[index].append(buffer)

    def run(self, operations: Mapping[str, Callable[..., Any]], inputs: Mapping[str, Any]) -> list[Tensor]:
        """Run all operations once. A buffer's memory is free for others as soon as it was read for the last time."""
        buffers: dict[int, Any] = {}
        for op, freed in zip(self.ops, self._freed, strict=True):
            results = operations[op.operation](*[_value(argument, buffers, inputs) for argument in op.arguments])
            if len(op.outputs) == 1:
                buffers[op.outputs[0]] = results
            elif op.outputs:
                buffers.update(zip(op.outputs, results, strict=True))
            for buffer in freed:
                del buffers[buffer]
        return [_view(view, buffers) for view in self._outputs]


def _value(argument: Any, buffers: dict[int, Any], inputs: Mapping[str, Any]) -> Any:
    if isinstance(argument, BufferView):
        return _view(argument, buffers)
    if isinstance(argument, WholeOutput):
        return buffers[argument.buffer]
    return inputs[argument.name] if isinstance(argument, RecordedInput) else argument


def _view(view: BufferView, buffers: dict[int, Any]) -> Tensor:
    whole: Tensor = buffers[view.buffer]
    if view.offset == 0 and tuple(whole.shape[1:]) == view.shape:
        return whole
    return whole.as_strided((len(whole), *view.shape), view.strides, view.offset)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
