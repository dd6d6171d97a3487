"""Rows rounded on the way from one product to the next: the bits of rounding them in between."""

import pytest
import torch
from torch import Tensor

from archerfish.ops.triton.quantized import (
    prepared,
    quantize_for,
    quantized_gated,
    quantized_gated_into,
    quantized_linear,
    quantized_linear_into,
    rounded_gated,
    rounding_of,
)
from archerfish.ops.triton.quantized_rows import PeakedRow, QuantizedRows
from tests.ops.triton.matrices import FORMATS, assert_same_bits, make_matrix, make_rows

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # The interpreter's numpy, of 1 / 0 and the like.


@pytest.mark.parametrize("name", ["w8a8", "fp8"])
@pytest.mark.parametrize("num_inputs", [96, 384, 5120])
def test_a_row_rounded_by_the_product_gives_the_bits_of_a_rounded_one(name: str, num_inputs: int, device: str) -> None:
    weight = make_matrix(name, 70, num_inputs, device).weight
    x, bias = make_rows(1, num_inputs, device, torch.bfloat16), make_rows(1, 70, device, torch.bfloat16)[0]
    residual = make_rows(1, 70, device, torch.bfloat16)
    row = prepared(x, weight)
    assert isinstance(row, PeakedRow)
    found, wanted = torch.empty_like(residual), torch.empty_like(residual)
    quantized_linear_into(found, row, weight, bias, residual)
    quantized_linear_into(wanted, quantize_for(x, weight), weight, bias, residual)
    assert_same_bits(found, wanted)
    found, wanted = found[:, :35].contiguous(), wanted[:, :35].contiguous()
    quantized_gated_into(found, row, weight, bias, "silu")
    quantized_gated_into(wanted, quantize_for(x, weight), weight, bias, "silu")
    assert_same_bits(found, wanted)


@pytest.mark.parametrize("name", ["w8a8", "fp8"])
def test_zeros_and_broken_numbers_are_rounded_by_the_product_as_before_it(name: str, device: str) -> None:
    weight = make_matrix(name, 24, 160, device).weight
    x = make_rows(3, 160, device, torch.float16)
    x[0], x[1, 3], x[2, 5] = 0.0, float("nan"), float("-inf")
    assert not quantized_linear(x[:1], weight, None).any()
    assert quantized_linear(x[1:2], weight, None).isnan().all()
    assert quantized_linear(x[2:], weight, None).isnan().all()


@pytest.mark.parametrize("num_rows", [1, 5, 17])
@pytest.mark.parametrize("name", FORMATS)
def test_gated_products_leave_rows_as_the_next_product_wants_them(name: str, num_rows: int, device: str) -> None:
    weight = make_matrix(name, 2 * 160, 128, device).weight
    following = make_matrix("int4 g32" if name.startswith("int") else name, 40, 160, device).weight
    x = make_rows(num_rows, 128, device, torch.bfloat16)
    plain = quantized_gated(x, weight, None, "silu")
    made = rounded_gated(x, weight, None, "silu", rounding_of(following))
    wanted = quantized_linear(plain, following, None)
    assert_same_bits(quantized_linear(made, following, None), wanted)
    if num_rows == 17:
        assert isinstance(made, Tensor)
    elif name.startswith("int"):
        rounded = quantize_for(plain, following)
        assert isinstance(made, QuantizedRows) and made.sums is not None and rounded.sums is not None
        assert_same_bits(made.data, rounded.data)
        assert_same_bits(made.scales[:, :num_rows].clone(), rounded.scales[:, :num_rows].clone())
        assert_same_bits(made.sums[:, :num_rows].clone(), rounded.sums[:, :num_rows].clone())
    elif num_rows == 1:
        assert isinstance(made, PeakedRow)
        assert torch.equal(made.peaked.amax(-1), plain.float().abs().amax(-1))


def test_products_are_stored_in_a_wider_type_as_they_are(device: str) -> None:
    for name in FORMATS:
        weight = make_matrix(name, 24, 128, device).weight
        x = make_rows(2, 128, device, torch.bfloat16)
        found = quantized_linear(x, weight, None, torch.float32)
        assert_same_bits(found, quantized_linear(x, weight, None).float())
