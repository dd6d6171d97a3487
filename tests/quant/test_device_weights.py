"""Weights made for a GPU stand for the same numbers as those made for a CPU."""

import pytest
import torch
from torch import Tensor

from archerfish.ops.triton.device_weight import DeviceWeight
from archerfish.quant import InputStatistics, WeightFormat, rounding
from archerfish.quant.device_weights import device_weight
from archerfish.quant.rounding import round_fp8, round_int4, round_int8


def full_weight() -> Tensor:
    return torch.randn(20, 192, generator=torch.Generator().manual_seed(1), dtype=torch.bfloat16)


def unpacked(weight: DeviceWeight) -> Tensor:
    """int4 -> [outputs, groups, group], less 8."""
    data = weight.data.to(torch.int16)
    lower, upper = (data << 12 >> 12), data >> 4  # [tiles, pairs, 16, group]
    values = torch.stack((lower, upper), 2).permute(0, 3, 1, 2, 4)  # [tiles, 16, pairs, 2, group]
    return values.flatten(0, 1).flatten(1, 2)[: weight.num_outputs, : weight.num_groups]


def by_group(pairs: Tensor, weight: DeviceWeight, dtype: torch.dtype) -> Tensor:
    """Two numbers in each int32 -> [outputs, groups]."""
    numbers = pairs.transpose(1, 2).contiguous().view(dtype).flatten(0, 1)
    return numbers[: weight.num_outputs, : weight.num_groups]


@pytest.mark.parametrize(("name", "group"), [("int8", 64), ("w8a8", 192)])
def test_int8(name: str, group: int) -> None:
    made = device_weight(full_weight(), WeightFormat(name=name))
    values, scales = round_int8(full_weight())
    assert (made.format, made.group, made.dtype) == (name, group, torch.bfloat16)
    assert torch.equal(made.data, values) and torch.equal(made.scales, scales)


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("calibrated", [False, True])
def test_int4(zero_points: bool, calibrated: bool) -> None:
    weight_format = WeightFormat(name="int4", group=64, zero_points=zero_points, calibrated=calibrated)
    inputs = InputStatistics.of(torch.randn(50, 192)) if calibrated else None
    made = device_weight(full_weight(), weight_format, inputs)
    values, scales, zeros = round_int4(full_weight(), 64, zero_points=zero_points, inputs=inputs)
    assert torch.equal(unpacked(made).flatten(1), values.to(torch.int16) - 8)
    assert torch.equal(by_group(made.scales, made, torch.float16), scales)
    if zeros is None:
        assert made.zeros is None
    else:
        assert made.zeros is not None
        assert torch.equal(by_group(made.zeros, made, torch.int16), 8 - zeros.to(torch.int16))


def test_fp8_is_near_and_takes_zeros() -> None:
    weight = full_weight()
    weight[3] = 0.0
    made = device_weight(weight, WeightFormat(name="fp8"))
    values, scales = round_fp8(weight)
    assert torch.equal(made.data.view(torch.uint8), values.view(torch.uint8)) and torch.equal(made.scales, scales)
    back = values.float() * scales[:, None]
    largest = weight.float().abs().amax(-1, keepdim=True)
    # Four digits in binary, or steps of 2 ** -9 where numbers are small.
    assert ((back - weight.float()).abs() <= weight.float().abs() * 2.0**-4 + largest / 448 * 2.0**-10).all()
    assert not back[3].any() and (scales > 0).all()


EVERY = [
    WeightFormat(name="fp8"),
    WeightFormat(name="int8"),
    WeightFormat(name="int4", group=32),
    WeightFormat(name="int4", group=64, zero_points=True),
]


@pytest.mark.parametrize("weight_format", EVERY, ids=str)
def test_weights_are_the_same_however_many_numbers_are_rounded_at_once(
    weight_format: WeightFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU is given more of them at once than a CPU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    full = torch.randn(96, 192, generator=torch.Generator().manual_seed(2)).to(device, torch.bfloat16)
    whole = device_weight(full, weight_format)
    for name in ("_NUMBERS_PER_CPU_PIECE", "_NUMBERS_PER_GPU_PIECE"):
        monkeypatch.setattr(rounding, name, 32 * 192)
    pieces = device_weight(full, weight_format)
    assert torch.equal(whole.data.view(torch.uint8), pieces.data.view(torch.uint8))
    assert torch.equal(whole.scales, pieces.scales)
    assert (whole.zeros is None) == (pieces.zeros is None)
    assert whole.zeros is None or pieces.zeros is None or torch.equal(whole.zeros, pieces.zeros)


def test_full_numbers_are_refused() -> None:
    with pytest.raises(AssertionError, match="are not packed"):
        device_weight(full_weight(), WeightFormat(name="none"))


def test_eight_bit_floats_are_not_for_native_kernels() -> None:
    with pytest.raises(AssertionError, match="do not support fp8"):
        WeightFormat(name="fp8").pack(full_weight())
