"""A model on a GPU: recorded once, captured into graphs for the shapes that steps have, replayed from then on.

A step is few copies of what is new, and one replay. Its tokens are found on the device, and drawn there too where
nothing about the draw needs the host: then the host need not wait, and reads them when it gets to it.
"""

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archerfish.arch.arch import Arch
from archerfish.errors import OutOfBounds
from archerfish.execution.backends.cuda.buckets import bucket
from archerfish.execution.backends.cuda.device_rows import DeviceRows
from archerfish.execution.backends.cuda.step_buffers import StepRoom, StepSize
from archerfish.execution.step.inputs import Outline, no_chunks
from archerfish.execution.step.model import Most, Passed
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.ops.signatures import DrawRows
from archerfish.ops.triton.graph import RECORDED_ROWS, Program, Recording, find_tokens, keep_tokens, scatter
from archerfish.ops.triton.operations import TritonOps
from archerfish.ops.triton.runtime import is_rehearsal
from archerfish.ops.triton.sampling import DrawScratch, Kind, draw_into, kind_of

_FEW_TOKENS = 512
"""Of a step that takes less time than launching it, whatever the model."""
_HELD_UP = 0.8
"""Launching that takes so much of a step's time, or more, holds it up."""


class Shape(NamedTuple):
    """What steps that are run alike have in common."""

    size: StepSize
    is_decode: bool
    """Every chunk is one token, and each is picked."""
    has_large: bool
    """Attention has large tiles."""
    has_trees: bool
    """Some chunks are trees of guesses."""
    kind: Kind | None
    """How tokens are drawn; None where that is left to the host."""


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """What a step leaves behind, good until the next: one of both. What a graph leaves behind keeps its memory."""

    passed: Passed | None = None
    results: Tensor | None = None
    """[2, picked] int32: drawn tokens, and the bits of their peaks."""


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    ran: Ran


class _Trial(NamedTuple):
    """A step that was launched kernel by kernel, to see how long that takes."""

    seconds: float
    """Of the host."""
    started: Any
    ended: Any
    """Events of the device."""

    @property
    def is_over(self) -> bool:
        return bool(self.ended.query())

    @property
    def was_held_up(self) -> bool:
        """Whether the device waited for the host, or nearly."""
        return bool(self.seconds > _HELD_UP * self.started.elapsed_time(self.ended) / 1000)


class CapturedModel:
    def __init__(
        self,
        model: Decoder,
        storage: KVStorage,
        ops: TritonOps,
        rows: DeviceRows,
        most: Most,
        taps: tuple[int, ...] = (),
    ) -> None:
        """Taps are the layers whose input is told of."""
        self.arch: Arch = model.arch
        self._model = model
        self._ops = ops
        self._device = storage.device
        self._program = _record(model, storage, ops, taps)
        ops.await_compiler()
        self._most = most
        self._room = StepRoom(self.arch, StepSize(bucket(most.rows), bucket(most.picked)), rows, storage.device)
        self._most_picked = bucket(most.chunks)
        self._graphs: dict[Shape, _Graph | _Trial | None] = {}
        """None for shapes that were run once; trials for large ones of which it is not known whether capturing pays."""
        self._pool: Any = None

    def run(self, outline: Outline, rows: Rows) -> Passed:
        """Good until the next step."""
        assert rows is self._room.rows
        passed = self._run(outline, None).passed
        assert passed is not None
        num_tokens = int(outline.query_ends[-1])
        taps = tuple(tap[:num_tokens] for tap in passed.taps)
        return Passed(passed.hidden[:num_tokens], passed.logits[: len(outline.sampling)], taps)

    def draw(self, outline: Outline, asked: DrawRows) -> Tensor:
        """A step whose tokens are drawn and kept on the device: [2, picked] int32 of them and the bits of their peaks.

        Good until the next step; nothing is waited for.
        """
        results = self._run(outline, asked).results
        assert results is not None
        return results

    def logits(self, states: Tensor) -> Tensor:
        return self._model.logits(states)

    def close(self) -> None:
        """It has no threads of its own."""
        self._graphs.clear()

    # -- how ----------------------------------------------------------------------------------------------------------

    def _run(self, outline: Outline, asked: DrawRows | None) -> Ran:
        self._check(outline)
        units = self._room.units(outline)
        has_large = any(len(found.large) for found in units.values())
        shape = _shape(outline, asked, self._most_picked, has_large=has_large)
        self._room.send(shape.size, outline, units, asked)
        is_large = shape.size.num_tokens > _FEW_TOKENS
        if self._device == "cpu" or is_rehearsal() or (is_large and asked is None):
            return self._pass(shape)
        if shape not in self._graphs:
            # The first time everything is compiled, tried and remembered on the way, which a capture could not bear.
            self._graphs[shape] = None
            return self._pass(shape)
        captured = self._graphs[shape]
        if captured is None and is_large:
            return self._try(shape)
        if isinstance(captured, _Trial) and not (captured.is_over and captured.was_held_up):
            return self._pass(shape)
        if not isinstance(captured, _Graph):
            captured = self._graphs[shape] = self._capture(shape)
        captured.graph.replay()
        return captured.ran

    def _check(self, outline: Outline) -> None:
        """Kernels check nothing: what is more than there is memory for is refused before any is launched."""
        most, length = self._most, self._room.rows.max_model_len
        for what, given, bound in (
            ("the number of tokens in a step", int(outline.query_ends[-1]), most.rows),
            ("the number of chunks", len(outline.chunks), most.chunks),
            ("the number of tokens whose logits are computed", len(outline.picked), most.picked),
            ("the position after a chunk", int(outline.ends.max()), length),
        ):
            if given > bound:
                raise OutOfBounds(what, given, 0, bound)

    def _try(self, shape: Shape) -> Ran:
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before = time.perf_counter()
        started.record()
        ran = self._pass(shape)
        ended.record()
        self._graphs[shape] = _Trial(time.perf_counter() - before, started, ended)
        return ran

    def _capture(self, shape: Shape) -> _Graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            ran = self._pass(shape)
        self._pool = graph.pool()
        return _Graph(graph, ran)

    def _pass(self, shape: Shape) -> Ran:
        room, size = self._room, shape.size
        rows, told = room.rows, room.told(size, has_trees=shape.has_trees)
        num_groups = len(rows.device_tables)
        tokens = torch.empty(size.num_tokens, dtype=torch.int32, device=self._device)
        slots = torch.empty((num_groups, size.num_tokens), dtype=torch.int64, device=self._device)
        scatter(rows.memory, told.num_news, told.news)
        find_tokens(tokens, slots, rows.memory, rows.table_starts, told.rows, told.places, rows.strides)
        inputs = {
            "tokens": tokens,
            "positions": told.positions,
            "picked": None if shape.is_decode else told.picked,
            "chunks": room.attention(told.lines, has_large=shape.has_large),
            **{f"slots{group}": slots[group] for group in range(num_groups)},
        }
        hidden, logits, *taps = self._ops.run(self._program, inputs)
        if shape.kind is None:
            return Ran(passed=Passed(hidden, logits, tuple(taps)))
        drawn = torch.empty(size.num_picked, dtype=torch.int64, device=self._device)
        peaks = torch.empty(size.num_picked, dtype=torch.float32, device=self._device)
        scratch = DrawScratch.room_for(len(logits), logits.shape[1], logits.device)
        draw_into(drawn, peaks, logits, told.records, shape.kind, scratch)
        results = torch.empty((2, size.num_picked), dtype=torch.int32, device=self._device)
        keep_tokens(results, rows.memory, drawn, peaks, told.drawn_rows, told.drawn_positions, rows.strides[0])
        return Ran(results=results)


def _shape(outline: Outline, asked: DrawRows | None, most_picked: int, *, has_large: bool) -> Shape:
    num_tokens, num_picked = int(outline.query_ends[-1]), len(outline.sampling)
    is_decode = num_tokens == num_picked == len(outline.chunks)
    if is_decode:
        num_picked = num_tokens
    elif num_tokens > _FEW_TOKENS and num_picked > 1:
        # It costs such a step little, and what is left are few shapes. With draft tokens more may be picked.
        num_picked = max(num_picked, most_picked)
    size = StepSize(bucket(num_tokens), bucket(max(1, num_picked)))
    return Shape(size, is_decode, has_large, outline.trees is not None, None if asked is None else kind_of(asked))


def _record(model: Decoder, storage: KVStorage, ops: TritonOps, taps: tuple[int, ...]) -> Program:
    tokens, positions, picked = (torch.empty(RECORDED_ROWS, dtype=torch.int32, device="meta") for _ in range(3))
    chunks = no_chunks(len(storage.layout.windows))
    inputs = {"tokens": tokens, "positions": positions, "picked": picked, "chunks": chunks}
    inputs |= {f"slots{group}": slots for group, slots in enumerate(chunks.slots)}
    recording = Recording(inputs)
    heard: dict[int, Tensor] = {}
    with ops.recording(recording), torch.inference_mode():
        hidden = model(tokens, positions, storage.attending(model.arch, chunks), heard.__setitem__)
        logits = model.scored(ops.widen(model.head(ops.select(hidden, picked))))
    return ops.finish(recording, [hidden, logits, *(heard[layer] for layer in taps)])
