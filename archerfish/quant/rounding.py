"""Rounding with searched scales: to cut off a group's largest numbers can leave less error in all others.

Knows numbers, and perhaps what the inputs did that they will be multiplied with; not which matrix they are.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from archerfish.quant.feedback import InputStatistics, round_with_feedback

_CLIPS_INT8 = (1.0, 0.95)
_CLIPS_INT4 = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7)
"""Shares of a group's largest number to try."""
_LARGEST_FP8 = 448.0
_IN_A_CACHE = 1 << 19
"""Numbers rounded at once by a CPU: few enough for all that is tried on them to stay in a cache."""
_IN_A_LAUNCH = 1 << 25
"""The same by a GPU: enough for its launches not to be what takes the time, few enough for some copies of them."""


class Rounded(NamedTuple):
    values: Tensor
    """int8 or float8_e4m3fn [outputs, inputs]."""
    scales: Tensor
    """float32 [outputs]."""


class RoundedGroups(NamedTuple):
    values: Tensor
    """uint8 0 to 15, [outputs, inputs]."""
    scales: Tensor
    """float16 [outputs, groups]."""
    zeros: Tensor | None
    """uint8 [outputs, groups]; without them 8 is zero."""


def round_int8(weight: Tensor) -> Rounded:
    """One scale for each output."""
    values = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(len(weight), device=weight.device)
    for rows in _pieces(weight):
        numbers = weight[rows].float()
        scale = _best_scale(numbers, _outermost(numbers) / 127, -127, 127, _CLIPS_INT8)
        values[rows] = (numbers / scale[:, None]).round_().clamp_(-127, 127).to(torch.int8)
        scales[rows] = scale
    return Rounded(values, scales)


def round_fp8(weight: Tensor) -> Rounded:
    """To float8_e4m3fn, one scale for each output: its largest number is the largest there is. Smaller numbers keep
    their digits, so nothing is won by cutting off large ones."""
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device)
    scales = torch.empty(len(weight), device=weight.device)
    for rows in _pieces(weight):
        numbers = weight[rows].float()
        scale = numbers.abs().amax(-1) / _LARGEST_FP8
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        values[rows] = (numbers / scale[:, None]).to(torch.float8_e4m3fn)
        scales[rows] = scale
    return Rounded(values, scales)


def round_int4(
    weight: Tensor, group: int, *, zero_points: bool, inputs: InputStatistics | None = None
) -> RoundedGroups:
    """One scale, and perhaps one zero point, for each group of inputs. The last group may be short.

    To the nearest; or, where it is known what inputs do, so that errors make up for each other.
    """
    num_outputs, num_inputs = weight.shape
    num_groups = -(-num_inputs // group)
    device = weight.device
    values = torch.empty(weight.shape, dtype=torch.uint8, device=device)
    scales = torch.empty(num_outputs, num_groups, dtype=torch.float16, device=device)
    zeros = torch.empty(num_outputs, num_groups, dtype=torch.uint8, device=device) if zero_points else None
    importance = torch.ones(num_inputs, device=device) if inputs is None else inputs.importance
    weighed = F.pad(importance, (0, num_groups * group - num_inputs)).view(num_groups, group)
    for rows in _pieces(weight):
        numbers = weight[rows].float()
        grouped = F.pad(numbers, (0, num_groups * group - num_inputs)).view(-1, num_groups, group)
        if zeros is None:
            scale = _best_scale(grouped, _outermost(grouped) / -8, -8, 7, _CLIPS_INT4, weighed)
            shift = torch.full_like(scale, 8)
        else:
            scale, shift = _range_scale(grouped, weighed)
            zeros[rows] = shift.to(torch.uint8)
        scales[rows] = scale.half()
        wide, moved = (part.repeat_interleave(group, 1)[:, :num_inputs] for part in (scale, shift))
        if inputs is None:
            whole = (numbers / wide).round_().add_(moved).clamp_(0, 15)
        else:
            whole = round_with_feedback(numbers, wide, moved, inputs)
        values[rows] = whole.to(torch.uint8)
    return RoundedGroups(values, scales, zeros)


def _pieces(weight: Tensor) -> list[slice]:
    at_once = _IN_A_CACHE if weight.device.type == "cpu" else _IN_A_LAUNCH
    step = max(1, at_once // weight.shape[1])
    return [slice(first, first + step) for first in range(0, len(weight), step)]


def _outermost(numbers: Tensor) -> Tensor:
    """The number farthest from 0 in each group, with its sign: scales may be negative, so that it meets the end of the
    range that reaches farther."""
    low, high = numbers.amin(-1), numbers.amax(-1)
    return torch.where(-low > high, low, high)


def _best_scale(
    numbers: Tensor, widest: Tensor, low: int, high: int, clips: tuple[float, ...], importance: Tensor | None = None
) -> Tensor:
    """Of the widest scale times each clip, the one with the least squared error."""
    best, least = _storable(widest), torch.full_like(widest, torch.inf)
    for clip in clips:
        scale = _storable(widest * clip)
        wide = scale[..., None]
        rounded = (numbers / wide).round_().clamp_(low, high).mul_(wide)
        error = _squared_error(rounded, numbers, importance)
        better = error < least
        best, least = torch.where(better, scale, best), torch.where(better, error, least)
    return best


def _storable(scale: Tensor) -> Tensor:
    """As float16 keeps it; never 0, which a group of zeros would have."""
    kept = scale.half().float()
    return torch.where(kept.abs() < _SMALLEST_HALF, _SMALLEST_HALF, kept)


def _squared_error(rounded: Tensor, numbers: Tensor, importance: Tensor | None) -> Tensor:
    """Of each group. Overwrites what was rounded."""
    squares = rounded.sub_(numbers).square_()
    return (squares if importance is None else squares.mul_(importance)).sum(-1)


def _range_scale(numbers: Tensor, importance: Tensor) -> tuple[Tensor, Tensor]:
    """From the smallest to the largest number; 0 is always among the values."""
    low, high = numbers.amin(-1).clamp(max=0), numbers.amax(-1).clamp(min=0)
    best_scale, best_shift = torch.ones_like(low), torch.zeros_like(low)
    least = torch.full_like(low, torch.inf)
    for clip in _CLIPS_INT4:
        scale = _storable((high - low) * clip / 15)
        shift = (-low * clip / scale).round().clamp(0, 15)
        wide, moved = scale[..., None], shift[..., None]
        rounded = (numbers / wide).round_().add_(moved).clamp_(0, 15).sub_(moved).mul_(wide)
        error = _squared_error(rounded, numbers, importance)
        better = error < least
        best_scale = torch.where(better, scale, best_scale)
        best_shift = torch.where(better, shift, best_shift)
        least = torch.where(better, error, least)
    return best_scale, best_shift


_SMALLEST_HALF = 2.0**-24
"""Of float16; a group of zeros has it for a scale."""
