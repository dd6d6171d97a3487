"""Rows rounded on the way from one product to the next: the bits of rounding them in between."""

import pytest
import torch
from torch import Tensor

from archerfish.ops.triton.elementwise.quantized_rows import QuantizedRows
from archerfish.ops.triton.gemm.quantized_gemm import (
    activation_format,
    gated_linear_quantized,
    quantize_for,
    quantized_gated,
    quantized_linear,
)
from tests.ops.triton.gemm.matrices import FORMATS, assert_same_bits, every_format, make_matrix, make_rows

pytestmark = [
    pytest.mark.each_choice,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # The interpreter's numpy, of 1 / 0 and the like.
]


@pytest.mark.parametrize("name", ["w8a8", "fp8"])
def test_zeros_give_zeros_and_broken_numbers_none(name: str, device: str) -> None:
    weight = make_matrix(name, 24, 160, device).weight
    x = make_rows(3, 160, device, torch.float16)
    x[0], x[1, 3], x[2, 5] = 0.0, float("nan"), float("-inf")
    assert not quantized_linear(x[:1], weight, None).any()
    assert quantized_linear(x[1:2], weight, None).isnan().all()
    assert quantized_linear(x[2:], weight, None).isnan().all()


@pytest.mark.parametrize("num_rows", [1, 5, 17])
@every_format
def test_gated_products_leave_rows_as_the_next_product_wants_them(name: str, num_rows: int, device: str) -> None:
    weight = make_matrix(name, 2 * 160, 128, device).weight
    following = make_matrix("int4 g32" if name.startswith("int") else name, 40, 160, device).weight
    x = make_rows(num_rows, 128, device, torch.bfloat16)
    plain = quantized_gated(x, weight, None, "silu")
    made = gated_linear_quantized(x, weight, None, "silu", activation_format(following))
    wanted = quantized_linear(plain, following, None)
    assert_same_bits(quantized_linear(made, following, None), wanted)
    if num_rows == 17 or not name.startswith("int"):
        assert isinstance(made, Tensor)
    else:
        rounded = quantize_for(plain, following)
        assert isinstance(made, QuantizedRows) and made.sums is not None and rounded.sums is not None
        assert_same_bits(made.data, rounded.data)
        assert_same_bits(made.scales[:, :num_rows].clone(), rounded.scales[:, :num_rows].clone())
        assert_same_bits(made.sums[:, :num_rows].clone(), rounded.sums[:, :num_rows].clone())


def test_products_are_stored_in_a_wider_type_as_they_are(device: str) -> None:
    for name in FORMATS:
        weight = make_matrix(name, 24, 128, device).weight
        x = make_rows(2, 128, device, torch.bfloat16)
        found = quantized_linear(x, weight, None, torch.float32)
        assert_same_bits(found, quantized_linear(x, weight, None).float())
