"""Which tokens may be drawn: min_p, top_k and top_p on all rows at once; rows that do not ask pay nothing."""

from typing import NamedTuple

import torch
from torch import Tensor

_NUCLEUS_GUESS = 256  # Tokens to sort at first: a nucleus is rarely larger, and sorting the vocabulary is slow.


def keep_likeliest(logits: Tensor, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None) -> Tensor:
    """Everything below the three thresholds becomes -inf; equally likely tokens stay or go together.

    top_k [rows] whole numbers, 0 for no limit; top_p, min_p [rows]. min_p is applied first, then top_k, then top_p.
    """
    if min_p is not None:
        logits = _at_least(logits, logits.amax(-1) + torch.log(min_p))
    if top_k is not None:
        logits = _at_least(logits, _kth_largest(logits, top_k.long()))
    if top_p is not None:
        logits = _at_least(logits, _last_of_nucleus(logits, logits.logsumexp(-1, keepdim=True), top_p))
    return logits


class Candidates(NamedTuple):
    """Some tokens of each row, by rising id; the rest cannot be drawn."""

    logits: Tensor
    tokens: Tensor


def likeliest_candidates(logits: Tensor, top_k: Tensor, top_p: Tensor | None, min_p: Tensor | None) -> Candidates:
    """What keep_likeliest leaves of rows that all have a top_k, without work on the tokens it drops."""
    k = top_k.long().clamp(max=logits.shape[-1])[:, None]
    values, tokens = _at_least_k(logits, k)
    if min_p is not None:
        values = _at_least(values, values[:, 0] + torch.log(min_p))
    values = _at_least(values, values.gather(1, k - 1)[:, 0])
    if top_p is not None:
        # A running sum: how many columns other rows need must not change how it is rounded.
        total = torch.exp(values - values[:, :1]).cumsum(-1)[:, -1:].log() + values[:, :1]
        values = _at_least(values, _last_of_nucleus(values, total, top_p))
    tokens, order = tokens.sort(-1)
    return Candidates(values.gather(1, order), tokens)


def _at_least_k(logits: Tensor, k: Tensor) -> Candidates:
    """The likeliest tokens of each row, likeliest first: k [rows, 1], those equal to the last of them, and more."""
    width = min(int(k.max()) + 1, logits.shape[-1])
    while True:
        values, tokens = logits.topk(width, dim=-1)
        kth = values.gather(1, k - 1)
        # Tokens that are -inf are equal as well, but nobody draws them.
        if width == logits.shape[-1] or not bool((torch.isfinite(kth) & (values[:, -1:] == kth)).any()):
            return Candidates(values, tokens)
        width = min(4 * width, logits.shape[-1])


def _at_least(logits: Tensor, threshold: Tensor) -> Tensor:
    return logits.masked_fill(logits < threshold[:, None], -torch.inf)


def _kth_largest(logits: Tensor, k: Tensor) -> Tensor:
    """-inf for rows whose k is 0 or exceeds the vocabulary."""
    idle = (k <= 0) | (k >= logits.shape[-1])
    k = k.masked_fill(idle, 1)
    likeliest = logits.topk(int(k.max()), dim=-1).values  # Sorted, largest first.
    return likeliest.gather(1, k[:, None] - 1)[:, 0].masked_fill(idle, -torch.inf)


def _last_of_nucleus(logits: Tensor, total: Tensor, top_p: Tensor) -> Tensor:
    """The least likely token of the smallest set that reaches top_p; -inf for rows whose top_p is 1.

    total [rows, 1] is the logarithm of the sum of all exponentials.
    """
    idle = top_p >= 1.0  # Rounding of a sum must not cut their tail.
    width = min(_NUCLEUS_GUESS, logits.shape[-1])
    while True:
        likeliest = logits.topk(width, dim=-1).values
        chances = torch.exp(likeliest - total)
        inside = chances.cumsum(-1) - chances < top_p[:, None]  # By the probability of all likelier tokens.
        if width == logits.shape[-1] or not bool((inside[:, -1] & ~idle).any()):
            break
        width = logits.shape[-1]  # A flat row: only the whole vocabulary tells.
    num_inside = inside.sum(-1, keepdim=True).clamp_(min=1)
    return likeliest.gather(1, num_inside - 1)[:, 0].masked_fill(idle, -torch.inf)
