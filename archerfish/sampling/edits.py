"""Edits of single logits: bias, allowed tokens, tokens barred until min_tokens. Kept by row; most rows have none.

They change when a sequence takes up a row, not from step to step; a step looks up the edits of its rows.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.ops.arrays import Floats, Ints
from archerfish.request import SamplingParams


class _RowEdits(NamedTuple):
    """What one sequence asks for."""

    biased: Ints
    biases: Floats
    allowed: Ints | None
    barred: Ints
    barred_until: int
    """The sequence length from which barred tokens may be drawn."""


class _Spots(NamedTuple):
    """Single logits of a step: spot i is token tokens[i] of logits row indices[i]."""

    indices: Tensor
    tokens: Tensor


class LogitEdits:
    """The edits of every row that has some."""

    def __init__(self) -> None:
        self._rows: dict[int, _RowEdits] = {}

    def __contains__(self, row: int) -> bool:
        return row in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def set_row(self, row: int, params: SamplingParams, barred: tuple[int, ...], barred_until: int) -> None:
        """Replace the edits of the row's last sequence."""
        self._rows.pop(row, None)
        barred = barred if params.min_tokens else ()
        if params.logit_bias or params.allowed_token_ids is not None or barred:
            self._rows[row] = _RowEdits(
                np.array(list(params.logit_bias), np.int64),
                np.array(list(params.logit_bias.values()), np.float32),
                None if params.allowed_token_ids is None else np.array(params.allowed_token_ids, np.int64),
                np.array(barred, np.int64),
                barred_until,
            )

    def apply(self, logits: Tensor, rows: Ints, positions: Ints) -> Tensor:
        """Edited logits of these rows, whose next tokens are at these positions. A row may occur several times."""
        edits = {index: self._rows[row] for index, row in enumerate(rows.tolist()) if row in self._rows}
        biased = {index: edit.biased for index, edit in edits.items() if len(edit.biased)}
        allowed = {index: edit.allowed for index, edit in edits.items() if edit.allowed is not None}
        barred = {index: edit.barred for index, edit in edits.items() if positions[index] < edit.barred_until}
        if not (biased or allowed or barred):
            return logits
        logits = logits.clone()
        if biased:
            values = np.concatenate([edits[index].biases for index in biased])
            spots = _spots(biased, logits.device)
            logits.index_put_(spots, torch.from_numpy(values).to(logits.device), accumulate=True)
        if allowed:
            forbidden = torch.zeros_like(logits, dtype=torch.bool)
            forbidden[torch.tensor(list(allowed), device=logits.device)] = True
            forbidden[_spots(allowed, logits.device)] = False
            logits.masked_fill_(forbidden, -torch.inf)
        if barred:
            logits[_spots(barred, logits.device)] = -torch.inf
        return logits


def _spots(tokens: dict[int, Ints], device: torch.device) -> _Spots:
    indices = np.repeat(np.array(list(tokens), np.int64), [len(listed) for listed in tokens.values()])
    listed = np.concatenate(list(tokens.values()))
    return _Spots(torch.from_numpy(indices).to(device), torch.from_numpy(listed).to(device))
