"""Device buffers of a step's inputs: tokens' rows and positions, attention's work, sampling records, row updates.

Every buffer has an address that is the same for all steps of one shape, so that captured kernels find it there.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.arch.arch import Arch
from archerfish.execution.backends.cuda.device_rows import DeviceRows
from archerfish.execution.backends.cuda.staging import Staging
from archerfish.execution.step.inputs import StepBatch, StepTrees
from archerfish.ops.arrays import Ints
from archerfish.ops.signatures import DRAW_ROW, MAX_TREE_TOKENS, DrawRows
from archerfish.ops.triton.attention import (
    UNIT_FIELDS,
    AttentionScratch,
    AttentionWork,
    ChunkColumns,
    DeviceTreePaths,
    HeadShape,
    UnitList,
    Units,
    attention_units,
    most_units,
    num_processors,
)
from archerfish.ops.triton.graph import scatter
from archerfish.ops.triton.operations import DeviceStep

_MAX_UPDATES = 4096
"""Row updates that travel as part of a step; more are sent before it."""
_MAX_PARTIALS = 4096
"""Partial results that units of attention can pass to each other."""
_RECORD_WORDS = DRAW_ROW.itemsize // 4
_PATH_WORDS = MAX_TREE_TOKENS // 4
_NO_ROW = -1

Words = np.ndarray[tuple[int], np.dtype[np.int32]]


class StepSize(NamedTuple):
    """Padded numbers of a step's tokens and of those that have logits."""

    num_tokens: int
    num_logits: int


class StepBufferLayout(NamedTuple):
    """Offsets in words of the parts of a step's buffer."""

    counts: int
    draw_records: int
    rows: int
    positions: int
    row_offsets: int
    depths: int
    paths: int
    logit_indices: int
    sample_rows: int
    sample_positions: int
    updates: int

    @classmethod
    def of(cls, size: StepSize, num_windows: int, *, has_trees: bool) -> "StepBufferLayout":
        # Records have 64-bit fields: all that comes before them is an even number of words.
        num_tree_tokens = size.num_tokens if has_trees else 0
        lengths = (
            *(2 + 2 * num_windows, size.num_logits * _RECORD_WORDS, size.num_tokens, size.num_tokens),
            *(num_tree_tokens, num_tree_tokens, num_tree_tokens * _PATH_WORDS),
            *(size.num_logits, size.num_logits, size.num_logits),
        )
        return cls(0, *np.cumsum(lengths).tolist())


class DeviceStepInputs(NamedTuple):
    """A step's inputs on the device, as views of its buffer."""

    num_updates: Tensor
    updates: Tensor
    draw_records: Tensor
    """[logits, words of a record] int32."""
    rows: Tensor
    positions: Tensor
    """Positions in the text."""
    row_offsets: Tensor
    """Offsets within the rows: the positions, except for draft trees."""
    lines: DeviceTreePaths | None
    logit_indices: Tensor
    sample_rows: Tensor
    sample_positions: Tensor


class DeviceStepBuffers:
    """Buffers on the device for the inputs of any step up to a size."""

    def __init__(self, arch: Arch, max_size: StepSize, rows: DeviceRows, device: str) -> None:
        attention = arch.layers[0].attention
        heads = HeadShape(
            num_heads=attention.num_heads, num_kv_heads=attention.num_kv_heads, head_dim=attention.head_dim
        )
        self.rows = rows
        self._windows = list(dict.fromkeys(layer.attention.window for layer in arch.layers))
        self._cut = heads.cut(num_processors(torch.device(device)), _MAX_PARTIALS)
        self._scratch = AttentionScratch.of(heads, _MAX_PARTIALS, torch.device(device))
        self._words = Staging(self._layout(max_size, has_trees=True).updates + 2 * _MAX_UPDATES, device)
        capacity = most_units(*max_size, self._cut) * UNIT_FIELDS
        self._units = {window: (Staging(capacity, device), Staging(capacity, device)) for window in self._windows}

    def units(self, batch: StepBatch) -> dict[int | None, Units]:
        """Return attention's work units, by window."""
        chunks = batch.chunks
        columns = ChunkColumns(chunks["row"], chunks["start"], chunks["length"], batch.query_starts)
        if batch.trees is not None:
            columns = columns.with_lines(batch.trees.depths)
        return {window: attention_units(*columns, window, self._cut) for window in self._windows}

    def send(
        self, size: StepSize, batch: StepBatch, units: dict[int | None, Units], draw_rows: DrawRows | None
    ) -> None:
        """Start the copies to the device. The next step's words may be written as soon as this returns."""
        updates = self.rows.take_updates()
        if len(updates) > _MAX_UPDATES:
            self._scatter(updates)
            updates = updates[:0]
        layout = self._layout(size, has_trees=batch.trees is not None)

        def write(words: Words) -> int:
            words[: layout.updates] = 0
            words[0] = len(updates)
            for index, window_units in enumerate(units.values()):
                words[1 + 2 * index : 3 + 2 * index] = len(window_units.small), len(window_units.large)
            _write_batch(words, layout, batch)
            if draw_rows is not None:
                records = np.ascontiguousarray(draw_rows).view(np.int32)
                words[layout.draw_records : layout.draw_records + len(records)] = records
            words[layout.updates : layout.updates + updates.size] = updates.reshape(-1)
            return layout.updates + updates.size

        self._words.send(write)
        for window, window_units in units.items():
            for staging, table in zip(self._units[window], window_units, strict=True):
                if len(table):
                    staging.send(_writing(table))

    def inputs(self, size: StepSize, *, has_trees: bool) -> DeviceStepInputs:
        """Return the views that hold the inputs of a step of this size."""
        layout = self._layout(size, has_trees=has_trees)
        view = self._words.view
        positions, lines = view(layout.positions, size.num_tokens), None
        if has_trees:
            paths = view(layout.paths, size.num_tokens, _PATH_WORDS).view(torch.uint8)
            lines = DeviceTreePaths(view(layout.depths, size.num_tokens), paths)
        return DeviceStepInputs(
            num_updates=view(0, 1),
            updates=view(layout.updates, _MAX_UPDATES, 2),
            draw_records=view(layout.draw_records, size.num_logits, _RECORD_WORDS),
            rows=view(layout.rows, size.num_tokens),
            positions=positions,
            row_offsets=view(layout.row_offsets, size.num_tokens) if has_trees else positions,
            lines=lines,
            logit_indices=view(layout.logit_indices, size.num_logits),
            sample_rows=view(layout.sample_rows, size.num_logits),
            sample_positions=view(layout.sample_positions, size.num_logits),
        )

    def attention(self, lines: DeviceTreePaths | None, *, has_large: bool) -> DeviceStep:
        """Return what attention reads. Large tiles are left out where no step of the shape has any."""
        work = {}
        for index, window in enumerate(self._windows):
            small, large = (
                UnitList(staging.words.view(-1, UNIT_FIELDS), self._words.view(1 + 2 * index + which, 1))
                for which, staging in enumerate(self._units[window])
            )
            work[window] = AttentionWork(small, large if has_large else None)
        return DeviceStep(work, self.rows.device_tables, self._scratch, lines)

    def _layout(self, size: StepSize, *, has_trees: bool) -> StepBufferLayout:
        return StepBufferLayout.of(size, len(self._windows), has_trees=has_trees)

    def _scatter(self, updates: "np.ndarray[Any, np.dtype[np.int32]]") -> None:
        pairs = torch.from_numpy(updates).to(self.rows.memory.device)
        count = torch.tensor([len(updates)], dtype=torch.int32, device=pairs.device)
        scatter(self.rows.memory, count, pairs)


def _write_batch(words: Words, layout: StepBufferLayout, batch: StepBatch) -> None:
    row, start, length = (batch.chunks[name] for name in ("row", "start", "length"))
    if len(row) == batch.num_tokens:
        rows, positions = row, start
    else:
        rows, positions = np.repeat(row, length), batch.positions
    if batch.trees is not None:
        _write_trees(words, layout, batch.row_offsets, batch.trees)
    words[layout.rows : layout.positions] = _NO_ROW
    words[layout.rows : layout.rows + len(rows)] = rows
    words[layout.positions : layout.positions + len(positions)] = positions
    sampled_chunks: Ints = batch.sampled_chunks
    words[layout.sample_rows : layout.sample_positions] = _NO_ROW
    for first, values in (
        (layout.logit_indices, batch.logit_indices),
        (layout.sample_rows, row[sampled_chunks]),
        (layout.sample_positions, batch.sample_positions),
    ):
        words[first : first + len(values)] = values


def _write_trees(words: Words, layout: StepBufferLayout, row_offsets: Ints, trees: StepTrees) -> None:
    for first, values in (
        (layout.row_offsets, row_offsets),
        (layout.depths, trees.depths),
        (layout.paths, trees.paths.view(np.int32).reshape(-1)),
    ):
        words[first : first + len(values)] = values


def _writing(table: "np.ndarray[Any, np.dtype[np.int32]]") -> Any:
    def write(words: Words) -> int:
        words[: table.size] = table.reshape(-1)
        return table.size

    return write
