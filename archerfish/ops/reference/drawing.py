"""Drawing the next token of each row by its own parameters in plain torch, without a loop over rows."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.ops.arrays import Ints
from archerfish.ops.reference.filters import Candidates, filter_logits, likeliest_candidates
from archerfish.ops.reference.noise import LARGEST_GAP, gumbel
from archerfish.ops.signatures import Drawn, DrawRows

_MAX_CANDIDATES = 1024
"""Largest number of tokens to sort: sorting more takes as long as computing noise for all of them."""


class RowsByMethod(NamedTuple):
    """The indices of the rows that each method draws. Every row is in exactly one of them."""

    greedy: Ints
    narrow: Ints
    """Rows whose top_k leaves a few tokens."""
    wide: Ints
    """Rows that may have any number of candidates."""

    @classmethod
    def of(cls, rows: DrawRows) -> "RowsByMethod":
        """Choose by a row's own parameters alone: other rows must not change even a rounding."""
        greedy = rows["temperature"] == 0.0
        narrow = ~greedy & (rows["top_k"] > 0) & (rows["top_k"] <= _MAX_CANDIDATES)
        return cls(np.flatnonzero(greedy), np.flatnonzero(narrow), np.flatnonzero(~greedy & ~narrow))


def draw(logits: Tensor, rows: DrawRows) -> Drawn:
    """Draw each row by the method that its parameters select."""
    tokens = torch.zeros(len(rows), dtype=torch.int64, device=logits.device)
    for indices, choose in zip(RowsByMethod.of(rows), (_likeliest, _draw_narrow, _draw_wide), strict=True):
        if len(indices):
            selected = torch.from_numpy(indices).to(logits.device)
            tokens[selected] = choose(logits[selected], rows[indices])
    return Drawn(tokens, logits.amax(-1))


def narrow_candidates(logits: Tensor, rows: DrawRows) -> Candidates:
    """Return the candidates of narrow rows, with logits divided by the temperature."""
    top_k = torch.from_numpy(rows["top_k"].copy()).to(logits.device)
    top_p, min_p = _filter("top_p", 1.0, logits, rows), _filter("min_p", 0.0, logits, rows)
    return likeliest_candidates(_scale(logits, rows), top_k, top_p, min_p)


def filtered_logits(logits: Tensor, rows: DrawRows) -> Tensor:
    """Return logits of wide rows divided by the temperature, -inf for tokens that the filters remove."""
    top_k, top_p, min_p = (
        _filter(name, off, logits, rows) for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0))
    )
    return filter_logits(_scale(logits, rows), top_k, top_p, min_p)


def _likeliest(logits: Tensor, _: DrawRows) -> Tensor:
    return logits.argmax(-1)


def _draw_narrow(logits: Tensor, rows: DrawRows) -> Tensor:
    return _draw_candidates(narrow_candidates(logits, rows), rows)


def _draw_wide(logits: Tensor, rows: DrawRows) -> Tensor:
    filtered = filtered_logits(logits, rows)
    # Noise cannot lift any other token over the likeliest one.
    num_possible = int((filtered >= filtered.amax(-1, keepdim=True) - LARGEST_GAP).sum(-1).max())
    if num_possible > _MAX_CANDIDATES:
        return _add_noise(filtered, torch.arange(filtered.shape[1], device=filtered.device), rows).argmax(-1)
    tokens = filtered.topk(max(1, num_possible), dim=-1).indices.sort(-1).values
    return _draw_candidates(Candidates(filtered.gather(1, tokens), tokens), rows)


def _scale(logits: Tensor, rows: DrawRows) -> Tensor:
    return logits / torch.from_numpy(rows["temperature"].copy()).to(logits.device)[:, None]


def _filter(name: str, off: float, logits: Tensor, rows: DrawRows) -> Tensor | None:
    """Return the values of a filter, or None if it is off in every row."""
    values = rows[name]
    return torch.from_numpy(values.copy()).to(logits.device) if (values != off).any() else None


def _draw_candidates(candidates: Candidates, rows: DrawRows) -> Tensor:
    scores = _add_noise(candidates.logits, candidates.tokens, rows)
    return candidates.tokens.gather(1, scores.argmax(-1, keepdim=True))[:, 0]


def _add_noise(logits: Tensor, tokens: Tensor, rows: DrawRows) -> Tensor:
    seeds = torch.from_numpy(rows["seed"].view(np.int64).copy()).to(logits.device)
    positions = torch.from_numpy(rows["position"].copy()).to(logits.device)
    return gumbel(seeds, positions, tokens).add_(logits)
