"""Matrices packed for native kernels: panels of 64 outputs, each contiguous in memory.

Packing only arranges numbers that are already rounded to their format.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from archerfish.ops.cpu.program import PANEL, Format

_BFLOAT16_GROUP = 32
"""Inputs that a matrix tile multiplies at once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedWeight:
    """A matrix [outputs, inputs], padded to whole panels and groups."""

    format: Format
    group: int
    """Number of inputs that share a scale. int8 weights have one for each output: here it is that of activations."""
    num_outputs: int
    num_inputs: int
    padded_inputs: int
    data: Tensor
    """[panels, bytes of a panel] uint8."""
    scales: Tensor | None = None
    """[padded outputs] float32, for int8 only."""

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.num_outputs, self.num_inputs))

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def moved(self, data: Tensor) -> Self:
        """Return the same matrix with its data in another tensor."""
        return replace(self, data=data)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedExperts:
    """Matrices [experts, outputs, inputs], one for each expert, all of one format."""

    first: PackedWeight
    """The matrix of the first expert, a view of `data` and `scales`."""
    data: Tensor
    """[experts, panels, bytes of a panel] uint8."""
    scales: Tensor | None = None
    """[experts, padded outputs] float32, for int8 only."""

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.data), *self.first.shape))

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def moved(self, data: Tensor) -> Self:
        """Return the same matrix with its data in another tensor."""
        return replace(self, first=self.first.moved(data[0]), data=data)


def pack_experts(weights: Tensor, pack: Callable[[Tensor], PackedWeight]) -> PackedExperts:
    """Pack [experts, outputs, inputs] one expert after the other, so that only one is in memory twice."""
    first = pack(weights[0])
    data = torch.empty(len(weights), *first.data.shape, dtype=torch.uint8)
    scales = None if first.scales is None else torch.empty(len(weights), len(first.scales))
    for expert, weight in enumerate(weights):
        packed = pack(weight) if expert else first
        data[expert] = packed.data
        if scales is not None and packed.scales is not None:
            scales[expert] = packed.scales
    first = replace(first, data=data[0], scales=None if scales is None else scales[0])
    return PackedExperts(first=first, data=data, scales=scales)


def pack_floats(weight: Tensor) -> PackedWeight:
    """Pack float32 or bfloat16."""
    depth = 1 if weight.dtype == torch.float32 else 2
    group = 1 if depth == 1 else _BFLOAT16_GROUP
    padded = _padded(weight, group)
    return PackedWeight(
        format=Format.FLOAT32 if depth == 1 else Format.BFLOAT16,
        group=group,
        num_outputs=weight.shape[0],
        num_inputs=weight.shape[1],
        padded_inputs=padded.shape[1],
        data=_panels(padded, depth).flatten(1).view(torch.uint8),
    )


def pack_int8(values: Tensor, scales: Tensor, group: int) -> PackedWeight:
    """Pack int8 values [outputs, inputs] with a scale for each output; activations are quantized in groups."""
    padded = _padded(values, group)
    shifted = (
        padded.view(torch.uint8) ^ 0x80
    )  # Plus 128, because kernels multiply unsigned weights with signed activations.
    return PackedWeight(
        format=Format.INT8,
        group=group,
        num_outputs=values.shape[0],
        num_inputs=values.shape[1],
        padded_inputs=padded.shape[1],
        data=_panels(shifted, 4).flatten(1),
        scales=F.pad(scales.float(), (0, -len(scales) % PANEL)),
    )


def pack_int4(values: Tensor, scales: Tensor, zeros: Tensor | None, group: int) -> PackedWeight:
    """Pack values 0 to 15 [outputs, inputs] uint8, with scales and zero points (8 if None) [outputs, groups]."""
    padded = _padded(values, group, fill=8 if zeros is None else 0)
    num_groups = padded.shape[1] // group
    fours = _panels(padded, 4).view(-1, num_groups, group // 8, 2, PANEL * 4)
    nibbles = (fours[:, :, :, 0] | fours[:, :, :, 1] << 4).flatten(2)  # [panels, groups, group / 2 * 64]
    heads = [_by_panel(scales.to(torch.float16), num_groups).view(torch.uint8)]
    if zeros is not None:
        heads.append(_by_panel(zeros, num_groups))
    return PackedWeight(
        format=Format.INT4 if zeros is None else Format.INT4_ZEROS,
        group=group,
        num_outputs=values.shape[0],
        num_inputs=values.shape[1],
        padded_inputs=padded.shape[1],
        data=torch.cat((*heads, nibbles), dim=2).flatten(1),
    )


def _padded(values: Tensor, multiple: int, fill: int = 0) -> Tensor:
    outputs, inputs = values.shape
    return F.pad(values, (0, -inputs % multiple, 0, -outputs % PANEL), value=fill)


def _panels(values: Tensor, depth: int) -> Tensor:
    """Return [panels, inputs / depth, 64, depth] for [outputs, inputs]."""
    outputs, inputs = values.shape
    return values.view(outputs // PANEL, PANEL, inputs // depth, depth).transpose(1, 2).contiguous()


def _by_panel(values: Tensor, num_groups: int) -> Tensor:
    """Return [panels, groups, 64] for [outputs, groups]."""
    values = F.pad(values, (0, num_groups - values.shape[1], 0, -len(values) % PANEL))
    return values.view(-1, PANEL, num_groups).transpose(1, 2).contiguous()
