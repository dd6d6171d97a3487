"""Matrices of few bits and rows for them, and how results are compared."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from archerfish.ops.triton.device_weight import DeviceWeight, arrange_fp8, arrange_int4, arrange_int8
from tests.lanes import full

FORMATS = ["int8", "w8a8", "fp8", "int4 g32", "int4 g64", "int4 g128", "int4 g32 zeros", "int4 g64 zeros"]

every_format = pytest.mark.parametrize(
    "name", ["int8", "w8a8", "fp8", "int4 g128", "int4 g32 zeros", *full("int4 g32", "int4 g64", "int4 g64 zeros")]
)


@dataclass(frozen=True)
class Matrix:
    weight: DeviceWeight
    full: Tensor
    """The same in float64."""


def make_matrix(name: str, num_outputs: int, num_inputs: int, device: str) -> Matrix:
    """With random bits, and scales as trained weights would have them."""
    generator = torch.Generator().manual_seed(num_outputs * num_inputs)
    random = {"generator": generator}
    shape = (num_outputs, num_inputs)
    scales = torch.rand(num_outputs, **random) * 0.01 + 0.001
    kind, *rest = name.split()
    if kind == "fp8":
        values = (torch.randn(shape, **random) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
        weight, full = arrange_fp8(values, scales, torch.bfloat16), values.double() * scales[:, None]
    elif kind != "int4":
        values = torch.randint(-127, 128, shape, dtype=torch.int8, **random)
        weight = arrange_int8(values, scales, "int8" if kind == "int8" else "w8a8", torch.bfloat16)
        full = values.double() * scales[:, None]
    else:
        group = int(rest[0][1:])
        per_group = (num_outputs, num_inputs // group)
        values = torch.randint(0, 16, shape, dtype=torch.uint8, **random)
        group_scales = ((torch.rand(per_group, **random) - 0.3) * 0.1).half()
        zeros = torch.randint(0, 16, per_group, dtype=torch.uint8, **random) if "zeros" in rest else None
        weight = arrange_int4(values, group_scales, zeros, group, torch.bfloat16)
        shift = torch.tensor(8.0) if zeros is None else zeros.repeat_interleave(group, 1)
        full = (values.double() - shift) * group_scales.double().repeat_interleave(group, 1)
    return Matrix(weight.moved(device), full.to(device))


def make_rows(num_rows: int, num_inputs: int, device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    return torch.randn(num_rows, num_inputs, generator=generator).to(device, dtype)


def assert_same_bits(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
