"""Forbids tokens that would complete a sequence which must not be written. Kept by row; most rows have none."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.ops.arrays import Ints
from archerfish.request import SamplingParams


class _RowSequences(NamedTuple):
    sequences: tuple[tuple[int, ...], ...]
    start: int
    """Where the answer begins: a sequence that begins in the prompt is not the answer's."""


class BadWords:
    """The sequences of every row that has some."""

    def __init__(self) -> None:
        self._rows: dict[int, _RowSequences] = {}

    def __contains__(self, row: int) -> bool:
        return row in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def set_row(self, row: int, params: SamplingParams, num_prompt_tokens: int) -> None:
        """Replace whatever the row's last sequence asked for."""
        self._rows.pop(row, None)
        if params.bad_words_token_ids:
            self._rows[row] = _RowSequences(params.bad_words_token_ids, num_prompt_tokens)

    def apply(self, logits: Tensor, rows: Ints, positions: Ints, history: Tensor) -> Tensor:
        """Logits of rows whose next tokens are at these positions, behind the tokens in history [all rows, longest]."""
        barred: list[tuple[int, int]] = []
        for index, row in enumerate(rows.tolist() if self._rows else ()):
            if (sequences := self._rows.get(row)) is not None:
                written = history[row, sequences.start : int(positions[index])].tolist()
                barred += [(index, token) for token in _completing(sequences.sequences, written)]
        if not barred:
            return logits
        logits = logits.clone()
        spots = torch.from_numpy(np.array(barred, np.int64).T).to(logits.device)
        logits[spots[0], spots[1]] = -torch.inf
        return logits


def _completing(sequences: tuple[tuple[int, ...], ...], written: list[int]) -> set[int]:
    """The tokens with which one of the sequences would be complete."""
    found = set()
    for *before, last in sequences:
        start = len(written) - len(before)
        if start >= 0 and written[start:] == before:
            found.add(last)
    return found
