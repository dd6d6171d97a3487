"""The structures and numbers that native kernels are called with, as csrc/program.h declares them.

Every field is compared with the library's when it is loaded (`abi`).
"""

import ctypes
from collections.abc import Iterable, Iterator
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from typing import NamedTuple, Self


class Operation(IntEnum):
    """The operations of native programs."""

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
    SCATTER = 19


class Format(IntEnum):
    """Formats of packed matrices and packed rows."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3
    INT4_ZEROS = 4


class CacheFormat(IntEnum):
    """Formats of numbers in a KV cache."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2


class IndexSource(IntEnum):
    """The numbers of a step that an embedding is looked up by."""

    TOKENS = 0
    POSITIONS = 1


ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}

PANEL = 64
"""Outputs of a packed matrix that are stored together."""
MAX_HEAD_DIM = 256
"""Largest head dimension of a KV cache."""
MAX_ATTENTION_SPLITS = 8192
"""Splits of keys times queries in a step whose softmax states can be stored."""
MAX_VOCAB_SIZE = 1 << 20
"""Largest vocabulary to draw from: a thread has memory for two numbers of each token."""
MAX_ROW_WIDTH = 1 << 20
"""Widest row that a thread can compute in its own memory."""
MAX_EXPERTS = 1 << 16
"""Most experts of a layer: a thread has memory for a number of each."""
MAX_QUERIES_PER_KV_HEAD = 1024
"""Most query heads that share a KV head: a thread attends with all of them at once."""


class StridedRows(Structure):
    """Float32 rows of one width, each of one or more parts."""

    _fields_ = (
        ("data", c_void_p),
        ("stride", c_int64),
        ("part_stride", c_int64),
        ("num_parts", c_int32),
        ("width", c_int32),
    )


class WeightMatrix(Structure):
    """A matrix that is packed in panels of outputs."""

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


class PackedRows(Structure):
    """Rows as a GEMM reads them: int8 in groups, bfloat16 or float32."""

    _fields_ = (
        ("format", c_int32),
        ("group", c_int32),
        ("width", c_int64),
        ("stride", c_int64),
        ("data", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
    )


class ExpertRoutes(Structure):
    """The experts of each row, the likeliest first."""

    _fields_ = (("expert_ids", c_void_p), ("weights", c_void_p), ("top_k", c_int32), ("num_experts", c_int32))


class ExpertBlock(Structure):
    """Consecutive sorted rows of one expert."""

    _fields_ = (("expert", c_int32), ("first", c_int32), ("count", c_int32))


class ExpertGroups(Structure):
    """Rows sorted by expert."""

    _fields_ = (("sorted_indices", c_void_p), ("blocks", c_void_p), ("num_blocks", c_void_p))


class ExpertWeights(Structure):
    """One matrix for each expert."""

    _fields_ = (("first", WeightMatrix), ("data_stride", c_int64), ("scale_stride", c_int64))


class PagedCache(Structure):
    """The KV cache of one layer."""

    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("key_scales", c_void_p),
        ("value_scales", c_void_p),
        ("format", c_int32),
        ("block_size", c_int32),
        ("num_heads", c_int32),
        ("head_dim", c_int32),
        ("kv_group", c_int32),
        ("num_blocks", c_int64),
    )


class SplitStates(Structure):
    """Softmax states of single splits of keys, before they are merged."""

    _fields_ = (("accumulators", c_void_p), ("max_scores", c_void_p), ("exp_sums", c_void_p), ("num_done", c_void_p))


class EmbedArgs(Structure):
    _fields_ = (("out", StridedRows), ("table", WeightMatrix), ("index", c_int32))


class AddArgs(Structure):
    _fields_ = (("out", StridedRows), ("left", StridedRows), ("right", StridedRows), ("factor", c_float))


class ScaleArgs(Structure):
    _fields_ = (("out", StridedRows), ("input", StridedRows), ("factor", c_float))


class SoftcapArgs(Structure):
    _fields_ = (("out", StridedRows), ("input", StridedRows), ("cap", c_float))


class NormArgs(Structure):
    _fields_ = (
        ("out", StridedRows),
        ("input", StridedRows),
        ("residual", StridedRows),
        ("sum", StridedRows),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("eps", c_float),
        ("weight_offset", c_float),
        ("factor", c_float),
        ("has_residual", c_int32),
        ("packed", PackedRows),
        ("has_packed", c_int32),
    )


class RotateArgs(Structure):
    _fields_ = (("out", StridedRows), ("input", StridedRows), ("angles", StridedRows))


class ActivateArgs(Structure):
    _fields_ = (
        ("out", StridedRows),
        ("input", StridedRows),
        ("activation", c_int32),
        ("gated", c_int32),
        ("packed", PackedRows),
        ("has_packed", c_int32),
        ("rows_per_token", c_int32),
    )


class PackArgs(Structure):
    _fields_ = (("input", StridedRows), ("packed", PackedRows))


class LinearArgs(Structure):
    _fields_ = (("out", StridedRows), ("input", PackedRows), ("weight", WeightMatrix))


class WriteKvArgs(Structure):
    _fields_ = (("keys", StridedRows), ("values", StridedRows), ("angles", StridedRows), ("cache", PagedCache))


class AttendArgs(Structure):
    _fields_ = (
        ("out", StridedRows),
        ("queries", StridedRows),
        ("angles", StridedRows),
        ("cache", PagedCache),
        ("splits", SplitStates),
        ("scale", c_float),
        ("softcap", c_float),
        ("window", c_int64),
    )


class RouteArgs(Structure):
    _fields_ = (("logits", StridedRows), ("out", ExpertRoutes), ("normalize", c_int32))


class GroupArgs(Structure):
    _fields_ = (("routes", ExpertRoutes), ("out", ExpertGroups))


class GatherArgs(Structure):
    _fields_ = (("input", PackedRows), ("out", PackedRows), ("routes", ExpertRoutes), ("groups", ExpertGroups))


class ExpertLinearArgs(Structure):
    _fields_ = (("out", StridedRows), ("input", PackedRows), ("weights", ExpertWeights), ("groups", ExpertGroups))


class CombineArgs(Structure):
    _fields_ = (("out", StridedRows), ("input", StridedRows), ("routes", ExpertRoutes), ("groups", ExpertGroups))


class DrawArgs(Structure):
    _fields_ = (("logits", StridedRows), ("rows", c_void_p), ("tokens", c_void_p), ("max_logits", c_void_p))


class SelectArgs(Structure):
    _fields_ = (("out", StridedRows), ("input", StridedRows))


class ScatterArgs(Structure):
    _fields_ = (("out", StridedRows), ("input", StridedRows), ("ids", c_void_p))


class Instruction(Structure):
    _fields_ = (("operation", c_int32), ("selected", c_int32), ("arguments", c_void_p))


class ProgramCapacity(Structure):
    _fields_ = (
        ("rows", c_int64),
        ("logits", c_int64),
        ("tokens", c_int64),
        ("positions", c_int64),
        ("kv_groups", c_int64),
        ("blocks", c_int64),
        ("block_size", c_int64),
    )


class RecordedCall(NamedTuple):
    """An operation with its arguments, which outlive the instruction that is made from it."""

    operation: Operation
    arguments: Structure
    selected: bool = False
    """Works on the rows at a step's logit indices instead of all rows."""


class Instructions(Structure):
    """The instructions of a program, run from the first to the last."""

    _fields_ = (("first", POINTER(Instruction)), ("count", c_int64), ("capacity", ProgramCapacity))

    @classmethod
    def of(cls, calls: Iterable[RecordedCall], *, max_rows: int, max_logits: int = 0) -> Self:
        """Make instructions whose arguments have memory for so many rows, and outlive them."""
        calls = list(calls)
        capacity = _capacity(calls, ProgramCapacity(rows=max_rows, logits=max_logits))
        instructions = [Instruction(call.operation, call.selected, ctypes.addressof(call.arguments)) for call in calls]
        return cls._from_list(instructions, capacity)

    def followed_by(self, calls: Iterable[RecordedCall], *, max_logits: int) -> "Instructions":
        """Return these instructions with others at the end that have memory for so many logit indices."""
        added = Instructions.of(calls, max_rows=self.capacity.rows, max_logits=max_logits)
        capacity = ProgramCapacity.from_buffer_copy(self.capacity)
        capacity.logits = min(capacity.logits, max_logits)
        return self._from_list([*self, *added], capacity)

    def __iter__(self) -> Iterator[Instruction]:
        return (self.first[index] for index in range(self.count))

    @classmethod
    def _from_list(cls, instructions: list[Instruction], capacity: ProgramCapacity) -> Self:
        array = (Instruction * len(instructions))(*instructions)
        return cls(ctypes.cast(array, POINTER(Instruction)), len(instructions), capacity)


class StepView(Structure):
    _fields_ = (
        ("num_rows", c_int64),
        ("num_threads", c_int64),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("num_kv_groups", c_int64),
        ("num_chunks", c_int64),
        ("query_starts", c_void_p),
        ("ends", c_void_p),
        ("tables", POINTER(c_void_p)),
        ("slots", POINTER(c_void_p)),
        ("table_width", c_int64),
        ("num_logits", c_int64),
        ("logit_indices", c_void_p),
        ("tree_depths", c_void_p),
        ("tree_paths", c_void_p),
    )


class StepAssembly(Structure):
    _fields_ = (
        ("num_chunks", c_int64),
        ("chunks", c_void_p),
        ("num_rows", c_int64),
        ("max_length", c_int64),
        ("row_tokens", c_void_p),
        ("tokens_per_row", c_int64),
        ("row_tables", POINTER(c_void_p)),
        ("blocks_per_row", c_int64),
        ("num_kv_groups", c_int64),
        ("block_size", c_int64),
        ("num_tree_depths", c_int64),
        ("tree_depths", c_void_p),
        ("tree_paths", c_void_p),
        ("max_tokens", c_int64),
        ("max_chunks", c_int64),
        ("max_logits", c_int64),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("query_starts", c_void_p),
        ("ends", c_void_p),
        ("tables", POINTER(c_void_p)),
        ("slots", POINTER(c_void_p)),
        ("logit_indices", c_void_p),
    )


class DraftingPass(Structure):
    _fields_ = (
        ("instructions", Instructions),
        ("assembly", POINTER(StepAssembly)),
        ("input_states", StridedRows),
        ("output_states", StridedRows),
    )


class Drafting(Structure):
    _fields_ = (
        ("first", DraftingPass),
        ("next", DraftingPass),
        ("max_chunks", c_int64),
        ("max_draft_tokens", c_int64),
        ("num_draft_tokens", c_void_p),
        ("chunk_ids", c_void_p),
        ("draw_rows", c_void_p),
        ("drawn", c_void_p),
        ("draft_tokens", c_void_p),
        ("nanoseconds", c_void_p),
    )


class BoundsError(Structure):
    _fields_ = (("limit", c_int32), ("value", c_int64), ("min", c_int64), ("max", c_int64))


ARGUMENTS: dict[Operation, type[Structure]] = {
    Operation.EMBED: EmbedArgs,
    Operation.ADD: AddArgs,
    Operation.SCALE: ScaleArgs,
    Operation.SOFTCAP: SoftcapArgs,
    Operation.RMS_NORM: NormArgs,
    Operation.LAYER_NORM: NormArgs,
    Operation.ROTATE: RotateArgs,
    Operation.ACTIVATE: ActivateArgs,
    Operation.PACK: PackArgs,
    Operation.LINEAR: LinearArgs,
    Operation.WRITE_KV: WriteKvArgs,
    Operation.ATTEND: AttendArgs,
    Operation.ROUTE: RouteArgs,
    Operation.GROUP: GroupArgs,
    Operation.GATHER: GatherArgs,
    Operation.EXPERT_LINEAR: ExpertLinearArgs,
    Operation.COMBINE: CombineArgs,
    Operation.DRAW: DrawArgs,
    Operation.SELECT: SelectArgs,
    Operation.SCATTER: ScatterArgs,
}


def _capacity(calls: list[RecordedCall], capacity: ProgramCapacity) -> ProgramCapacity:
    """Lower a capacity to the smallest of the tables and caches that the calls look up."""
    for operation, arguments, _ in calls:
        if isinstance(arguments, EmbedArgs):
            field = "tokens" if arguments.index == IndexSource.TOKENS else "positions"
            _lower(capacity, field, arguments.table.num_outputs)
        if operation in (Operation.WRITE_KV, Operation.ATTEND):
            cache = arguments.cache
            assert capacity.block_size in (0, cache.block_size), "blocks of a program have one size"
            capacity.block_size, capacity.kv_groups = cache.block_size, max(capacity.kv_groups, cache.kv_group + 1)
            _lower(capacity, "blocks", cache.num_blocks)
    return capacity


def _lower(capacity: ProgramCapacity, field: str, bound: int) -> None:
    known = getattr(capacity, field)
    setattr(capacity, field, min(known, bound) if known else bound)
