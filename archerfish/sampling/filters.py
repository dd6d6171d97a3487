"""What changes logits before a token is drawn. Each works on all rows at once; rows that do not ask pay nothing."""

import torch
from torch import Tensor


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
    if top_k is None and top_p is None:
        return logits
    vocabulary = logits.shape[-1]
    limit = torch.full(logits.shape[:1], vocabulary, device=logits.device) if top_k is None else top_k.long()
    limit = torch.where((limit <= 0) | (limit > vocabulary), vocabulary, limit)
    widest = int(limit.max()) if top_p is None or top_k is not None else vocabulary
    likeliest = logits.topk(widest, dim=-1).values  # Sorted, largest first.
    threshold = likeliest.gather(1, limit[:, None] - 1)
    if top_p is not None:
        kept = likeliest.masked_fill(likeliest < threshold, -torch.inf)
        chances = torch.softmax(kept, dim=-1)
        before = chances.cumsum(-1) - chances  # Probability of all likelier tokens.
        num_kept = (before < top_p[:, None]).sum(-1, keepdim=True).clamp_(min=1)
        # Rows without top_p keep all: rounding of the sum must not cut their tail.
        cut = likeliest.gather(1, num_kept - 1).masked_fill(top_p[:, None] >= 1.0, -torch.inf)
        threshold = torch.maximum(threshold, cut)
    return _at_least(logits, threshold[:, 0])


def _at_least(logits: Tensor, threshold: Tensor) -> Tensor:
    return logits.masked_fill(logits < threshold[:, None], -torch.inf)
