"""The operations by native kernels: run at once, or recorded into a program that is run again and again.

Activations are float32 rows throughout. A product packs its input first, as its weights want it: int8 in groups,
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
from archerfish.ops.cpu import copies, program
from archerfish.ops.cpu.library import Team
from archerfish.ops.cpu.program import ACTIVATIONS, Format, Index, Number, Operation
from archerfish.ops.cpu.recording import Recording
from archerfish.ops.packed import PackedExperts, PackedWeight, pack_experts, pack_floats
from archerfish.ops.signatures import Chunks, Drawn, DrawRows, LayerCache, Routed

_NUMBERS = {torch.float32: Number.FLOAT32, torch.bfloat16: Number.BFLOAT16, torch.int8: Number.INT8}
_CACHE_LINE, _PAGE_PART = 64, 1024


NATIVE_OPERATIONS = (
    *("linear", "embed", "add", "scale", "softcap", "rms_norm", "layer_norm", "rotate", "activate"),
    *("route", "experts", "attend", "write_kv", "copy_blocks", "move_kv", "draw"),
)


class NativeOps:
    """One method for each operation."""

    LANES = 16
    """Numbers that are worked on at once: heads and blocks come in multiples."""
    MOST_HEAD_DIM = program.MOST_HEAD_DIM
    MOST_EXPERTS = 1 << 16
    """A thread has room for a number of each."""
    MOST_TOKENS = 1 << 20
    """Of a vocabulary: a thread has room for two numbers of each."""
    MOST_WIDTH = 1 << 20
    """Of a row: a thread has memory for one, which is packed as soon as it is made."""
    MOST_QUERIES = 1024
    """Query heads that share a head of keys: a thread works on all of them at once."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.kernels = team.kernels
        self._recording: Recording | None = None
        self._last_packed: tuple[Tensor, ...] = ()
        self._parts = _Parts()

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Its operations by their names."""
        return {name: getattr(self, name) for name in NATIVE_OPERATIONS}

    def adapter(self, operation: str) -> Callable[..., tuple[Any, ...]]:
        """Makes arguments of the reference's kind into this kind: float32 rows, packed matrices."""

        def adapt(*arguments: Any) -> tuple[Any, ...]:
            kept = {"embed": (1,)}.get(operation, ())  # Tables stay as they are.
            wide = [
                one.float() if isinstance(one, Tensor) and one.is_floating_point() and place not in kept else one
                for place, one in enumerate(arguments)
            ]
            if operation == "linear" and isinstance(arguments[1], Tensor):
                wide[1] = pack_floats(arguments[1])
            if operation == "experts":
                wide[1:3] = (_packed_experts(one) for one in arguments[1:3])
                wide[3] = arguments[3].int()
            return tuple(wide)

        return adapt

    @contextmanager
    def recording(self, recording: Recording) -> Iterator[None]:
        """What is called meanwhile is written down instead of run."""
        self._recording = recording
        try:
            yield
        finally:
            self._recording = None

    # -- operations ---------------------------------------------------------------------------------------------------

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        assert x.shape[1] == weight.num_inputs and (bias is None or _is_row(bias, weight.num_outputs))
        out = self._empty(x.shape[0], weight.num_outputs)
        packed = self._packed(x, weight)
        operands = program.Linear(_rows(out), packed, _weight(weight, bias))
        self._do(Operation.LINEAR, operands, _rows_only(x), x, out, weight, bias)
        return out

    def embed(self, index: Tensor, table: PackedWeight | Tensor) -> Tensor:
        assert index.dtype == torch.int64 and index.is_contiguous()
        out = self._empty(len(index), table.shape[1])
        which = Index.TOKENS
        if self._recording is not None:
            which = self._recording.index(index)
        weight = _weight(table, None) if isinstance(table, PackedWeight) else _plain_table(table)
        operands = program.Embed(_rows(out), weight, which)
        step = program.Step(num_rows=len(index), tokens=index.data_ptr())
        self._do(Operation.EMBED, operands, step, index, out, table)
        return out

    def add(self, left: Tensor, right: Tensor, factor: float) -> Tensor:
        assert left.shape == right.shape and left.dim() == 2
        out = self._empty(*left.shape)
        operands = program.Add(_rows(out), _rows(left), _rows(right), factor)
        self._do(Operation.ADD, operands, _rows_only(left), left, right, out)
        return out

    def scale(self, x: Tensor, factor: float) -> Tensor:
        assert x.dim() == 2
        out = self._empty(*x.shape)
        self._do(Operation.SCALE, program.Scale(_rows(out), _rows(x), factor), _rows_only(x), x, out)
        return out

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        assert x.dim() == 2
        out = self._empty(*x.shape)
        self._do(Operation.SOFTCAP, program.Softcap(_rows(out), _rows(x), cap), _rows_only(x), x, out)
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, weight_offset: float) -> Tensor:
        return self._norm(Operation.RMS_NORM, x, weight, None, eps, weight_offset)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        assert x.dim() == 2 and _is_row(bias, x.shape[-1])
        return self._norm(Operation.LAYER_NORM, x, weight, bias, eps, 0.0)

    def rotate(self, x: Tensor, angles: Tensor) -> Tensor:
        assert len(angles) == len(x) and angles.shape[1] % 2 == 0 and angles.shape[1] <= x.shape[-1]
        out = self._empty(*x.shape)
        operands = program.Rotate(_rows(out), _rows(x), _rows(angles))
        self._do(Operation.ROTATE, operands, _rows_only(x), x, angles, out)
        return out

    def activate(self, x: Tensor, activation: Activation, gated: bool) -> Tensor:
        assert x.dim() == 2 and x.shape[1] % (2 if gated else 1) == 0 and x.shape[1] <= 2 * self.MOST_WIDTH
        out = self._empty(len(x), x.shape[1] // (2 if gated else 1))
        operands = program.Activate(_rows(out), _rows(x), ACTIVATIONS[activation], gated, times=1)
        self._do(Operation.ACTIVATE, operands, _rows_only(x), x, out)
        return out

    def route(self, logits: Tensor, num_chosen: int, normalize: bool) -> Routed:
        num_experts = logits.shape[1]
        assert num_chosen <= num_experts <= self.MOST_EXPERTS
        routed = Routed(
            self._empty(len(logits), num_chosen, dtype=torch.int32),
            self._empty(len(logits), num_chosen),
        )
        operands = program.Route(_rows(logits), _routes(*routed, num_experts), normalize)
        self._do(Operation.ROUTE, operands, _rows_only(logits), logits, *routed)
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
        """A row has a place for each expert it chose; places lie by expert until the last line brings rows together."""
        num_experts = len(gate_up.data)
        assert len(x) == len(chosen) == len(weights) and num_experts == len(down.data) <= self.MOST_EXPERTS
        if self._recording is None and chosen.numel():  # Else they are what a router of this program will choose.
            assert int(chosen.min()) >= 0 and int(chosen.max()) < num_experts
        step, times = _rows_only(x), chosen.shape[1]
        num_places, size = len(x) * times, down.first.num_inputs
        routes, groups = _routes(chosen, weights, len(down.data)), self._groups(num_places)
        self._do(Operation.GROUP, program.Group(routes, groups.operand), step, chosen, weights, *groups.kept)
        taken = self._room(num_places, gate_up.first)
        gather = program.Gather(self._packed(x, gate_up.first), taken.operand, routes, groups.operand)
        self._do(Operation.GATHER, gather, step, *taken.kept)
        inner = self._expert_linear(taken, gate_up, groups, step)
        made = self._room(num_places, down.first)
        activate = program.Activate(
            out=_rows(inner[:, :size]),  # Over the gate, number by number.
            input=_rows(inner),
            activation=ACTIVATIONS[activation],
            gated=True,
            packed=made.operand,
            packs=True,
            times=times,
        )
        self._do(Operation.ACTIVATE, activate, step, inner, *made.kept)
        summands, out = self._expert_linear(made, down, groups, step), self._empty(*x.shape)
        combine = program.Combine(_rows(out), _rows(summands), routes, groups.operand)
        self._do(Operation.COMBINE, combine, step, summands, out)
        return out

    def write_kv(self, k: Tensor, v: Tensor, cache: LayerCache, slots: Tensor) -> None:
        assert k.shape == v.shape == (len(k), *cache.keys.shape[2:])
        assert self._recording is not None or (slots.dtype == torch.int64 and len(slots) == len(k))
        group = 0 if self._recording is None else self._recording.group(slots)
        operands = program.WriteKv(keys=_rows(k), values=_rows(v), cache=_cache(cache, group))
        step = program.Step(num_rows=len(k), num_groups=1, slots=(c_void_p * 1)(slots.data_ptr()))
        self._do(Operation.WRITE_KV, operands, step, k, v, cache)

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
        assert q.shape[1] % num_heads == 0 and q.shape[1] // num_heads <= self.MOST_QUERIES and q.shape[2] == head_dim
        out = self._empty(*q.shape)
        operands = program.Attend(out=_rows(out), queries=_rows(q), cache=_cache(cache, group), scale=scale)
        operands.parts = self._parts.pointers
        operands.softcap, operands.window = softcap or 0.0, window or 0
        step = _rows_only(q) if self._recording is not None else make_step(len(q), None, None, chunks)
        self._do(Operation.ATTEND, operands, step, q, cache, self._parts, out)
        return out

    copy_blocks = staticmethod(copies.copy_blocks)
    move_kv = staticmethod(copies.move_kv)

    def draw(self, logits: Tensor, rows: DrawRows) -> Drawn:
        assert logits.shape[1] <= self.MOST_TOKENS, f"a vocabulary of {logits.shape[1]} is more than there is room for"
        assert len(logits) == len(rows), f"{len(rows)} rows to draw for, and logits of {len(logits)}"
        rows = np.ascontiguousarray(rows)
        tokens, peaks = torch.empty(len(rows), dtype=torch.int64), torch.empty(len(rows))
        operands = program.Draw(_rows(logits), rows.ctypes.data, tokens.data_ptr(), peaks.data_ptr())
        self._do(Operation.DRAW, operands, _rows_only(logits), logits, rows, tokens, peaks)
        return Drawn(tokens, peaks)

    def select(self, x: Tensor) -> Tensor:
        """In a recording: the rows of [T, width] that a step picks. What is made of them is about those rows only."""
        assert self._recording is not None
        self._recording.select()
        out = self._empty(*x.shape)
        self._do(Operation.SELECT, program.Select(_rows(out), _rows(x)), _rows_only(x), x, out)
        return out

    # -- how ----------------------------------------------------------------------------------------------------------

    def _norm(
        self, operation: Operation, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float
    ) -> Tensor:
        assert _is_row(weight, x.shape[-1]) and x.shape[-1] <= self.MOST_WIDTH
        out = self._empty(*x.shape)
        operands = program.Norm(out=_rows(out), input=_rows(x), eps=eps, weight_offset=offset)
        operands.weight = weight.data_ptr()
        operands.bias = None if bias is None else bias.data_ptr()
        self._do(operation, operands, _rows_only(x), x, weight, bias, out)
        return out

    def _packed(self, x: Tensor, weight: PackedWeight) -> program.Packed:
        """x as the weights want it."""
        if self._recording is not None and (known := self._recording.packed(x, weight)) is not None:
            return known
        room = self._room(len(x), weight)
        self._do(Operation.PACK, program.Pack(_rows(x), room.operand), _rows_only(x), x, *room.kept)
        if self._recording is not None:
            self._recording.keep_packed(x, weight, room.operand)
        else:
            self._last_packed = room.kept  # Read by the product that follows at once.
        return room.operand

    def _room(self, num_rows: int, weight: PackedWeight) -> "_Room[program.Packed]":
        """For rows as the weights want them."""
        number = weight.format if weight.format in (Format.FLOAT32, Format.BFLOAT16) else Format.INT8
        width, groups = weight.padded_inputs, weight.padded_inputs // weight.group
        dtype = {Format.FLOAT32: torch.float32, Format.BFLOAT16: torch.bfloat16, Format.INT8: torch.int8}[number]
        # Rows a page apart would fall on the same few lines of a cache.
        stride = width * dtype.itemsize
        stride += _CACHE_LINE if stride % _PAGE_PART == 0 else 0
        data = self._empty(num_rows, stride, dtype=torch.uint8)
        packed = program.Packed(number, weight.group, width, stride, data.data_ptr())
        if number != Format.INT8:
            return _Room(packed, (data,))
        scales, sums = self._empty(num_rows, groups), self._empty(num_rows, groups, dtype=torch.int32)
        packed.scales, packed.sums = scales.data_ptr(), sums.data_ptr()
        return _Room(packed, (data, scales, sums))

    def _groups(self, num_places: int) -> "_Room[program.Groups]":
        """For rows sorted by expert. One number of blocks would do, but memory is counted by row."""
        places = self._empty(num_places, dtype=torch.int32)
        blocks = self._empty(num_places, ctypes.sizeof(program.Block), dtype=torch.uint8)
        num_blocks = self._empty(num_places, dtype=torch.int64)
        kept = (places, blocks, num_blocks)
        return _Room(program.Groups(*(tensor.data_ptr() for tensor in kept)), kept)

    def _expert_linear(
        self,
        rows: "_Room[program.Packed]",
        weights: PackedExperts,
        groups: "_Room[program.Groups]",
        step: program.Step,
    ) -> Tensor:
        out = self._empty(len(rows.kept[0]), weights.first.num_outputs)
        operands = program.ExpertLinear(_rows(out), rows.operand, _expert_weights(weights), groups.operand)
        self._do(Operation.EXPERT_LINEAR, operands, step, out, weights)
        return out

    def _empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        if self._recording is not None:
            self._recording.keep_buffer(tensor)
        return tensor

    def _do(self, operation: Operation, operands: Structure, step: program.Step, *alive: Any) -> None:
        """Write it down, or run it. What is alive must be until it has run."""
        if self._recording is not None:
            self._recording.write_down(operation, operands, alive)
            return
        line = program.Line(operation, operands)
        self.team.run(program.Instructions.of([line], max_rows=step.num_rows), step)


Operand = TypeVar("Operand", bound=Structure)


@dataclass(frozen=True, slots=True)
class _Room(Generic[Operand]):
    """Memory for what one instruction leaves to the next."""

    operand: Operand
    kept: tuple[Tensor, ...]
    """What it points to."""


def make_step(num_rows: int, tokens: Tensor | None, positions: Tensor | None, chunks: Chunks | None) -> program.Step:
    """The tensors must outlive the step."""
    step = program.Step(num_rows=num_rows)
    step.tokens = None if tokens is None else tokens.data_ptr()
    step.positions = None if positions is None else positions.data_ptr()
    if chunks is not None:
        step.num_groups = len(chunks.tables)
        step.num_chunks, step.table_width = len(chunks.host_ends), chunks.tables[0].shape[1]
        step.query_starts, step.ends = chunks.query_starts.data_ptr(), chunks.ends.data_ptr()
        many = c_void_p * len(chunks.tables)
        step.tables = many(*(table.data_ptr() for table in chunks.tables))
        step.slots = many(*(slots.data_ptr() for slots in chunks.slots)) if chunks.slots else None
        if chunks.trees is not None:
            step.depths, step.lines = chunks.trees.depths.data_ptr(), chunks.trees.paths.data_ptr()
    return step


def _rows_only(x: Tensor) -> program.Step:
    return program.Step(num_rows=len(x))


def _rows(x: Tensor) -> program.Rows:
    assert x.dtype == torch.float32 and (x.stride(-1) == 1 or not x.numel()), "native operations work on float32 rows"
    if x.dim() == 2:
        return program.Rows(x.data_ptr(), x.stride(0), 0, 1, x.shape[1])
    return program.Rows(x.data_ptr(), x.stride(0), x.stride(1), x.shape[1], x.shape[2])


def _is_row(x: Tensor, width: int) -> bool:
    return x.shape == (width,) and x.dtype == torch.float32 and x.is_contiguous()


def _weight(weight: PackedWeight, bias: Tensor | None) -> program.Weight:
    return program.Weight(
        weight.format,
        weight.group,
        weight.num_outputs,
        weight.num_inputs,
        weight.padded_inputs,
        weight.data.shape[1],
        weight.data.data_ptr(),
        None if weight.scales is None else weight.scales.data_ptr(),
        None if bias is None else bias.data_ptr(),
    )


def _expert_weights(weights: PackedExperts) -> program.ExpertWeights:
    scale_stride = 0 if weights.scales is None else weights.scales.stride(0)
    return program.ExpertWeights(_weight(weights.first, None), weights.data.stride(0), scale_stride)


def _packed_experts(weights: PackedExperts | Tensor) -> PackedExperts:
    return weights if isinstance(weights, PackedExperts) else pack_experts(weights, pack_floats)


def _routes(chosen: Tensor, weights: Tensor, num_experts: int) -> program.Routes:
    assert chosen.dtype == torch.int32 and chosen.is_contiguous() and weights.is_contiguous()
    return program.Routes(chosen.data_ptr(), weights.data_ptr(), chosen.shape[1], num_experts)


def _plain_table(table: Tensor) -> program.Weight:
    """One row after the other: panels of no bytes."""
    assert table.is_contiguous()
    number = {torch.float32: Format.FLOAT32, torch.bfloat16: Format.BFLOAT16}[table.dtype]
    rows, width = table.shape
    return program.Weight(number, 1, rows, width, width, 0, table.data_ptr())


def _cache(cache: LayerCache, group: int) -> program.Cache:
    assert all(tensor.is_contiguous() for tensor in cache.tensors), "blocks are arranged anew within"
    num_blocks, block_size, num_heads, head_dim = cache.keys.shape
    assert cache.keys.shape == cache.values.shape and cache.keys.dtype == cache.values.dtype
    assert head_dim % NativeOps.LANES == 0 and head_dim <= NativeOps.MOST_HEAD_DIM and block_size % NativeOps.LANES == 0
    has_scales = [
        scales is not None and scales.shape == cache.keys.shape[:3] for scales in (cache.key_scales, cache.value_scales)
    ]
    assert all(has_scales) if cache.keys.dtype == torch.int8 else not any(has_scales)
    return program.Cache(
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        None if cache.key_scales is None else cache.key_scales.data_ptr(),
        None if cache.value_scales is None else cache.value_scales.data_ptr(),
        _NUMBERS[cache.keys.dtype],
        block_size,
        num_heads,
        head_dim,
        group,
        num_blocks,
    )


class _Parts:
    """Room for parts of attention: one for all programs of a team, which run one after the other."""

    def __init__(self) -> None:
        # Zeroed by numpy, whose pages take no room until they are written: short contexts never do.
        self._sums = np.zeros(program.MOST_PARTS * program.MOST_HEAD_DIM, np.float32)
        self._peaks, self._totals = (np.zeros(program.MOST_PARTS, np.float32) for _ in range(2))
        self.arrived = np.zeros(program.MOST_PARTS, np.int32)
        every = (self._sums, self._peaks, self._totals, self.arrived)
        self.pointers = program.Parts(*(array.ctypes.data for array in every))
