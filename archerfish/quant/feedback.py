"""Rounding in which later numbers of a row make up for errors of earlier ones, as far as their inputs move together.

Knows what the inputs of a matrix did, not which model or text they are from.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 512
"""Inputs that make up for each other; the work grows with it. With 192 instead of all, perch diverged a sixth more."""
_STRIP = 16
"""Inputs whose errors are passed on one by one; from a whole strip they go on to the rest of the block together."""
_DAMPING = 0.01
"""Share of the mean moment that is added to each: what a short text did not show may still happen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InputStatistics:
    """How the inputs of a matrix go together, in blocks; filled up with inputs that nothing goes with."""

    num_inputs: int
    importance: Tensor
    """[inputs] mean squares, in proportion: what an error of a weight weighs."""
    order: Tensor
    """[blocks, BLOCK] inputs of each block, those first that weigh most: they find most others to make up for them."""
    carry: Tensor
    """[blocks, BLOCK, BLOCK] in that order: how much of the error at row i the input at column j > i makes up for."""

    @classmethod
    def of(cls, inputs: Tensor) -> "InputStatistics":
        """From [rows, inputs]."""
        num_rows, num_inputs = inputs.shape
        columns = F.pad(inputs.float(), (0, -num_inputs % BLOCK)).view(num_rows, -1, BLOCK).permute(1, 2, 0)
        moments = columns @ columns.transpose(1, 2) / num_rows  # [blocks, BLOCK, BLOCK]
        squares = moments.diagonal(dim1=1, dim2=2)
        mean = squares.flatten()[:num_inputs].mean()
        # Inputs that were never anything but 0 leave their weights as if nothing were known.
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
    """The strict upper triangle of T in moments = T D T', T with ones on its diagonal.

    An error e of a row costs e M e' = (e T) D (e T)'. So each number is rounded together with what the errors before it
    carry to its column of T, and only what is left there costs anything.
    """
    lower = torch.linalg.cholesky(moments.flip(1, 2))
    upper = lower.flip(1, 2)
    ones_on_diagonal: Tensor = upper / upper.diagonal(dim1=1, dim2=2)[:, None, :]
    return ones_on_diagonal.triu(1).float()


def round_with_feedback(numbers: Tensor, scales: Tensor, zeros: Tensor, inputs: InputStatistics) -> Tensor:
    """0 to 15, all float32 [rows, inputs]: (value - zero) * scale stands for a number."""
    exact, steps, shifts = (_by_block(part, inputs.order) for part in (numbers, scales, zeros))
    wanted = exact.clone()  # [blocks, BLOCK, rows]
    values, errors = torch.empty_like(exact), torch.empty_like(exact)
    for first in range(0, BLOCK, _STRIP):
        last = first + _STRIP
        for place in range(first, last):
            step, shift = steps[:, place], shifts[:, place]
            value = (wanted[:, place] / step).round_().add_(shift).clamp_(0, 15)
            values[:, place] = value
            errors[:, place] = exact[:, place] - value.sub(shift).mul_(step)
            share = inputs.carry[:, place, place + 1 : last, None]
            wanted[:, place + 1 : last] += share * errors[:, place, None]
        wanted[:, last:] += inputs.carry[:, first:last, last:].transpose(1, 2) @ errors[:, first:last]
    return _by_row(values, inputs.order)[:, : inputs.num_inputs]


def _by_block(numbers: Tensor, order: Tensor) -> Tensor:
    """[rows, inputs] -> [blocks, BLOCK, rows], each block in its order; what is filled up is 1, never divided by 0."""
    num_rows, num_inputs = numbers.shape
    blocks = F.pad(numbers, (0, -num_inputs % BLOCK), value=1.0).view(num_rows, -1, BLOCK).permute(1, 2, 0)
    return blocks.gather(1, order[:, :, None].expand_as(blocks)).contiguous()


def _by_row(blocks: Tensor, order: Tensor) -> Tensor:
    """The way back."""
    restored = torch.empty_like(blocks).scatter_(1, order[:, :, None].expand_as(blocks), blocks)
    return restored.permute(2, 0, 1).flatten(1)
