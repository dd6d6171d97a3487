"""What the native kernels are told, as they are told it: a mirror of csrc/program.h, field by field."""

from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum


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


class Index(IntEnum):
    TOKENS = 0
    POSITIONS = 1


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


class Step(Structure):
    _fields_ = (
        ("num_rows", c_int64),
        ("num_threads", c_int64),
        ("tokens", c_void_p),
        ("positions", c_void_p),
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
        ("row_tokens", c_void_p),
        ("tokens_per_row", c_int64),
        ("row_tables", POINTER(c_void_p)),
        ("blocks_per_row", c_int64),
        ("num_groups", c_int64),
        ("block_size", c_int64),
        ("depths", c_void_p),
        ("lines", c_void_p),
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
        ("instructions", POINTER(Instruction)),
        ("num_instructions", c_int64),
        ("assembly", POINTER(Assembly)),
        ("given", Rows),
        ("states", Rows),
    )


class Drafting(Structure):
    _fields_ = (
        ("first", Pass),
        ("further", Pass),
        ("counts", c_void_p),
        ("chunks", c_void_p),
        ("rows", c_void_p),
        ("drawn", c_void_p),
        ("tokens", c_void_p),
        ("nanoseconds", c_void_p),
    )


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

STRUCTURES: tuple[type[Structure], ...] = (
    *dict.fromkeys(OPERANDS.values()),
    Instruction,
    Step,
    Assembly,
    Pass,
    Drafting,
)
"""All that the library reads: their sizes must be its own."""
