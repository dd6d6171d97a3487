"""The operations by native kernels: run at once, or recorded into a program that is run again and again.

Activations are float32 rows throughout. A GEMM packs its input first, as its weights need it: int8 in groups,
bfloat16, or float32.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import Structure, c_void_p
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from archerfish.arch.arch import Activation
from archerfish.ops.cpu import cache_copies, program
from archerfish.ops.cpu.arguments import (
    LANES,
    AttentionWorkspace,
    expert_routes,
    expert_weights,
    is_vector,
    paged_cache,
    rows_only,
    step_view,
    strided_rows,
    unpacked_table,
    weight_matrix,
)
from archerfish.ops.cpu.library import Team
from archerfish.ops.cpu.program import ACTIVATIONS, Format, IndexSource, Operation, RecordedCall
from archerfish.ops.cpu.recording import CpuRecording
from archerfish.ops.packed import PackedExperts, PackedWeight, pack_experts, pack_floats
from archerfish.ops.signatures import Chunks, Drawn, DrawRows, LayerCache, Routed

_CACHE_LINE_BYTES = 64
_ALIASED_STRIDE_BYTES = 1024
"""Rows at multiples of this distance share few sets of a CPU's cache."""


NATIVE_OPERATIONS = (
    *("linear", "embed", "add", "scale", "softcap", "rms_norm", "layer_norm", "rotate", "activate"),
    *("route", "experts", "attend", "write_kv", "copy_blocks", "move_kv", "draw"),
)


class NativeOps:
    """One method for each operation."""

    LANES = LANES
    MAX_HEAD_DIM = program.MAX_HEAD_DIM
    MAX_EXPERTS = program.MAX_EXPERTS
    MAX_VOCAB_SIZE = program.MAX_VOCAB_SIZE
    MAX_ROW_WIDTH = program.MAX_ROW_WIDTH
    MAX_QUERIES_PER_KV_HEAD = program.MAX_QUERIES_PER_KV_HEAD

    def __init__(self, team: Team) -> None:
        self.team = team
        self.kernels = team.kernels
        self._recording: CpuRecording | None = None
        self._last_packed: tuple[Tensor, ...] = ()
        self._attention_workspace = AttentionWorkspace()

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Return the operations by their names."""
        return {name: getattr(self, name) for name in NATIVE_OPERATIONS}

    def adapter(self, operation: str) -> Callable[..., tuple[Any, ...]]:
        """Return a function that turns the reference's arguments into native ones: float32 rows, packed matrices."""

        def adapt(*arguments: Any) -> tuple[Any, ...]:
            unchanged = {"embed": (1,)}.get(operation, ())  # Tables may have any format.
            native = [
                value.float()
                if isinstance(value, Tensor) and value.is_floating_point() and index not in unchanged
                else value
                for index, value in enumerate(arguments)
            ]
            if operation == "linear" and isinstance(arguments[1], Tensor):
                native[1] = pack_floats(arguments[1])
            if operation == "experts":
                native[1:3] = (_packed_experts(weights) for weights in arguments[1:3])
                native[3] = arguments[3].int()
            return tuple(native)

        return adapt

    @contextmanager
    def recording(self, recording: CpuRecording) -> Iterator[None]:
        """Record the operations that are called in this context instead of running them."""
        self._recording = recording
        try:
            yield
        finally:
            self._recording = None

    # -- operations ---------------------------------------------------------------------------------------------------

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        assert x.shape[1] == weight.num_inputs and (bias is None or is_vector(bias, weight.num_outputs))
        out = self._empty(x.shape[0], weight.num_outputs)
        packed = self._packed(x, weight)
        arguments = program.LinearArgs(strided_rows(out), packed, weight_matrix(weight, bias))
        self._call(Operation.LINEAR, arguments, rows_only(x), x, out, weight, bias)
        return out

    def embed(self, index: Tensor, table: PackedWeight | Tensor) -> Tensor:
        assert index.dtype == torch.int64 and index.is_contiguous()
        out = self._empty(len(index), table.shape[1])
        source = IndexSource.TOKENS if self._recording is None else self._recording.index_source(index)
        matrix = weight_matrix(table, None) if isinstance(table, PackedWeight) else unpacked_table(table)
        arguments = program.EmbedArgs(strided_rows(out), matrix, source)
        step = program.StepView(num_rows=len(index), tokens=index.data_ptr())
        self._call(Operation.EMBED, arguments, step, index, out, table)
        return out

    def add(self, left: Tensor, right: Tensor, factor: float) -> Tensor:
        assert left.shape == right.shape and left.dim() == 2
        out = self._empty(*left.shape)
        arguments = program.AddArgs(strided_rows(out), strided_rows(left), strided_rows(right), factor)
        self._call(Operation.ADD, arguments, rows_only(left), left, right, out)
        return out

    def scale(self, x: Tensor, factor: float) -> Tensor:
        assert x.dim() == 2
        out = self._empty(*x.shape)
        arguments = program.ScaleArgs(strided_rows(out), strided_rows(x), factor)
        self._call(Operation.SCALE, arguments, rows_only(x), x, out)
        return out

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        assert x.dim() == 2
        out = self._empty(*x.shape)
        arguments = program.SoftcapArgs(strided_rows(out), strided_rows(x), cap)
        self._call(Operation.SOFTCAP, arguments, rows_only(x), x, out)
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, weight_offset: float) -> Tensor:
        return self._norm(Operation.RMS_NORM, x, weight, None, eps, weight_offset)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        assert x.dim() == 2 and is_vector(bias, x.shape[-1])
        return self._norm(Operation.LAYER_NORM, x, weight, bias, eps, 0.0)

    def rotate(self, x: Tensor, angles: Tensor) -> Tensor:
        assert len(angles) == len(x) and angles.shape[1] % 2 == 0 and angles.shape[1] <= x.shape[-1]
        out = self._empty(*x.shape)
        arguments = program.RotateArgs(strided_rows(out), strided_rows(x), strided_rows(angles))
        self._call(Operation.ROTATE, arguments, rows_only(x), x, angles, out)
        return out

    def activate(self, x: Tensor, activation: Activation, gated: bool) -> Tensor:
        assert x.dim() == 2 and x.shape[1] % (2 if gated else 1) == 0 and x.shape[1] <= 2 * self.MAX_ROW_WIDTH
        out = self._empty(len(x), x.shape[1] // (2 if gated else 1))
        arguments = program.ActivateArgs(
            strided_rows(out), strided_rows(x), ACTIVATIONS[activation], gated, rows_per_token=1
        )
        self._call(Operation.ACTIVATE, arguments, rows_only(x), x, out)
        return out

    def route(self, logits: Tensor, num_chosen: int, normalize: bool) -> Routed:
        num_experts = logits.shape[1]
        assert num_chosen <= num_experts <= self.MAX_EXPERTS
        routed = Routed(
            self._empty(len(logits), num_chosen, dtype=torch.int32),
            self._empty(len(logits), num_chosen),
        )
        arguments = program.RouteArgs(strided_rows(logits), expert_routes(*routed, num_experts), normalize)
        self._call(Operation.ROUTE, arguments, rows_only(logits), logits, *routed)
        return routed

    def experts(
        self,
        x: Tensor,
        gate_up: PackedExperts,
        down: PackedExperts,
        chosen: Tensor,
        weights: Tensor,
        activation: Activation,
    ) -> Tensor:
        """Sort rows by expert, each once for every expert it has, and combine them again at the end."""
        num_experts = len(gate_up.data)
        assert len(x) == len(chosen) == len(weights) and num_experts == len(down.data) <= self.MAX_EXPERTS
        if self._recording is None and chosen.numel():  # In a recording they come from a router of the same program.
            assert int(chosen.min()) >= 0 and int(chosen.max()) < num_experts
        step, top_k = rows_only(x), chosen.shape[1]
        num_sorted, size = len(x) * top_k, down.first.num_inputs
        routes, groups = expert_routes(chosen, weights, len(down.data)), self._expert_groups(num_sorted)
        group = program.GroupArgs(routes, groups.operand)
        self._call(Operation.GROUP, group, step, chosen, weights, *groups.tensors)
        sorted_rows = self._packed_buffer(num_sorted, gate_up.first)
        gather = program.GatherArgs(self._packed(x, gate_up.first), sorted_rows.operand, routes, groups.operand)
        self._call(Operation.GATHER, gather, step, *sorted_rows.tensors)
        inner = self._expert_linear(sorted_rows, gate_up, groups, step)
        activated = self._packed_buffer(num_sorted, down.first)
        activate = program.ActivateArgs(
            out=strided_rows(inner[:, :size]),  # In place of the gate.
            input=strided_rows(inner),
            activation=ACTIVATIONS[activation],
            gated=True,
            packed=activated.operand,
            has_packed=True,
            rows_per_token=top_k,
        )
        self._call(Operation.ACTIVATE, activate, step, inner, *activated.tensors)
        summands, out = self._expert_linear(activated, down, groups, step), self._empty(*x.shape)
        combine = program.CombineArgs(strided_rows(out), strided_rows(summands), routes, groups.operand)
        self._call(Operation.COMBINE, combine, step, summands, out)
        return out

    def write_kv(self, k: Tensor, v: Tensor, cache: LayerCache, slots: Tensor) -> None:
        assert k.shape == v.shape == (len(k), *cache.keys.shape[2:])
        assert self._recording is not None or (slots.dtype == torch.int64 and len(slots) == len(k))
        kv_group = 0 if self._recording is None else self._recording.kv_group(slots)
        arguments = program.WriteKvArgs(
            keys=strided_rows(k), values=strided_rows(v), cache=paged_cache(cache, kv_group)
        )
        step = program.StepView(num_rows=len(k), num_kv_groups=1, slots=(c_void_p * 1)(slots.data_ptr()))
        self._call(Operation.WRITE_KV, arguments, step, k, v, cache)

    def attend(
        self,
        q: Tensor,
        cache: LayerCache,
        chunks: Chunks,
        group: int,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        num_heads, head_dim = cache.keys.shape[2:]
        assert q.shape[1] % num_heads == 0 and q.shape[1] // num_heads <= self.MAX_QUERIES_PER_KV_HEAD
        assert q.shape[2] == head_dim
        out = self._empty(*q.shape)
        arguments = program.AttendArgs(
            out=strided_rows(out),
            queries=strided_rows(q),
            cache=paged_cache(cache, group),
            splits=self._attention_workspace.states,
            scale=scale,
            softcap=softcap or 0.0,
            window=window or 0,
        )
        step = rows_only(q) if self._recording is not None else step_view(len(q), None, None, chunks)
        self._call(Operation.ATTEND, arguments, step, q, cache, self._attention_workspace, out)
        return out

    copy_blocks = staticmethod(cache_copies.copy_blocks)
    move_kv = staticmethod(cache_copies.move_kv)

    def draw(self, logits: Tensor, rows: DrawRows) -> Drawn:
        assert logits.shape[1] <= self.MAX_VOCAB_SIZE, (
            f"a vocabulary of {logits.shape[1]} exceeds {self.MAX_VOCAB_SIZE}"
        )
        assert len(logits) == len(rows), f"parameters of {len(rows)} rows and logits of {len(logits)}"
        rows = np.ascontiguousarray(rows)
        tokens, peaks = torch.empty(len(rows), dtype=torch.int64), torch.empty(len(rows))
        arguments = program.DrawArgs(strided_rows(logits), rows.ctypes.data, tokens.data_ptr(), peaks.data_ptr())
        self._call(Operation.DRAW, arguments, rows_only(logits), logits, rows, tokens, peaks)
        return Drawn(tokens, peaks)

    def select(self, x: Tensor) -> Tensor:
        """Record the selection of the rows of [T, width] at a step's logit indices; later operations work on these."""
        assert self._recording is not None
        self._recording.select()
        out = self._empty(*x.shape)
        arguments = program.SelectArgs(strided_rows(out), strided_rows(x))
        self._call(Operation.SELECT, arguments, rows_only(x), x, out)
        return out

    # -- parts of operations ------------------------------------------------------------------------------------------

    def _norm(
        self, operation: Operation, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float
    ) -> Tensor:
        assert is_vector(weight, x.shape[-1]) and x.shape[-1] <= self.MAX_ROW_WIDTH
        out = self._empty(*x.shape)
        arguments = program.NormArgs(out=strided_rows(out), input=strided_rows(x), eps=eps, weight_offset=offset)
        arguments.weight = weight.data_ptr()
        arguments.bias = None if bias is None else bias.data_ptr()
        self._call(operation, arguments, rows_only(x), x, weight, bias, out)
        return out

    def _packed(self, x: Tensor, weight: PackedWeight) -> program.PackedRows:
        """Pack rows as the weight needs them, once in a recording."""
        if self._recording is not None and (packed := self._recording.packed(x, weight)) is not None:
            return packed
        buffer = self._packed_buffer(len(x), weight)
        arguments = program.PackArgs(strided_rows(x), buffer.operand)
        self._call(Operation.PACK, arguments, rows_only(x), x, *buffer.tensors)
        if self._recording is not None:
            self._recording.remember_packed(x, weight, buffer.operand)
        else:
            self._last_packed = buffer.tensors  # Read by the GEMM that follows at once.
        return buffer.operand

    def _packed_buffer(self, num_rows: int, weight: PackedWeight) -> "_Buffer[program.PackedRows]":
        number_format = weight.format if weight.format in (Format.FLOAT32, Format.BFLOAT16) else Format.INT8
        width, groups = weight.padded_inputs, weight.padded_inputs // weight.group
        dtypes = {Format.FLOAT32: torch.float32, Format.BFLOAT16: torch.bfloat16, Format.INT8: torch.int8}
        stride = width * dtypes[number_format].itemsize
        stride += _CACHE_LINE_BYTES if stride % _ALIASED_STRIDE_BYTES == 0 else 0
        data = self._empty(num_rows, stride, dtype=torch.uint8)
        packed = program.PackedRows(number_format, weight.group, width, stride, data.data_ptr())
        if number_format != Format.INT8:
            return _Buffer(packed, (data,))
        scales, sums = self._empty(num_rows, groups), self._empty(num_rows, groups, dtype=torch.int32)
        packed.scales, packed.sums = scales.data_ptr(), sums.data_ptr()
        return _Buffer(packed, (data, scales, sums))

    def _expert_groups(self, num_sorted: int) -> "_Buffer[program.ExpertGroups]":
        indices = self._empty(num_sorted, dtype=torch.int32)
        blocks = self._empty(num_sorted, ctypes.sizeof(program.ExpertBlock), dtype=torch.uint8)
        # Only one number is used, but a recording has memory by rows.
        num_blocks = self._empty(num_sorted, dtype=torch.int64)
        tensors = (indices, blocks, num_blocks)
        return _Buffer(program.ExpertGroups(*(tensor.data_ptr() for tensor in tensors)), tensors)

    def _expert_linear(
        self,
        rows: "_Buffer[program.PackedRows]",
        weights: PackedExperts,
        groups: "_Buffer[program.ExpertGroups]",
        step: program.StepView,
    ) -> Tensor:
        out = self._empty(len(rows.tensors[0]), weights.first.num_outputs)
        arguments = program.ExpertLinearArgs(strided_rows(out), rows.operand, expert_weights(weights), groups.operand)
        self._call(Operation.EXPERT_LINEAR, arguments, step, out, weights)
        return out

    def _empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        if self._recording is not None:
            self._recording.add_buffer(tensor)
        return tensor

    def _call(self, operation: Operation, arguments: Structure, step: program.StepView, *referenced: Any) -> None:
        """Record the operation, or run it. The objects that its arguments point to are referenced until it has run."""
        if self._recording is not None:
            self._recording.record(operation, arguments, referenced)
            return
        call = RecordedCall(operation, arguments)
        self.team.run(program.Instructions.of([call], max_rows=step.num_rows), step)


Operand = TypeVar("Operand", bound=Structure)


@dataclass(frozen=True, slots=True)
class _Buffer(Generic[Operand]):
    """Memory that one instruction writes and the next ones read."""

    operand: Operand
    tensors: tuple[Tensor, ...]
    """The tensors that the operand points to."""


def _packed_experts(weights: PackedExperts | Tensor) -> PackedExperts:
    return weights if isinstance(weights, PackedExperts) else pack_experts(weights, pack_floats)
