"""Batches of samples on the device, in an order that depends on seed and step alone. Knows no model."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from archerfish.compress.drafters.samples import Samples


class TrainingBatch(NamedTuple):
    tokens: Tensor
    """[rows, length] int64."""
    own: Tensor
    """[rows, length] bool, on the host: the next token is part of the text, and not the first that the model drew."""

    def positions(self, depth: int) -> Tensor:
        """Return which draft tokens of a depth count, as indices of all [rows, starts] one after the other."""
        indices = self.own[:, depth + 1 :].flatten().nonzero().flatten()
        return indices.to(self.tokens.device, non_blocking=True)


class Batches:
    """Training batches by step number, so that a resumed run needs nothing of the earlier steps."""

    def __init__(self, samples: Samples, num_rows: int, seed: int, device: str) -> None:
        self._samples = samples
        self._num_rows = num_rows
        self._seed = seed
        self._tokens = samples.tokens.to(device)
        self._order: tuple[int, Tensor] | None = None

    def of_step(self, step: int) -> TrainingBatch:
        """Return the batch of a step. Every sample comes once before any is repeated, each time in another order."""
        first = step * self._num_rows
        rows = [self._row(first + position) for position in range(self._num_rows)]
        return self._batch(torch.tensor(rows))

    @property
    def num_held_out(self) -> int:
        """Number of batches of held-out samples."""
        return -(-self._samples.num_held_out // self._num_rows)

    def held_out(self) -> Iterator[TrainingBatch]:
        rows = torch.arange(self._samples.num_training, len(self._tokens))
        return (self._batch(some) for some in torch.split(rows, self._num_rows))

    def _row(self, number: int) -> int:
        turn, position = divmod(number, self._samples.num_training)
        if self._order is None or self._order[0] != turn:
            # Drawn on the host, whose numbers are the same everywhere.
            generator = torch.Generator().manual_seed(self._seed + turn)
            self._order = turn, torch.randperm(self._samples.num_training, generator=generator)
        return int(self._order[1][position])

    def _batch(self, rows: Tensor) -> TrainingBatch:
        lengths, given = self._samples.lengths[rows], self._samples.given[rows]
        longest = int(lengths.max())
        positions = torch.arange(longest)
        # Nothing is predicted after a text's last token, where the model ended it.
        own = (positions >= given[:, None]) & (positions < lengths[:, None] - 1)
        return TrainingBatch(self._tokens[rows.to(self._tokens.device), :longest].long(), own)
