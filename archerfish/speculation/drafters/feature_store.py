"""What the model's layers made of each token, kept in blocks like its keys and values: heads that guess read it.

Most steps are not followed by a guess, so what they gave is only set aside, and put into its blocks when somebody asks
or when much has gathered.
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

_MOST_ASIDE = 64
"""Steps."""


class FeatureStore:
    def __init__(self, num_blocks: int, width: int, dtype: torch.dtype, device: str, rows: Rows) -> None:
        """`rows` have the table of the KV group whose blocks are used."""
        self._rows = rows
        self._device = device
        self._features = torch.zeros((num_blocks * rows.block_size, width), dtype=dtype, device=device)
        self._aside: list[tuple[Ints, Tensor]] = []
        """Slots, which are settled when a step is run, and what goes there."""

    def heard(self, batch: StepBatch, passed: ForwardOutput) -> None:
        """A step was run: what its taps gave, or the final states where there are none."""
        given = passed.aux_hidden_states or (passed.hidden,)
        # A copy: the next step is computed in the same place.
        features = torch.cat(given, -1) if len(given) > 1 else given[0].clone()
        self._aside.append((self._slots(batch), features))
        if len(self._aside) >= _MOST_ASIDE:
            self._settle()

    def of(self, batch: StepBatch) -> Tensor:
        """[T, width] of tokens that were computed."""
        self._settle()
        return self._features[torch.from_numpy(self._slots(batch)).to(self._device)]

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        if not copies:
            return
        self._settle()
        blocks = self._features.view(-1, self._rows.block_size, self._features.shape[1])
        blocks[[copy.target for copy in copies]] = blocks[[copy.source for copy in copies]]

    def move(self, rows: Ints, sources: Ints, targets: Ints) -> None:
        """From positions to others of their rows, all of them as they were before."""
        self._settle()
        source, target = (torch.from_numpy(self._slot(rows, places)).to(self._device) for places in (sources, targets))
        self._features[target] = self._features[source]

    def _settle(self) -> None:
        if not self._aside:
            return
        slots, features = self._aside[0]
        if len(self._aside) > 1:
            features = torch.cat([features for _, features in self._aside])
            # Of what was computed more than once, as guesses are, the last counts.
            every = np.concatenate([slots for slots, _ in self._aside])[::-1]
            slots, last = np.unique(every, return_index=True)
            features = features[torch.from_numpy(len(every) - 1 - last).to(self._device)]
        self._features[torch.from_numpy(slots).to(self._device)] = features.to(self._features.dtype)
        self._aside.clear()

    def _slots(self, batch: StepBatch) -> Ints:
        chunks = batch.chunks
        if len(chunks) == 1:
            row, start, length, _ = chunks[0].tolist()
            return self._slot(np.full(length, row), np.arange(start, start + length))
        return self._slot(np.repeat(chunks["row"], chunks["length"]), batch.row_offsets)

    def _slot(self, rows: Ints, places: Ints) -> Ints:
        size = self._rows.block_size
        found: Ints = self._rows.tables[0][rows, places // size] * np.int64(size) + places % size
        return found
