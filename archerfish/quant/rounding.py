"""Rounding with searched scales: clipping the largest numbers of a group can reduce the error of all others."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from archerfish.quant.feedback import InputStatistics, round_with_feedback

_CLIPS_INT8 = (1.0, 0.95)
_CLIPS_INT4 = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7)
"""Ratios to try, of the scale that clips nothing."""
_LARGEST_FP8 = 448.0
_NUMBERS_PER_CPU_PIECE = 1 << 19
"""Numbers that a CPU rounds at once: few enough to stay in its cache while scales are tried."""
_NUMBERS_PER_GPU_PIECE = 1 << 25
"""Numbers that a GPU rounds at once: enough to outweigh launches, few enough for several copies in memory."""


class RoundedOutputs(NamedTuple):
    """A matrix rounded with one scale for each output."""

    values: Tensor
    """[outputs, inputs] int8 or float8_e4m3fn."""
    scales: Tensor
    """[outputs] float32."""


class RoundedGroups(NamedTuple):
    """A matrix rounded with one scale for each group of inputs."""

    values: Tensor
    """[outputs, inputs] uint8, 0 to 15."""
    scales: Tensor
    """[outputs, groups] float16."""
    zeros: Tensor | None
    """[outputs, groups] uint8; if None, 8 is zero."""


def round_int8(weight: Tensor) -> RoundedOutputs:
    """Round to int8 with one scale for each output."""
    values = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(len(weight), device=weight.device)
    for rows in _pieces(weight):
        numbers = weight[rows].float()
        scale = _best_scale(numbers, _outermost(numbers) / 127, -127, 127, _CLIPS_INT8)
        values[rows] = (numbers / scale[:, None]).round_().clamp_(-127, 127).to(torch.int8)
        scales[rows] = scale
    return RoundedOutputs(values, scales)


def round_fp8(weight: Tensor) -> RoundedOutputs:
    """Round to float8_e4m3fn with one scale for each output, which maps its largest number to the format's largest.

    Small floats are as precise as large ones, so clipping gains nothing.
    """
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device)
    scales = torch.empty(len(weight), device=weight.device)
    for rows in _pieces(weight):
        numbers = weight[rows].float()
        scale = numbers.abs().amax(-1) / _LARGEST_FP8
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        values[rows] = (numbers / scale[:, None]).to(torch.float8_e4m3fn)
        scales[rows] = scale
    return RoundedOutputs(values, scales)


def round_int4(
    weight: Tensor, group: int, *, zero_points: bool, inputs: InputStatistics | None = None
) -> RoundedGroups:
    """Round to int4 with a scale, and a zero point if requested, for each group of inputs. The last group may be short.

    With statistics of the inputs errors compensate for each other; without, weights are rounded to nearest.
    """
    num_outputs, num_inputs = weight.shape
    num_groups = -(-num_inputs // group)
    device = weight.device
    values = torch.empty(weight.shape, dtype=torch.uint8, device=device)
    scales = torch.empty(num_outputs, num_groups, dtype=torch.float16, device=device)
    zeros = torch.empty(num_outputs, num_groups, dtype=torch.uint8, device=device) if zero_points else None
    importance = torch.ones(num_inputs, device=device) if inputs is None else inputs.importance
    grouped_importance = F.pad(importance, (0, num_groups * group - num_inputs)).view(num_groups, group)
    for rows in _pieces(weight):
        numbers = weight[rows].float()
        grouped = F.pad(numbers, (0, num_groups * group - num_inputs)).view(-1, num_groups, group)
        if zeros is None:
            scale = _best_scale(grouped, _outermost(grouped) / -8, -8, 7, _CLIPS_INT4, grouped_importance)
            shift = torch.full_like(scale, 8)
        else:
            scale, shift = _range_scale(grouped, grouped_importance)
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
    at_once = _NUMBERS_PER_CPU_PIECE if weight.device.type == "cpu" else _NUMBERS_PER_GPU_PIECE
    step = max(1, at_once // weight.shape[1])
    return [slice(first, first + step) for first in range(0, len(weight), step)]


def _outermost(numbers: Tensor) -> Tensor:
    """Return the number farthest from 0 in each group, with its sign: the sign of a scale is chosen so that this number
    gets the end of the range that is farther from 0."""
    low, high = numbers.amin(-1), numbers.amax(-1)
    return torch.where(-low > high, low, high)


def _best_scale(
    numbers: Tensor, widest: Tensor, low: int, high: int, clips: tuple[float, ...], importance: Tensor | None = None
) -> Tensor:
    """Return the scale with the least squared error, among the widest one times each clip."""
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
    """Round a scale to float16, but never to 0, even for a group of zeros."""
    rounded = scale.half().float()
    return torch.where(rounded.abs() < _SMALLEST_HALF, _SMALLEST_HALF, rounded)


def _squared_error(rounded: Tensor, numbers: Tensor, importance: Tensor | None) -> Tensor:
    """Return the error of each group. Overwrites `rounded`."""
    squares = rounded.sub_(numbers).square_()
    return (squares if importance is None else squares.mul_(importance)).sum(-1)


def _range_scale(numbers: Tensor, importance: Tensor) -> tuple[Tensor, Tensor]:
    """Return scales and zero points for the range from the smallest to the largest number, which always includes 0."""
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
"""Smallest positive float16, the scale of a group of zeros."""
