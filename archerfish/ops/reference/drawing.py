"""The draw of the next tokens in plain torch, each row by its own parameters, without a loop over rows."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.ops.arrays import Ints
from archerfish.ops.reference.filters import Candidates, keep_likeliest, likeliest_candidates
from archerfish.ops.reference.noise import LARGEST_GAP, gumbel
from archerfish.ops.signatures import Drawn, DrawRows

_MOST_CANDIDATES = 1024
"""Sorting more of the likeliest tokens takes as long as noise for all of them."""


class Ways(NamedTuple):
    """By place, which rows are drawn in each way. Every row is in exactly one."""

    greedy: Ints
    narrow: Ints
    """Those that keep a few tokens by top_k."""
    wide: Ints
    """Those that may keep any number of tokens."""

    @classmethod
    def of(cls, rows: DrawRows) -> "Ways":
        """By a row's own parameters alone: neighbours must not change even a rounding."""
        greedy = rows["temperature"] == 0.0
        narrow = ~greedy & (rows["top_k"] > 0) & (rows["top_k"] <= _MOST_CANDIDATES)
        return cls(np.flatnonzero(greedy), np.flatnonzero(narrow), np.flatnonzero(~greedy & ~narrow))


def draw(logits: Tensor, rows: DrawRows) -> Drawn:
    """Each row in the way that its own parameters ask for."""
    tokens = torch.zeros(len(rows), dtype=torch.int64, device=logits.device)
    for asking, choose in zip(Ways.of(rows), (_likeliest, _draw_narrow, _draw_wide), strict=True):
        if len(asking):
            places = torch.from_numpy(asking).to(logits.device)
            tokens[places] = choose(logits[places], rows[asking])
    return Drawn(tokens, logits.amax(-1))


def keep_narrow(logits: Tensor, rows: DrawRows) -> Candidates:
    """What narrow rows may draw, their logits divided by the temperature."""
    top_k = torch.from_numpy(rows["top_k"].copy()).to(logits.device)
    top_p, min_p = _filter("top_p", 1.0, logits, rows), _filter("min_p", 0.0, logits, rows)
    return likeliest_candidates(_scale(logits, rows), top_k, top_p, min_p)


def keep_wide(logits: Tensor, rows: DrawRows) -> Tensor:
    """Logits of wide rows divided by the temperature, -inf for what they may not draw."""
    top_k, top_p, min_p = (
        _filter(name, idle, logits, rows) for name, idle in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0))
    )
    return keep_likeliest(_scale(logits, rows), top_k, top_p, min_p)


def _likeliest(logits: Tensor, _: DrawRows) -> Tensor:
    return logits.argmax(-1)


def _draw_narrow(logits: Tensor, rows: DrawRows) -> Tensor:
    return _draw_candidates(keep_narrow(logits, rows), rows)


def _draw_wide(logits: Tensor, rows: DrawRows) -> Tensor:
    kept = keep_wide(logits, rows)
    # Noise cannot lift any other token over the likeliest one.
    num_possible = int((kept >= kept.amax(-1, keepdim=True) - LARGEST_GAP).sum(-1).max())
    if num_possible > _MOST_CANDIDATES:
        return _add_noise(kept, torch.arange(kept.shape[1], device=kept.device), rows).argmax(-1)
    tokens = kept.topk(max(1, num_possible), dim=-1).indices.sort(-1).values
    return _draw_candidates(Candidates(kept.gather(1, tokens), tokens), rows)


def _scale(logits: Tensor, rows: DrawRows) -> Tensor:
    return logits / torch.from_numpy(rows["temperature"].copy()).to(logits.device)[:, None]


def _filter(name: str, idle: float, logits: Tensor, rows: DrawRows) -> Tensor | None:
    """The rows' values, or None if every row leaves the filter idle."""
    values = rows[name]
    return torch.from_numpy(values.copy()).to(logits.device) if (values != idle).any() else None


def _draw_candidates(candidates: Candidates, rows: DrawRows) -> Tensor:
    scores = _add_noise(candidates.logits, candidates.tokens, rows)
    return candidates.tokens.gather(1, scores.argmax(-1, keepdim=True))[:, 0]


def _add_noise(logits: Tensor, tokens: Tensor, rows: DrawRows) -> Tensor:
    seeds = torch.from_numpy(rows["seed"].view(np.int64).copy()).to(logits.device)
    positions = torch.from_numpy(rows["position"].copy()).to(logits.device)
    return gumbel(seeds, positions, tokens).add_(logits)
