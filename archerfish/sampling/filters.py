"""What changes logits before a token is drawn. Each works on all rows at once; rows that do not ask pay nothing."""

import torch
from torch import Tensor

_NUCLEUS_GUESS = 256  # Tokens to sort at first: a nucleus is rarely larger, and sorting the vocabulary is slow.


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
    places = torch.arange(history.shape[1], device=history.device)
    known = places < lengths[:, None]
    written = known & (places >= num_prompt[:, None])
    zeros = torch.zeros_like(logits)
    seen = zeros.scatter_add(1, history, known.float()) > 0
    counts = zeros.scatter_add(1, history, written.float())
    weakened = torch.where(logits > 0, logits / repetition[:, None], logits * repetition[:, None])
    logits = torch.where(seen, weakened, logits)
    return logits - frequency[:, None] * counts - presence[:, None] * (counts > 0)


def keep_likeliest(logits: Tensor, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None) -> Tensor:
    """Everything below the three thresholds becomes -inf; equally likely tokens stay or go together.

    top_k [rows] whole numbers, 0 for no limit; top_p, min_p [rows]. min_p is applied first, then top_k, then top_p.
    """
    if min_p is not None:
        logits = _at_least(logits, logits.amax(-1) + torch.log(min_p))
    if top_k is not None:
        logits = _at_least(logits, _kth_largest(logits, top_k.long()))
    if top_p is not None:
        logits = _at_least(logits, _last_of_nucleus(logits, top_p))
    return logits


def _at_least(logits: Tensor, threshold: Tensor) -> Tensor:
    return logits.masked_fill(logits < threshold[:, None], -torch.inf)


def _kth_largest(logits: Tensor, k: Tensor) -> Tensor:
    """-inf for rows whose k is 0 or exceeds the vocabulary."""
    idle = (k <= 0) | (k >= logits.shape[-1])
    k = k.masked_fill(idle, 1)
    likeliest = logits.topk(int(k.max()), dim=-1).values  # Sorted, largest first.
    return likeliest.gather(1, k[:, None] - 1)[:, 0].masked_fill(idle, -torch.inf)


def _last_of_nucleus(logits: Tensor, top_p: Tensor) -> Tensor:
    """The least likely token of the smallest set that reaches top_p; -inf for rows whose top_p is 1."""
    idle = top_p >= 1.0  # Rounding of a sum must not cut their tail.
    total = logits.logsumexp(-1, keepdim=True)
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
