"""What the native kernels are told, as they are told it: a mirror of csrc/program.h, field by field."""

import ctypes
from collections.abc import Iterable, Iterator
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from typing import NamedTuple, Self


class Operation(IntEnum):
    EMBED = 0
    ADD = 1
    SCALE = 2
    SOFTCAP = 3
    RMS_NORM = 4
    LAYER_NORM = 5
    ROTATE = 6
    ACTIVATE = 7
    PACK = 8
    LINEAR = 9
    WRITE_KV = 10
    ATTEND = 11
    ROUTE = 12
    GROUP = 13
    GATHER = 14
    EXPERT_LINEAR = 15
    COMBINE = 16
    DRAW = 17
    SELECT = 18
    SPREAD = 19


class Format(IntEnum):
    """Of numbers in a packed matrix or in packed rows."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3
    INT4_ZEROS = 4


class Number(IntEnum):
    """Formats of numbers in a KV cache."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2


class Index(IntEnum):
    TOKENS = 0
    POSITIONS = 1


PANEL = 64
"""Outputs of a packed matrix that lie together."""
MOST_HEAD_DIM = 256
"""Of heads in the cache."""
MOST_PARTS = 8192
"""Of a step's attention: spans of keys, for each query."""

ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}


class Rows(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("stride", c_int64),
        ("part_stride", c_int64),
        ("num_parts", c_int32),
        ("width", c_int32),
    )


class Weight(Structure):
    _fields_ = (
        ("format", c_int32),
        ("group", c_int32),
        ("num_outputs", c_int64),
        ("num_inputs", c_int64),
        ("padded_inputs", c_int64),
        ("panel_bytes", c_int64),
        ("data", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
    )


class Packed(Structure):
    _fields_ = (
        ("format", c_int32),
        ("group", c_int32),
        ("width", c_int64),
        ("stride", c_int64),
        ("data", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
    )


class Routes(Structure):
    _fields_ = (("chosen", c_void_p), ("weights", c_void_p), ("num_chosen", c_int32), ("num_experts", c_int32))


class Block(Structure):
    _fields_ = (("expert", c_int32), ("first", c_int32), ("count", c_int32))


class Groups(Structure):
    _fields_ = (("places", c_void_p), ("blocks", c_void_p), ("num_blocks", c_void_p))


class ExpertWeights(Structure):
    _fields_ = (("first", Weight), ("data_stride", c_int64), ("scale_stride", c_int64))


class Embed(Structure):
    _fields_ = (("out", Rows), ("table", Weight), ("index", c_int32))


class Add(Structure):
    _fields_ = (("out", Rows), ("left", Rows), ("right", Rows), ("factor", c_float))


class Scale(Structure):
    _fields_ = (("out", Rows), ("input", Rows), ("factor", c_float))


class Softcap(Structure):
    _fields_ = (("out", Rows), ("input", Rows), ("cap", c_float))


class Norm(Structure):
    _fields_ = (
        ("out", Rows),
        ("input", Rows),
        ("added", Rows),
        ("sum", Rows),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("eps", c_float),
        ("weight_offset", c_float),
        ("factor", c_float),
        ("has_added", c_int32),
        ("packed", Packed),
        ("packs", c_int32),
    )


class Rotate(Structure):
    _fields_ = (("out", Rows), ("input", Rows), ("angles", Rows))


class Activate(Structure):
    _fields_ = (
        ("out", Rows),
        ("input", Rows),
        ("activation", c_int32),
        ("gated", c_int32),
        ("packed", Packed),
        ("packs", c_int32),
        ("times", c_int32),
    )


class Pack(Structure):
    _fields_ = (("input", Rows), ("packed", Packed))


class Linear(Structure):
    _fields_ = (("out", Rows), ("input", Packed), ("weight", Weight))


class Cache(Structure):
    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("key_scales", c_void_p),
        ("value_scales", c_void_p),
        ("number", c_int32),
        ("block_size", c_int32),
        ("num_heads", c_int32),
        ("head_dim", c_int32),
        ("group", c_int32),
        ("num_blocks", c_int64),
    )


class WriteKv(Structure):
    _fields_ = (("keys", Rows), ("values", Rows), ("angles", Rows), ("cache", Cache))


class Parts(Structure):
    _fields_ = (("sums", c_void_p), ("peaks", c_void_p), ("totals", c_void_p), ("arrived", c_void_p))


class Attend(Structure):
    _fields_ = (
        ("out", Rows),
        ("queries", Rows),
        ("angles", Rows),
        ("cache", Cache),
        ("parts", Parts),
        ("scale", c_float),
        ("softcap", c_float),
        ("window", c_int64),
    )


class Route(Structure):
    _fields_ = (("logits", Rows), ("out", Routes), ("normalize", c_int32))


class Group(Structure):
    _fields_ = (("routes", Routes), ("out", Groups))


class Gather(Structure):
    _fields_ = (("input", Packed), ("out", Packed), ("routes", Routes), ("groups", Groups))


class ExpertLinear(Structure):
    _fields_ = (("out", Rows), ("input", Packed), ("weights", ExpertWeights), ("groups", Groups))


class Combine(Structure):
    _fields_ = (("out", Rows), ("input", Rows), ("routes", Routes), ("groups", Groups))


class Draw(Structure):
    _fields_ = (("logits", Rows), ("rows", c_void_p), ("tokens", c_void_p), ("peaks", c_void_p))


class Select(Structure):
    _fields_ = (("out", Rows), ("input", Rows))


class Spread(Structure):
    _fields_ = (("out", Rows), ("input", Rows), ("ids", c_void_p))


class Instruction(Structure):
    _fields_ = (("operation", c_int32), ("selected", c_int32), ("operands", c_void_p))


class Capacity(Structure):
    _fields_ = (
        ("rows", c_int64),
        ("picked", c_int64),
        ("tokens", c_int64),
        ("positions", c_int64),
        ("groups", c_int64),
        ("blocks", c_int64),
        ("block_size", c_int64),
    )


class Line(NamedTuple):
    """An instruction, with the operands that it points to."""

    operation: "Operation"
    operands: Structure
    selected: bool = False
    """Works on the rows that a step picks, not on all of them."""


class Instructions(Structure):
    _fields_ = (("first", POINTER(Instruction)), ("count", c_int64), ("capacity", Capacity))

    @classmethod
    def of(cls, lines: Iterable[Line], *, max_rows: int, max_picked: int = 0) -> Self:
        """Operands have memory for so many rows, and must outlive the instructions."""
        lines = list(lines)
        capacity = _capacity(lines, Capacity(rows=max_rows, picked=max_picked))
        return cls._made(
            [Instruction(one.operation, one.selected, ctypes.addressof(one.operands)) for one in lines], capacity
        )

    def followed_by(self, lines: Iterable[Line], *, max_picked: int) -> "Instructions":
        """These, then instructions about picked rows, which have memory for so many of them."""
        added = Instructions.of(lines, max_rows=self.capacity.rows, max_picked=max_picked)
        capacity = Capacity.from_buffer_copy(self.capacity)
        capacity.picked = min(capacity.picked, max_picked)
        return self._made([*self, *added], capacity)

    def __iter__(self) -> Iterator[Instruction]:
        return (self.first[index] for index in range(self.count))

    @classmethod
    def _made(cls, instructions: list[Instruction], capacity: Capacity) -> Self:
        array = (Instruction * len(instructions))(*instructions)
        return cls(ctypes.cast(array, POINTER(Instruction)), len(instructions), capacity)


class Step(Structure):
    _fields_ = (
        ("num_rows", c_int64),
        ("num_threads", c_int64),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("num_groups", c_int64),
        ("num_chunks", c_int64),
        ("query_starts", c_void_p),
        ("ends", c_void_p),
        ("tables", POINTER(c_void_p)),
        ("slots", POINTER(c_void_p)),
        ("table_width", c_int64),
        ("num_picked", c_int64),
        ("picked", c_void_p),
        ("depths", c_void_p),
        ("lines", c_void_p),
    )


class Assembly(Structure):
    _fields_ = (
        ("num_chunks", c_int64),
        ("chunks", c_void_p),
        ("num_rows", c_int64),
        ("max_length", c_int64),
        ("row_tokens", c_void_p),
        ("tokens_per_row", c_int64),
        ("row_tables", POINTER(c_void_p)),
        ("blocks_per_row", c_int64),
        ("num_groups", c_int64),
        ("block_size", c_int64),
        ("num_depths", c_int64),
        ("depths", c_void_p),
        ("lines", c_void_p),
        ("max_tokens", c_int64),
        ("max_chunks", c_int64),
        ("max_picked", c_int64),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("query_starts", c_void_p),
        ("ends", c_void_p),
        ("tables", POINTER(c_void_p)),
        ("slots", POINTER(c_void_p)),
        ("picked", c_void_p),
    )


class Pass(Structure):
    _fields_ = (
        ("instructions", Instructions),
        ("assembly", POINTER(Assembly)),
        ("given", Rows),
        ("states", Rows),
    )


class Drafting(Structure):
    _fields_ = (
        ("first", Pass),
        ("further", Pass),
        ("max_chunks", c_int64),
        ("max_count", c_int64),
        ("counts", c_void_p),
        ("chunks", c_void_p),
        ("rows", c_void_p),
        ("drawn", c_void_p),
        ("tokens", c_void_p),
        ("nanoseconds", c_void_p),
    )


class Refusal(Structure):
    _fields_ = (("limit", c_int32), ("given", c_int64), ("least", c_int64), ("most", c_int64))


OPERANDS: dict[Operation, type[Structure]] = {
    Operation.EMBED: Embed,
    Operation.ADD: Add,
    Operation.SCALE: Scale,
    Operation.SOFTCAP: Softcap,
    Operation.RMS_NORM: Norm,
    Operation.LAYER_NORM: Norm,
    Operation.ROTATE: Rotate,
    Operation.ACTIVATE: Activate,
    Operation.PACK: Pack,
    Operation.LINEAR: Linear,
    Operation.WRITE_KV: WriteKv,
    Operation.ATTEND: Attend,
    Operation.ROUTE: Route,
    Operation.GROUP: Group,
    Operation.GATHER: Gather,
    Operation.EXPERT_LINEAR: ExpertLinear,
    Operation.COMBINE: Combine,
    Operation.DRAW: Draw,
    Operation.SELECT: Select,
    Operation.SPREAD: Spread,
}


def _capacity(lines: list[Line], capacity: Capacity) -> Capacity:
    """With what the lines look up by number: the smallest of the tables and caches that they share."""
    for operation, operands, _ in lines:
        if isinstance(operands, Embed):
            field = "tokens" if operands.index == Index.TOKENS else "positions"
            _lower(capacity, field, operands.table.num_outputs)
        if operation in (Operation.WRITE_KV, Operation.ATTEND):
            cache = operands.cache
            assert capacity.block_size in (0, cache.block_size), "blocks of a program have one size"
            capacity.block_size, capacity.groups = cache.block_size, max(capacity.groups, cache.group + 1)
            _lower(capacity, "blocks", cache.num_blocks)
    return capacity


def _lower(capacity: Capacity, field: str, bound: int) -> None:
    known = getattr(capacity, field)
    setattr(capacity, field, min(known, bound) if known else bound)
