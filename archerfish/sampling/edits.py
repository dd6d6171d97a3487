"""Edits of single logits (bias, allowed tokens, tokens barred until min_tokens), kept for all rows in flat arrays.

They change when a sequence takes up a row, not from step to step; a step only picks the entries of its rows.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.request import SamplingParams

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int], np.dtype[np.float32]]


class _Entries(NamedTuple):
    """One kind of edit: entry i concerns token tokens[i] of row rows[i]."""

    rows: Ints
    tokens: Ints
    values: Floats

    def without(self, row: int) -> "_Entries":
        keep = self.rows != row
        return _Entries(self.rows[keep], self.tokens[keep], self.values[keep])

    def plus(self, row: int, tokens: list[int], values: list[float]) -> "_Entries":
        return _Entries(
            np.append(self.rows, np.full(len(tokens), row)),
            np.append(self.tokens, np.array(tokens, np.int64)),
            np.append(self.values, np.array(values, np.float32)),
        )


_NONE = _Entries(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))


class LogitEdits:
    """The edits of every row."""

    def __init__(self, num_rows: int) -> None:
        self._place = np.full(num_rows, -1, np.int64)
        self._bias = _NONE
        self._allowed = _NONE
        self._barred = _NONE
        """values hold the sequence length from which the token may be drawn."""

    def set_row(self, row: int, params: SamplingParams, barred: tuple[int, ...], barred_until: int) -> None:
        """Replace whatever the row's last sequence asked for."""
        self._bias, self._allowed, self._barred = (e.without(row) for e in (self._bias, self._allowed, self._barred))
        if params.logit_bias:
            self._bias = self._bias.plus(row, list(params.logit_bias), list(params.logit_bias.values()))
        if params.allowed_token_ids is not None:
            allowed = list(params.allowed_token_ids)
            self._allowed = self._allowed.plus(row, allowed, [0.0] * len(allowed))
        if params.min_tokens and barred:
            self._barred = self._barred.plus(row, list(barred), [float(barred_until)] * len(barred))

    def apply(self, logits: Tensor, rows: Ints, positions: Ints) -> Tensor:
        """Edited logits of these rows, whose next tokens are at these positions."""
        if not (len(self._bias.rows) or len(self._allowed.rows) or len(self._barred.rows)):
            return logits
        self._place[:] = -1
        self._place[rows] = np.arange(len(rows))
        logits = logits.clone()
        places, tokens, values = self._of(self._bias, logits)
        logits.index_put_((places, tokens), values, accumulate=True)
        places, tokens, _ = self._of(self._allowed, logits)
        if len(places):
            forbidden = torch.zeros_like(logits, dtype=torch.bool)
            forbidden[places] = True
            forbidden[places, tokens] = False
            logits.masked_fill_(forbidden, -torch.inf)
        places, tokens, until = self._of(self._barred, logits)
        if len(places):
            early = torch.from_numpy(positions).to(logits.device)[places] < until
            logits[places[early], tokens[early]] = -torch.inf
        return logits

    def _of(self, entries: _Entries, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        places = self._place[entries.rows]
        present = places >= 0
        picked = (places[present], entries.tokens[present], entries.values[present])
        first, second, third = (torch.from_numpy(array).to(logits.device) for array in picked)
        return first, second, third
