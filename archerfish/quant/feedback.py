"""Rounding in which later weights of a row compensate for errors of earlier ones, as GPTQ and LDLQ do."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 512
"""Inputs that compensate for each other. Work grows with it; with 192 the KL divergence was a sixth higher."""
_STRIP = 16
"""Inputs whose errors are propagated one by one; a whole strip's are propagated to the rest of the block at once."""
_DAMPING = 0.01
"""Share of the mean square that is added to each, because a short text does not show every input."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InputStatistics:
    """Second moments of the inputs of a matrix, in blocks that are padded with uncorrelated inputs."""

    num_inputs: int
    importance: Tensor
    """[inputs] relative mean squares: the cost of an error of a weight."""
    order: Tensor
    """[blocks, BLOCK] inputs of each block, the most important first: most others are left to compensate for them."""
    carry: Tensor
    """[blocks, BLOCK, BLOCK] in that order: the share of the error of input i that input j > i compensates for."""

    @classmethod
    def of(cls, inputs: Tensor) -> "InputStatistics":
        """Compute the statistics of inputs [rows, inputs]."""
        num_rows, num_inputs = inputs.shape
        columns = F.pad(inputs.float(), (0, -num_inputs % BLOCK)).view(num_rows, -1, BLOCK).permute(1, 2, 0)
        moments = columns @ columns.transpose(1, 2) / num_rows  # [blocks, BLOCK, BLOCK]
        squares = moments.diagonal(dim1=1, dim2=2)
        mean = squares.flatten()[:num_inputs].mean()
        # If all inputs are 0, weights are rounded as if nothing were known of them.
        damping = torch.where(mean > 0, mean * _DAMPING, torch.ones(()))
        importance = squares.flatten()[:num_inputs] + damping
        order = squares.argsort(dim=1, descending=True, stable=True)
        sorted_rows = moments.gather(1, order[:, :, None].expand_as(moments))
        ordered = sorted_rows.gather(2, order[:, None, :].expand_as(moments))
        return cls(
            num_inputs=num_inputs,
            importance=importance / importance.mean(),
            order=order,
            carry=_carry(ordered.double() + damping * torch.eye(BLOCK, dtype=torch.float64)),
        )


def _carry(moments: Tensor) -> Tensor:
    """Return the strict upper triangle of T in moments = T D T', where T has ones on its diagonal.

    An error e of a row costs e M e' = (e T) D (e T)'. So each weight is rounded together with what the errors before it
    carry to its column of T, and only the remainder has a cost.
    """
    lower = torch.linalg.cholesky(moments.flip(1, 2))
    upper = lower.flip(1, 2)
    ones_on_diagonal: Tensor = upper / upper.diagonal(dim1=1, dim2=2)[:, None, :]
    return ones_on_diagonal.triu(1).float()


def round_with_feedback(numbers: Tensor, scales: Tensor, zeros: Tensor, inputs: InputStatistics) -> Tensor:
    """Round to values 0 to 15 such that (value - zero) * scale is near a number, all float32 [rows, inputs]."""
    exact, steps, shifts = (_by_block(part, inputs.order) for part in (numbers, scales, zeros))
    targets = exact.clone()  # [blocks, BLOCK, rows]
    values, errors = torch.empty_like(exact), torch.empty_like(exact)
    for first in range(0, BLOCK, _STRIP):
        last = first + _STRIP
        for column in range(first, last):
            step, shift = steps[:, column], shifts[:, column]
            value = (targets[:, column] / step).round_().add_(shift).clamp_(0, 15)
            values[:, column] = value
            errors[:, column] = exact[:, column] - value.sub(shift).mul_(step)
            share = inputs.carry[:, column, column + 1 : last, None]
            targets[:, column + 1 : last] += share * errors[:, column, None]
        targets[:, last:] += inputs.carry[:, first:last, last:].transpose(1, 2) @ errors[:, first:last]
    return _by_row(values, inputs.order)[:, : inputs.num_inputs]


def _by_block(numbers: Tensor, order: Tensor) -> Tensor:
    """Return [blocks, BLOCK, rows] of [rows, inputs], each block in its order, padded with 1 to avoid division by 0."""
    num_rows, num_inputs = numbers.shape
    blocks = F.pad(numbers, (0, -num_inputs % BLOCK), value=1.0).view(num_rows, -1, BLOCK).permute(1, 2, 0)
    return blocks.gather(1, order[:, :, None].expand_as(blocks)).contiguous()


def _by_row(blocks: Tensor, order: Tensor) -> Tensor:
    """Return [rows, inputs] of [blocks, BLOCK, rows] in their order."""
    restored = torch.empty_like(blocks).scatter_(1, order[:, :, None].expand_as(blocks), blocks)
    return restored.permute(2, 0, 1).flatten(1)
