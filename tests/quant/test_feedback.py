"""Rounding with feedback: the very values of a brute-force search for what makes up best, and less error for it."""

import numpy as np
import pytest
import torch
from torch import Tensor

from archerfish.quant import InputStatistics
from archerfish.quant.feedback import round_with_feedback
from archerfish.quant.rounding import RoundedGroups, round_int4


def noise(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


def inputs_that_go_together(num_inputs: int) -> Tensor:
    """Of far fewer causes than there are inputs, as activations have them; some much larger than others."""
    causes = noise(5, 2000, max(1, num_inputs // 4)) @ noise(6, max(1, num_inputs // 4), num_inputs)
    return (causes + noise(7, 2000, num_inputs)) * noise(8, num_inputs).exp()


def as_numbers(found: RoundedGroups, group: int) -> Tensor:
    width = found.values.shape[1]
    scales = found.scales.float().repeat_interleave(group, 1)[:, :width]
    zeros = 8.0 if found.zeros is None else found.zeros.float().repeat_interleave(group, 1)[:, :width]
    return (found.values.float() - zeros) * scales


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("width", [600, 100, 5])
def test_products_are_nearer_than_with_rounding_to_nearest(group: int, zero_points: bool, width: int) -> None:
    weight, inputs = noise(1, 40, width), inputs_that_go_together(width)
    errors = []
    for known in (None, InputStatistics.of(inputs)):
        rounded = as_numbers(round_int4(weight, group, zero_points=zero_points, inputs=known), group)
        errors.append(float((inputs @ (rounded - weight).T).square().mean()))
    assert errors[1] < errors[0] * 0.7


def test_each_value_is_the_best_reply_to_the_errors_before_it() -> None:
    num_inputs = 24
    weight, inputs = noise(2, 6, num_inputs), inputs_that_go_together(num_inputs)
    known = InputStatistics.of(inputs)
    scales, zeros = torch.full_like(weight, 0.3), torch.full_like(weight, 8.0)
    found = round_with_feedback(weight, scales, zeros, known)
    moments = (inputs.T @ inputs).double() / len(inputs)
    moments += torch.eye(num_inputs) * moments.diagonal().mean() * 0.01
    order = moments.diagonal().argsort(descending=True)
    moments, sorted_weight = moments[order][:, order], weight[:, order].double()
    for row in range(len(weight)):
        errors: list[float] = []
        for place in range(num_inputs):
            # Were all numbers from here on free, these errors of theirs would leave least in all.
            so_far = torch.tensor(errors, dtype=torch.float64)
            free = torch.linalg.solve(moments[place:, place:], -moments[place:, :place] @ so_far)
            wanted = float(sorted_weight[row, place] - free[0])
            value = min(max(round(wanted / float(scales[0, 0])), -8), 7)
            assert int(found[row, order[place]]) == value + 8
            errors.append(float(sorted_weight[row, place]) - value * float(scales[0, 0]))


@pytest.mark.parametrize("inputs", [torch.eye(70), torch.zeros(3, 70)], ids=["apart from each other", "always 0"])
def test_inputs_without_information_change_nothing(inputs: Tensor) -> None:
    weight = noise(3, 10, 70)
    nearest = round_int4(weight, 32, zero_points=False)
    found = round_int4(weight, 32, zero_points=False, inputs=InputStatistics.of(inputs))
    assert torch.equal(found.values, nearest.values) and torch.equal(found.scales, nearest.scales)


def test_a_row_that_is_no_number_leaves_the_others_alone() -> None:
    weight, known = noise(4, 8, 100), InputStatistics.of(inputs_that_go_together(100))
    broken = weight.clone()
    broken[3, 7] = torch.nan
    found, whole = (round_int4(one, 64, zero_points=False, inputs=known) for one in (broken, weight))
    others = [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(found.values[others], whole.values[others])
    assert torch.equal(found.scales[others], whole.scales[others])
