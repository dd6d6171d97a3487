"""The filters min_p, top_k and top_p on all rows at once. A filter that is off in all rows costs nothing."""

from typing import NamedTuple

import torch
from torch import Tensor

_FIRST_NUCLEUS_SIZE = 256
"""Tokens to sort at first: a nucleus is rarely larger, and sorting the vocabulary is slow."""


def filter_logits(logits: Tensor, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None) -> Tensor:
    """Set logits below the three thresholds to -inf; equally likely tokens are treated alike.

    top_k [rows] are integers, 0 for no limit; top_p and min_p are [rows]. min_p applies first, then top_k, then top_p.
    """
    if min_p is not None:
        logits = _at_least(logits, logits.amax(-1) + torch.log(min_p))
    if top_k is not None:
        logits = _at_least(logits, _kth_largest(logits, top_k.long()))
    if top_p is not None:
        logits = _at_least(logits, _last_of_nucleus(logits, logits.logsumexp(-1, keepdim=True), top_p))
    return logits


class Candidates(NamedTuple):
    """The tokens of each row that may be drawn, by ascending id."""

    logits: Tensor
    tokens: Tensor


def likeliest_candidates(logits: Tensor, top_k: Tensor, top_p: Tensor | None, min_p: Tensor | None) -> Candidates:
    """Return what filter_logits leaves of rows that all have a top_k, without computing on the tokens that it drops."""
    k = top_k.long().clamp(max=logits.shape[-1])[:, None]
    values, tokens = _at_least_k(logits, k)
    if min_p is not None:
        values = _at_least(values, values[:, 0] + torch.log(min_p))
    values = _at_least(values, values.gather(1, k - 1)[:, 0])
    if top_p is not None:
        # A running sum, whose rounding does not depend on how many columns other rows need.
        total = torch.exp(values - values[:, :1]).cumsum(-1)[:, -1:].log() + values[:, :1]
        values = _at_least(values, _last_of_nucleus(values, total, top_p))
    tokens, order = tokens.sort(-1)
    return Candidates(values.gather(1, order), tokens)


def _at_least_k(logits: Tensor, k: Tensor) -> Candidates:
    """Return the k [rows, 1] likeliest tokens of each row, likeliest first, those equal to the last, and more."""
    width = min(int(k.max()) + 1, logits.shape[-1])
    while True:
        values, tokens = logits.topk(width, dim=-1)
        kth = values.gather(1, k - 1)
        # Tokens at -inf are equal as well, but are never drawn.
        if width == logits.shape[-1] or not bool((torch.isfinite(kth) & (values[:, -1:] == kth)).any()):
            return Candidates(values, tokens)
        width = min(4 * width, logits.shape[-1])


def _at_least(logits: Tensor, threshold: Tensor) -> Tensor:
    return logits.masked_fill(logits < threshold[:, None], -torch.inf)


def _kth_largest(logits: Tensor, k: Tensor) -> Tensor:
    """Return the k-th largest logit, -inf for rows whose k is 0 or exceeds the vocabulary."""
    is_off = (k <= 0) | (k >= logits.shape[-1])
    k = k.masked_fill(is_off, 1)
    likeliest = logits.topk(int(k.max()), dim=-1).values  # Sorted, largest first.
    return likeliest.gather(1, k[:, None] - 1)[:, 0].masked_fill(is_off, -torch.inf)


def _last_of_nucleus(logits: Tensor, total: Tensor, top_p: Tensor) -> Tensor:
    """Return the smallest logit of the smallest set that reaches top_p; -inf for rows whose top_p is 1.

    total [rows, 1] is the logarithm of the sum of all exponentials.
    """
    is_off = top_p >= 1.0  # The rounding of a sum must not cut off their tail.
    width = min(_FIRST_NUCLEUS_SIZE, logits.shape[-1])
    while True:
        likeliest = logits.topk(width, dim=-1).values
        chances = torch.exp(likeliest - total)
        inside = chances.cumsum(-1) - chances < top_p[:, None]  # By the probability of all likelier tokens.
        if width == logits.shape[-1] or not bool((inside[:, -1] & ~is_off).any()):
            break
        width = logits.shape[-1]  # A flat distribution needs the whole vocabulary.
    num_inside = inside.sum(-1, keepdim=True).clamp_(min=1)
    return likeliest.gather(1, num_inside - 1)[:, 0].masked_fill(is_off, -torch.inf)
