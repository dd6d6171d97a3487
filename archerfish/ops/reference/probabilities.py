"""The distribution that the draw draws from. Knows its filters, and nothing of its noise."""

import torch
import torch.nn.functional as F
from torch import Tensor

from archerfish.ops.reference.drawing import Ways, keep_narrow, keep_wide
from archerfish.ops.signatures import DrawRows


def probabilities(logits: Tensor, rows: DrawRows) -> Tensor:
    """[rows, vocabulary] float64 of logits [rows, vocabulary]; a row that draws the likeliest token has a single 1.

    The kept tokens are those that `draw` keeps, to the last bit. A row means nothing where its peak is not finite.
    """
    found = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
    for asking, measure in zip(Ways.of(rows), (_certain, _narrow, _wide), strict=True):
        if len(asking):
            places = torch.from_numpy(asking).to(logits.device)
            found[places] = measure(logits[places], rows[asking])
    return found


def _certain(logits: Tensor, _: DrawRows) -> Tensor:
    return torch.zeros_like(logits, dtype=torch.float64).scatter_(1, logits.argmax(-1, keepdim=True), 1.0)


def _narrow(logits: Tensor, rows: DrawRows) -> Tensor:
    candidates = keep_narrow(logits, rows)
    return _softmax(torch.full_like(logits, -torch.inf).scatter_(1, candidates.tokens, candidates.logits))


def _wide(logits: Tensor, rows: DrawRows) -> Tensor:
    return _softmax(keep_wide(logits, rows))


def _softmax(kept: Tensor) -> Tensor:
    # GPUs sum a row in an order that depends on whether it starts at an even number: so all of them do.
    even = F.pad(kept, (0, kept.shape[-1] % 2), value=-torch.inf)
    return even.softmax(-1, dtype=torch.float64)[:, : kept.shape[-1]]
