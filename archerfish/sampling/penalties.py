"""Penalties for tokens that occurred, on all rows at once."""

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
    indices = torch.arange(history.shape[1], device=history.device)
    known = indices < lengths[:, None]
    written = known & (indices >= num_prompt[:, None])
    zeros = torch.zeros_like(logits)
    seen = zeros.scatter_add(1, history, known.float()) > 0
    counts = zeros.scatter_add(1, history, written.float())
    weakened = torch.where(logits > 0, logits / repetition[:, None], logits * repetition[:, None])
    logits = torch.where(seen, weakened, logits)
    return logits - frequency[:, None] * counts - presence[:, None] * (counts > 0)
