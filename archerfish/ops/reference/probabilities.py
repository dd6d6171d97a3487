"""The distribution that tokens are drawn from, after filters."""

import torch
import torch.nn.functional as F
from torch import Tensor

from archerfish.ops.reference.drawing import RowsByMethod, filtered_logits, narrow_candidates
from archerfish.ops.signatures import DrawRows


def probabilities(logits: Tensor, rows: DrawRows) -> Tensor:
    """Return [rows, vocabulary] float64 for logits [rows, vocabulary]; a greedy row has a single 1.

    Exactly the tokens that `draw` may draw have a probability above 0. A row whose largest logit is not finite is
    undefined.
    """
    result = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
    for indices, measure in zip(RowsByMethod.of(rows), (_greedy, _narrow, _wide), strict=True):
        if len(indices):
            selected = torch.from_numpy(indices).to(logits.device)
            result[selected] = measure(logits[selected], rows[indices])
    return result


def _greedy(logits: Tensor, _: DrawRows) -> Tensor:
    return torch.zeros_like(logits, dtype=torch.float64).scatter_(1, logits.argmax(-1, keepdim=True), 1.0)


def _narrow(logits: Tensor, rows: DrawRows) -> Tensor:
    candidates = narrow_candidates(logits, rows)
    return _softmax(torch.full_like(logits, -torch.inf).scatter_(1, candidates.tokens, candidates.logits))


def _wide(logits: Tensor, rows: DrawRows) -> Tensor:
    return _softmax(filtered_logits(logits, rows))


def _softmax(filtered: Tensor) -> Tensor:
    # GPUs sum a row in an order that depends on the parity of its offset, so rows are padded to an even width.
    even = F.pad(filtered, (0, filtered.shape[-1] % 2), value=-torch.inf)
    return even.softmax(-1, dtype=torch.float64)[:, : filtered.shape[-1]]
