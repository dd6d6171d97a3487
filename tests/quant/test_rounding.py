"""Rounding to few bits: every number to its nearest step, and no group worse than without a searched clip."""

import numpy as np
import pytest
import torch
from torch import Tensor

from archerfish.quant import WeightFormat
from archerfish.quant.rounding import round_int4, round_int8


def noise(seed: int, *shape: int) -> Tensor:
    # A few numbers far out, as weights have them: the clip is for these.
    return torch.from_numpy(np.random.default_rng(seed).standard_t(4, size=shape)).float()


def int4_as_numbers(weight: Tensor, group: int, *, zero_points: bool) -> Tensor:
    values, scales, zeros = round_int4(weight, group, zero_points=zero_points)
    width = weight.shape[1]
    spread = scales.float().repeat_interleave(group, 1)[:, :width]
    shift = 8.0 if zeros is None else zeros.float().repeat_interleave(group, 1)[:, :width]
    return (values.float() - shift) * spread


def test_int8_is_within_half_a_step() -> None:
    weight = noise(0, 40, 300)
    values, scales = round_int8(weight)
    assert values.abs().max() <= 127
    error = (values * scales[:, None] - weight).abs()
    steps = scales[:, None].abs()
    inside = weight.abs() <= 127 * steps
    assert (error <= steps * 0.5001)[inside].all()
    assert inside.float().mean() > 0.99


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("width", [128, 100, 5])
def test_int4_is_no_worse_than_plain_rounding(group: int, zero_points: bool, width: int) -> None:
    weight = noise(1, 30, width) + (2.0 if zero_points else 0.0)
    found = int4_as_numbers(weight, group, zero_points=zero_points)
    padded = torch.nn.functional.pad(weight, (0, -width % group)).view(30, -1, group)
    step = padded.abs().amax(-1, keepdim=True) / 7
    plain = ((padded / step).round().clamp(-8, 7) * step).flatten(1)[:, :width]
    assert (found - weight).square().sum() <= (plain - weight).square().sum() * 1.0001


def test_zero_points_pay_where_numbers_lie_on_one_side() -> None:
    weight = noise(2, 30, 128).abs() + 3
    errors = [
        float((int4_as_numbers(weight, 64, zero_points=zero_points) - weight).square().mean())
        for zero_points in (False, True)
    ]
    assert errors[1] < errors[0]


def test_zeros_stay_zeros_and_nothing_is_broken_by_them() -> None:
    weight = noise(3, 4, 128)
    weight[1] = 0
    weight[2, :64] = 0
    assert torch.equal(int4_as_numbers(weight, 64, zero_points=False)[1], weight[1])
    assert torch.equal(int4_as_numbers(weight, 64, zero_points=False)[2, :64], weight[2, :64])
    values, scales = round_int8(weight)
    assert not values[1].any() and scales.isfinite().all()


def test_words_keep_more_bits_than_layers_in_int4() -> None:
    assert WeightFormat(name="int4").of_vocabulary == WeightFormat(name="int8")
    assert WeightFormat(name="w8a8").of_vocabulary == WeightFormat(name="w8a8")


def test_bytes_of_a_weight() -> None:
    assert WeightFormat(name="none").bytes_per_weight(2) == 2
    assert WeightFormat(name="int8").bytes_per_weight(2) == 1
    assert WeightFormat(name="int4", group=64).bytes_per_weight(2) == 0.5 + 2 / 64
    packed = WeightFormat(name="int4", group=32, zero_points=True)
    assert packed.pack(noise(0, 64, 64)).nbytes == 64 * 64 * packed.bytes_per_weight(4)
