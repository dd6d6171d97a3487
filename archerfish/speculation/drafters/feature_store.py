"""Features of tokens, as the model's layers computed them, stored in blocks like keys and values: heads read them.

Most steps are not followed by a draft, so features are only collected, and written into their blocks when a head reads
them or when many have been collected.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step.model import ForwardOutput
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.tables import BlockCopy
from archerfish.ops.arrays import Ints

_MAX_PENDING = 64
"""Steps whose features may be pending."""


class FeatureStore:
    """Features [width] of every token in the KV cache."""

    def __init__(self, num_blocks: int, width: int, dtype: torch.dtype, device: str, rows: Rows) -> None:
        """`rows` have the table of the KV group whose blocks are used."""
        self._rows = rows
        self._device = device
        self._features = torch.zeros((num_blocks * rows.block_size, width), dtype=dtype, device=device)
        self._pending: list[tuple[Ints, Tensor]] = []
        """Slots, which are fixed when a step is run, and their features."""

    def record(self, batch: StepBatch, output: ForwardOutput) -> None:
        """Record a step's auxiliary hidden states, or its final states where there are none."""
        states = output.aux_hidden_states or (output.hidden,)
        # A copy: the next step is computed in the same buffers.
        features = torch.cat(states, -1) if len(states) > 1 else states[0].clone()
        self._pending.append((self._batch_slots(batch), features))
        if len(self._pending) >= _MAX_PENDING:
            self._flush()

    def gather(self, batch: StepBatch) -> Tensor:
        """Return [T, width] features of tokens that were computed."""
        self._flush()
        return self._features[torch.from_numpy(self._batch_slots(batch)).to(self._device)]

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy the features of blocks."""
        if not copies:
            return
        self._flush()
        blocks = self._features.view(-1, self._rows.block_size, self._features.shape[1])
        blocks[[copy.target for copy in copies]] = blocks[[copy.source for copy in copies]]

    def move(self, rows: Ints, sources: Ints, targets: Ints) -> None:
        """Move features between offsets of rows, all as they were before."""
        self._flush()
        source, target = (
            torch.from_numpy(self._slots(rows, offsets)).to(self._device) for offsets in (sources, targets)
        )
        self._features[target] = self._features[source]

    def _flush(self) -> None:
        if not self._pending:
            return
        slots, features = self._pending[0]
        if len(self._pending) > 1:
            features = torch.cat([features for _, features in self._pending])
            # Of what was computed more than once, as draft tokens are, the last counts.
            reversed_slots = np.concatenate([slots for slots, _ in self._pending])[::-1]
            slots, last = np.unique(reversed_slots, return_index=True)
            features = features[torch.from_numpy(len(reversed_slots) - 1 - last).to(self._device)]
        self._features[torch.from_numpy(slots).to(self._device)] = features.to(self._features.dtype)
        self._pending.clear()

    def _batch_slots(self, batch: StepBatch) -> Ints:
        chunks = batch.chunks
        if len(chunks) == 1:
            row, start, length, _ = chunks[0].tolist()
            return self._slots(np.full(length, row), np.arange(start, start + length))
        return self._slots(np.repeat(chunks["row"], chunks["length"]), batch.row_offsets)

    def _slots(self, rows: Ints, offsets: Ints) -> Ints:
        size = self._rows.block_size
        slots: Ints = self._rows.tables[0][rows, offsets // size] * np.int64(size) + offsets % size
        return slots
