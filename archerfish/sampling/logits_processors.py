"""Changes to logits before tokens are drawn: biases, allowed tokens, min_tokens, bad words and penalties.

Most rows have none. A row's edits and bad words are set when a sequence takes it up, and looked up in each step.
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
    tokens = set()
    for *before, last in sequences:
        start = len(written) - len(before)
        if start >= 0 and written[start:] == before:
            tokens.add(last)
    return tokens


def penalize(
    logits: Tensor,
    history: Tensor,
    lengths: Tensor,
    num_prompt: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """Make tokens that occurred less likely.

    history [rows, longest] holds token ids, of which the first `lengths` count and the first `num_prompt` are prompt.
    """
    indices = torch.arange(history.shape[1], device=history.device)
    known = indices < lengths[:, None]
    written = known & (indices >= num_prompt[:, None])
    zeros = torch.zeros_like(logits)
    seen = zeros.scatter_add(1, history, known.float()) > 0
    counts = zeros.scatter_add(1, history, written.float())
    weakened = torch.where(logits > 0, logits / repetition[:, None], logits * repetition[:, None])
    logits = torch.where(seen, weakened, logits)
    return logits - frequency[:, None] * counts - presence[:, None] * (counts > 0)
