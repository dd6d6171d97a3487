"""The CUDA graph backend: a model recorded once, captured into one graph for each shape of step, and replayed.

A step is a few small copies of what is new, and one replay. Its inputs are gathered on the device. Where sampling needs
nothing from the host, tokens are sampled there too, so the host does not wait: it reads them when it gets to it.
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
from archerfish.execution.backends.cuda.step_buffers import DeviceStepBuffers, StepSize
from archerfish.execution.step.inputs import StepBatch, no_chunks
from archerfish.execution.step.model import ForwardOutput, StepLimits
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.ops.signatures import DrawRows
from archerfish.ops.triton.graph import (
    RECORDED_ROWS,
    TritonProgram,
    TritonRecording,
    gather_tokens,
    scatter,
    store_tokens,
)
from archerfish.ops.triton.operations import TritonOps
from archerfish.ops.triton.runtime import is_compile_only
from archerfish.ops.triton.sampling import DrawScratch, Kind, draw_into, kind_of

_SMALL_STEP_TOKENS = 512
"""Tokens of a step that takes less time than its launches, whatever the model."""
_LAUNCH_BOUND_SHARE = 0.8
"""Share of a step's time from which on its launches are considered to be what limits it."""


class StepShape(NamedTuple):
    """The properties that steps share which replay the same graph."""

    size: StepSize
    is_decode: bool
    """Every chunk is one token, and each has logits."""
    has_large: bool
    """Attention has large tiles."""
    has_trees: bool
    """Some chunks have a draft tree."""
    kind: Kind | None
    """How tokens are sampled on the device; None where the host samples."""


@dataclass(frozen=True, slots=True, eq=False)
class StepOutput:
    """Output of a step, one of both, valid until the next step. That of a captured step lies in its graph's memory."""

    forward: ForwardOutput | None = None
    results: Tensor | None = None
    """[2, logits] int32: sampled tokens, and the bits of their maxima."""


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    output: StepOutput


class _LaunchTiming(NamedTuple):
    """Timing of a step that was launched kernel by kernel."""

    seconds: float
    """Seconds that the host took to launch it."""
    started: Any
    ended: Any
    """Events of the device."""

    @property
    def is_over(self) -> bool:
        return bool(self.ended.query())

    @property
    def is_launch_bound(self) -> bool:
        """Whether the device waited for the host, or nearly so."""
        return bool(self.seconds > _LAUNCH_BOUND_SHARE * self.started.elapsed_time(self.ended) / 1000)


class CapturedModel:
    """A RunnableModel of CUDA graphs, which can also sample; returns the inputs of `aux_layers`, too."""

    def __init__(
        self,
        model: Decoder,
        storage: KVStorage,
        ops: TritonOps,
        rows: DeviceRows,
        limits: StepLimits,
        aux_layers: tuple[int, ...] = (),
    ) -> None:
        self.arch: Arch = model.arch
        self._model = model
        self._ops = ops
        self._device = storage.device
        self._program = _record(model, storage, ops, aux_layers)
        ops.await_compiler()
        self._limits = limits
        max_size = StepSize(bucket(limits.max_tokens), bucket(limits.max_logits))
        self._buffers = DeviceStepBuffers(self.arch, max_size, rows, storage.device)
        self._max_chunk_logits = bucket(limits.max_chunks)
        self._graphs: dict[StepShape, _Graph | _LaunchTiming | None] = {}
        """None for shapes that were run once; a timing for large ones that may not be worth capturing."""
        self._pool: Any = None

    def run(self, batch: StepBatch, rows: Rows) -> ForwardOutput:
        """Run a batch. Valid until the next step."""
        assert rows is self._buffers.rows
        output = self._run(batch, None).forward
        assert output is not None
        num_tokens = batch.num_tokens
        aux_hidden_states = tuple(states[:num_tokens] for states in output.aux_hidden_states)
        num_logits = len(batch.sampled_chunks)
        return ForwardOutput(output.hidden[:num_tokens], output.logits[:num_logits], aux_hidden_states)

    def draw(self, batch: StepBatch, draw_rows: DrawRows) -> Tensor:
        """Run a step that samples on the device: [2, logits] int32 of tokens and the bits of their maxima.

        Nothing is waited for. The rows on the device get the tokens. Valid until the next step.
        """
        results = self._run(batch, draw_rows).results
        assert results is not None
        return results

    def logits(self, states: Tensor) -> Tensor:
        return self._model.logits(states)

    def close(self) -> None:
        """Release the graphs; there are no threads to stop."""
        self._graphs.clear()

    def _run(self, batch: StepBatch, draw_rows: DrawRows | None) -> StepOutput:
        self._check(batch)
        units = self._buffers.units(batch)
        has_large = any(len(window_units.large) for window_units in units.values())
        shape = _shape(batch, draw_rows, self._max_chunk_logits, has_large=has_large)
        self._buffers.send(shape.size, batch, units, draw_rows)
        is_large = shape.size.num_tokens > _SMALL_STEP_TOKENS
        if self._device == "cpu" or is_compile_only() or (is_large and draw_rows is None):
            return self._launch(shape)
        if shape not in self._graphs:
            # The first time kernels are compiled and tuned, which a capture cannot contain.
            self._graphs[shape] = None
            return self._launch(shape)
        captured = self._graphs[shape]
        if captured is None and is_large:
            return self._launch_timed(shape)
        if isinstance(captured, _LaunchTiming) and not (captured.is_over and captured.is_launch_bound):
            return self._launch(shape)
        if not isinstance(captured, _Graph):
            captured = self._graphs[shape] = self._capture(shape)
        captured.graph.replay()
        return captured.output

    def _check(self, batch: StepBatch) -> None:
        """Refuse a step that exceeds the buffers before anything is launched: kernels check nothing."""
        limits, length = self._limits, self._buffers.rows.max_model_len
        for what, given, bound in (
            ("the number of tokens in a step", batch.num_tokens, limits.max_tokens),
            ("the number of chunks", len(batch.chunks), limits.max_chunks),
            ("the number of tokens whose logits are computed", len(batch.logit_indices), limits.max_logits),
            ("the position after a chunk", int(batch.ends.max()), length),
        ):
            if given > bound:
                raise OutOfBounds(what, given, 0, bound)

    def _launch_timed(self, shape: StepShape) -> StepOutput:
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before = time.perf_counter()
        started.record()
        output = self._launch(shape)
        ended.record()
        self._graphs[shape] = _LaunchTiming(time.perf_counter() - before, started, ended)
        return output

    def _capture(self, shape: StepShape) -> _Graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = self._launch(shape)
        self._pool = graph.pool()
        return _Graph(graph, output)

    def _launch(self, shape: StepShape) -> StepOutput:
        """Launch the step's kernels one by one, on the inputs that were sent last."""
        buffers, size = self._buffers, shape.size
        rows, sent = buffers.rows, buffers.inputs(size, has_trees=shape.has_trees)
        num_groups = len(rows.device_tables)
        tokens = torch.empty(size.num_tokens, dtype=torch.int32, device=self._device)
        slots = torch.empty((num_groups, size.num_tokens), dtype=torch.int64, device=self._device)
        scatter(rows.memory, sent.num_updates, sent.updates)
        gather_tokens(tokens, slots, rows.memory, rows.table_starts, sent.rows, sent.row_offsets, rows.strides)
        inputs = {
            "tokens": tokens,
            "positions": sent.positions,
            "logit_indices": None if shape.is_decode else sent.logit_indices,
            "chunks": buffers.attention(sent.lines, has_large=shape.has_large),
            **{f"slots{group}": slots[group] for group in range(num_groups)},
        }
        hidden, logits, *aux_hidden_states = self._ops.run(self._program, inputs)
        if shape.kind is None:
            return StepOutput(forward=ForwardOutput(hidden, logits, tuple(aux_hidden_states)))
        drawn = torch.empty(size.num_logits, dtype=torch.int64, device=self._device)
        peaks = torch.empty(size.num_logits, dtype=torch.float32, device=self._device)
        scratch = DrawScratch.allocate(len(logits), logits.shape[1], logits.device)
        draw_into(drawn, peaks, logits, sent.draw_records, shape.kind, scratch)
        results = torch.empty((2, size.num_logits), dtype=torch.int32, device=self._device)
        store_tokens(results, rows.memory, drawn, peaks, sent.sample_rows, sent.sample_positions, rows.strides[0])
        return StepOutput(results=results)


def _shape(batch: StepBatch, draw_rows: DrawRows | None, max_chunk_logits: int, *, has_large: bool) -> StepShape:
    num_tokens, num_logits = batch.num_tokens, len(batch.sampled_chunks)
    is_decode = num_tokens == num_logits == len(batch.chunks)
    if is_decode:
        num_logits = num_tokens
    elif num_tokens > _SMALL_STEP_TOKENS and num_logits > 1:
        # It costs such a step little, and leaves few shapes. With draft tokens there may be more logits than chunks.
        num_logits = max(num_logits, max_chunk_logits)
    size = StepSize(bucket(num_tokens), bucket(max(1, num_logits)))
    kind = None if draw_rows is None else kind_of(draw_rows)
    return StepShape(size, is_decode, has_large, batch.trees is not None, kind)


def _record(model: Decoder, storage: KVStorage, ops: TritonOps, aux_layers: tuple[int, ...]) -> TritonProgram:
    tokens, positions, indices = (torch.empty(RECORDED_ROWS, dtype=torch.int32, device="meta") for _ in range(3))
    chunks = no_chunks(len(storage.layout.windows))
    inputs = {"tokens": tokens, "positions": positions, "logit_indices": indices, "chunks": chunks}
    inputs |= {f"slots{group}": slots for group, slots in enumerate(chunks.slots)}
    recording = TritonRecording(inputs)
    layer_inputs: dict[int, Tensor] = {}
    with ops.recording(recording), torch.inference_mode():
        hidden = model(tokens, positions, storage.attending(model.arch, chunks), layer_inputs.__setitem__)
        logits = model.scored(ops.widen(model.head(ops.select(hidden, indices))))
    return ops.finish(recording, [hidden, logits, *(layer_inputs[layer] for layer in aux_layers)])
