"""Quantized matrices in the layout that Triton kernels read.

Free of Triton, so that an installation without it can name these types.
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

DeviceFormat = Literal["int8", "w8a8", "int4", "fp8"]

TILE = 16
"""Outputs of int4 that are stored together: as many as one matrix instruction takes."""
STEP = 32
"""Inputs that a matrix instruction of eight-bit numbers takes."""
_GROUPS_INT8 = (128, 64, 32)
_GROUPS_INT4 = (32, 64, 128)
_MOST_INPUTS = 1 << 17
"""Sums of this many products of two bytes still fit 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceWeight:
    """A quantized matrix [outputs, inputs]."""

    format: DeviceFormat
    group: int
    """Inputs whose activations share a scale, and with int4 their weights too. Without groups it is the whole row."""
    num_outputs: int
    num_inputs: int
    dtype: torch.dtype
    """Dtype of the model, in which rows of an embedding are returned."""
    data: Tensor
    """[outputs, inputs] int8, or float8_e4m3fn with fp8.

    With int4, int8 [tiles of outputs, pairs of groups, TILE, group]: a byte holds four bits of the first group of a
    pair and above them four of the second, so that no bits change position to be multiplied. Each is the value less 8,
    as a signed number. The last tile and the last pair are padded with 0.
    """
    scales: Tensor
    """[outputs] float32. With int4, [tiles of outputs, pairs of groups, TILE] int32: two float16 numbers each, the
    first group's in the lower half."""
    zeros: Tensor | None = None
    """With int4 and zero points, in the layout of scales: 8 less the zero point, two int16 numbers each."""

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.num_outputs, self.num_inputs))

    @property
    def num_groups(self) -> int:
        return self.num_inputs // self.group

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.data, self.scales, self.zeros) if tensor is not None)

    def moved(self, device: torch.device | str) -> Self:
        """Return the matrix on another device."""
        zeros = None if self.zeros is None else self.zeros.to(device)
        return replace(self, data=self.data.to(device), scales=self.scales.to(device), zeros=zeros)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceExperts:
    """Matrices [experts, outputs, inputs] of one shape and format, stacked along the outputs."""

    num_experts: int
    stacked: DeviceWeight
    """[experts * outputs, inputs]. No tile of int4 has outputs of two experts."""

    def __post_init__(self) -> None:
        reason = why_not_stacked(self.num_outputs)
        assert reason is None, reason

    @property
    def num_outputs(self) -> int:
        return self.stacked.num_outputs // self.num_experts

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.num_experts, self.num_outputs, self.stacked.num_inputs))

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the model."""
        return self.stacked.dtype

    @property
    def device(self) -> torch.device:
        return self.stacked.data.device

    def expert(self, index: int) -> DeviceWeight:
        """Return the matrix of one expert."""
        parts = (self.stacked.data, self.stacked.scales, self.stacked.zeros)
        data, scales, zeros = (
            None if part is None else part.view(self.num_experts, -1, *part.shape[1:])[index] for part in parts
        )
        assert data is not None and scales is not None
        return replace(self.stacked, num_outputs=self.num_outputs, data=data, scales=scales, zeros=zeros)


def why_not_stacked(num_outputs: int) -> str | None:
    """Return the reason why matrices of this many outputs cannot be stacked, or None."""
    return f"{num_outputs} outputs are not a multiple of {TILE}" if num_outputs % TILE else None


def why_not_arranged(num_inputs: int, group: int) -> str | None:
    """Return the reason why there are no kernels for rows of this many inputs, or None."""
    if num_inputs % STEP:
        return f"{num_inputs} inputs are not a multiple of {STEP}"
    if num_inputs % group:
        return f"{num_inputs} inputs are not a multiple of the group of {group}"
    if num_inputs > _MOST_INPUTS:
        return f"{num_inputs} inputs are more than {_MOST_INPUTS}, whose sums fit 32 bits"
    return None


def arrange_int8(values: Tensor, scales: Tensor, name: Literal["int8", "w8a8"], dtype: torch.dtype) -> DeviceWeight:
    """Arrange int8 values [outputs, inputs] with a scale per output; activations in groups, or with one scale per
    row."""
    num_inputs = values.shape[1]
    fitting = (group for group in _GROUPS_INT8 if num_inputs % group == 0)
    return _by_output(name, values, scales, next(fitting, STEP) if name == "int8" else num_inputs, dtype)


def arrange_fp8(values: Tensor, scales: Tensor, dtype: torch.dtype) -> DeviceWeight:
    """Arrange float8_e4m3fn values [outputs, inputs] with a scale per output; activations with one scale per row."""
    return _by_output("fp8", values, scales, values.shape[1], dtype)


def _by_output(name: DeviceFormat, values: Tensor, scales: Tensor, group: int, dtype: torch.dtype) -> DeviceWeight:
    _check(values, group)
    return DeviceWeight(
        format=name,
        group=group,
        num_outputs=values.shape[0],
        num_inputs=values.shape[1],
        dtype=dtype,
        data=values.contiguous(),
        scales=scales.float().contiguous(),
    )


def arrange_int4(values: Tensor, scales: Tensor, zeros: Tensor | None, group: int, dtype: torch.dtype) -> DeviceWeight:
    """Arrange uint8 values 0 to 15 [outputs, inputs] with scales and zero points [outputs, groups]; by default 8 is
    zero."""
    assert group in _GROUPS_INT4, f"groups of {group} are not supported, only {_GROUPS_INT4}"
    _check(values, group)
    num_outputs, num_inputs = values.shape
    num_pairs = -(-num_inputs // (2 * group))
    signed = F.pad(values ^ 8, (0, num_pairs * 2 * group - num_inputs, 0, -num_outputs % TILE))
    halves = signed.view(-1, TILE, num_pairs, 2, group).transpose(1, 2)  # [tiles, pairs, TILE, 2, group]
    return DeviceWeight(
        format="int4",
        group=group,
        num_outputs=num_outputs,
        num_inputs=num_inputs,
        dtype=dtype,
        data=(halves[..., 0, :] | halves[..., 1, :] << 4).contiguous().view(torch.int8),
        scales=_pairs(scales.half(), num_pairs),
        zeros=None if zeros is None else _pairs(8 - zeros.to(torch.int16), num_pairs),
    )


def _pairs(numbers: Tensor, num_pairs: int) -> Tensor:
    """Pack 16-bit numbers [outputs, groups] into int32 [tiles, pairs, TILE]."""
    num_outputs, num_groups = numbers.shape
    padded = F.pad(numbers, (0, 2 * num_pairs - num_groups, 0, -num_outputs % TILE))
    return padded.contiguous().view(torch.int32).view(-1, TILE, num_pairs).transpose(1, 2).contiguous()


def _check(values: Tensor, group: int) -> None:
    reason = why_not_arranged(values.shape[1], group)
    assert reason is None, reason
