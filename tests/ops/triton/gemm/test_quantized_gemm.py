"""Products with weights of few bits against their formulas in float64, and against themselves: a row has the same bits
alone and among others, in small tiles and in large ones."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from archerfish.ops.reference import layers as reference
from archerfish.ops.triton.device_weight import (
    DeviceWeight,
    why_not_arranged,
)
from archerfish.ops.triton.elementwise.quantized_rows import QuantizedRows, quantize_groups, quantize_rows
from archerfish.ops.triton.gemm import fp8_gemm
from archerfish.ops.triton.gemm import int4_gemm as int4_product
from archerfish.ops.triton.gemm import int8_gemm as int8_product
from archerfish.ops.triton.gemm.quantized_gemm import (
    quantize_for,
    quantized_embed,
    quantized_embed_into,
    quantized_gated,
    quantized_gated_into,
    quantized_input,
    quantized_linear,
    quantized_linear_into,
    tiles_of,
)
from archerfish.ops.triton.gemm.quantized_tiles import QuantizedTiles
from archerfish.ops.triton.runtime.kernel_launch import INTERPRETED
from tests.ops.triton.gemm.matrices import FORMATS, assert_same_bits, every_format, make_matrix, make_rows

pytestmark = [
    pytest.mark.each_choice,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # The interpreter's numpy, of 1 / 0 and the like.
]

NEAR = 2e-6
"""Of the largest output: float32 sums of some hundred numbers."""
UNITS = {torch.float32: 0.0, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
"""In the last place of a number."""


def full_rows(rows: QuantizedRows) -> Tensor:
    """What quantized rows stand for."""
    scales = rows.scales[:, : len(rows.data)].double().t().repeat_interleave(rows.group, 1)
    return rows.data.double() * scales


def assert_near(found: Tensor, expected: Tensor, units: float = 1.0, name: str = "") -> None:
    """Sums within what float32 leaves, then rounded to the type of what was found.

    Of eight-bit floats a tensor core keeps 13 bits of a sum.
    """
    near = 2.0**-11 if name == "fp8" and not INTERPRETED else NEAR
    allowed = expected.abs().max() * near + expected.abs() * UNITS[found.dtype] * units
    assert ((found.double() - expected).abs() <= allowed).all()


# -- rounding rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [32, 64, 128, 384])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_groups_are_rounded_by_their_largest_number(group: int, dtype: torch.dtype, device: str) -> None:
    x = make_rows(3, 384, device, dtype)
    rows = quantize_groups(x, group)
    grouped = x.float().view(3, -1, group)
    peaks = grouped.abs().amax(-1)
    most = torch.full_like(peaks, 127.0)  # To divide by a number, CUDA multiplies, and rounds once more.
    assert torch.equal(rows.scales[:, :3], (peaks / most).t())
    assert torch.equal(rows.data.view(3, -1, group), (grouped * (most / peaks)[..., None]).round().to(torch.int8))
    if group in (32, 64, 128):
        assert rows.sums is not None
        assert torch.equal(rows.sums[:, :3], rows.data.view(3, -1, group).sum(-1, dtype=torch.int32).t())


def test_rows_are_rounded_to_eight_bit_floats(device: str) -> None:
    x = make_rows(3, 160, device, torch.float16)
    rows = quantize_rows(x)
    peaks = x.float().abs().amax(-1)
    most = torch.full_like(peaks, 448.0)
    assert torch.equal(rows.scales[0], peaks / most)
    expected = (x.float() * (most / peaks)[:, None]).to(torch.float8_e4m3fn)
    assert_same_bits(rows.data, expected)


@pytest.mark.parametrize(
    "quantize", [lambda x: quantize_groups(x, 64), lambda x: quantize_groups(x, 128), quantize_rows]
)
def test_zeros_and_broken_numbers(quantize: Callable[[Tensor], QuantizedRows], device: str) -> None:
    x = make_rows(4, 128, device)
    x[0] = 0.0
    x[1, 3], x[2, 5] = float("nan"), float("-inf")
    rows = quantize(x)
    scales = rows.scales[0]
    assert scales[0] == 0 and scales[1].isnan() and scales[2].isnan() and scales[3] > 0
    assert not rows.data[:3, :64].float().any()


def test_rows_may_lie_apart(device: str) -> None:
    wide = make_rows(3, 256, device)
    for quantize in (quantize_rows, lambda x: quantize_groups(x, 32)):
        apart, alone = quantize(wide[:, 64:192]), quantize(wide[:, 64:192].contiguous())
        assert_same_bits(apart.data, alone.data)
        assert torch.equal(apart.scales[:, :3], alone.scales[:, :3])


# -- products ---------------------------------------------------------------------------------------------------------


@every_format
@pytest.mark.parametrize(("num_rows", "num_outputs", "num_inputs"), [(1, 37, 384), (5, 130, 128), (18, 16, 640)])
def test_product(name: str, num_rows: int, num_outputs: int, num_inputs: int, device: str) -> None:
    matrix = make_matrix(name, num_outputs, num_inputs, device)
    x = make_rows(num_rows, num_inputs, device)
    found = quantized_linear(x, matrix.weight, None)
    assert_near(found, full_rows(quantize_for(x, matrix.weight)) @ matrix.full.t(), name=name)
    # An error of half a step in every number, and so of few in a hundred of the sum.
    assert (found - x.double() @ matrix.full.t()).norm() < 0.05 * found.norm()


@pytest.mark.parametrize("name", ["int8", "w8a8", "fp8", "int4 g32", "int4 g32 zeros"])
def test_inputs_that_fill_no_larger_step(name: str, device: str) -> None:
    matrix = make_matrix(name, 20, 96, device)
    x = make_rows(2, 96, device)
    found = quantized_linear(x, matrix.weight, None)
    assert_near(found, full_rows(quantize_for(x, matrix.weight)) @ matrix.full.t(), name=name)


@every_format
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bias_and_type(name: str, dtype: torch.dtype, device: str) -> None:
    matrix = make_matrix(name, 24, 128, device)
    x, bias = make_rows(2, 128, device, dtype), make_rows(1, 24, device, dtype)[0] * 10
    found = quantized_linear(x, matrix.weight, bias)
    assert found.dtype == dtype
    assert_near(found, full_rows(quantize_for(x, matrix.weight)) @ matrix.full.t() + bias.double(), name=name)


@every_format
def test_residual_is_added_to_the_rounded_product(name: str, device: str) -> None:
    matrix = make_matrix(name, 24, 256, device)
    x, residual = make_rows(3, 256, device, torch.bfloat16), make_rows(3, 24, device, torch.bfloat16)
    expected = residual + quantized_linear(x, matrix.weight, None)
    quantized_linear_into(residual, quantize_for(x, matrix.weight), matrix.weight, residual=residual)
    assert_same_bits(residual, expected)


@every_format
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_gated_product_rounds_as_its_parts(name: str, activation: reference.Activation, device: str) -> None:
    matrix = make_matrix(name, 2 * 21, 128, device)
    x, bias = make_rows(3, 128, device, torch.float16), make_rows(1, 42, device, torch.float16)[0]
    product = quantized_linear(x, matrix.weight, bias)
    expected = reference.activate(product, activation, gated=True)
    found = quantized_gated(x, matrix.weight, bias, activation)
    # Activations are computed by other operations, and so may round to the neighbouring number.
    torch.testing.assert_close(found, expected, rtol=2.0**-9, atol=1e-6)


@every_format
def test_a_broken_row_breaks_no_other(name: str, device: str) -> None:
    matrix = make_matrix(name, 24, 128, device)
    x = make_rows(3, 128, device)
    expected = quantized_linear(x, matrix.weight, None)
    x[1, 7] = float("inf")
    found = quantized_linear(x, matrix.weight, None)
    assert found[1].isnan().all()
    assert_same_bits(found[[0, 2]], expected[[0, 2]])


def test_no_rows(device: str) -> None:
    for name in FORMATS:
        weight = make_matrix(name, 24, 128, device).weight
        assert quantized_linear(make_rows(0, 128, device), weight, None).shape == (0, 24)


# -- one answer -------------------------------------------------------------------------------------------------------


@every_format
@pytest.mark.parametrize("num_rows", [12, 30, 70])
def test_a_row_is_the_same_alone_and_among_others(name: str, num_rows: int, device: str) -> None:
    weight = make_matrix(name, 48, 256, device).weight
    x = make_rows(num_rows, 256, device, torch.float16)
    rows = quantize_for(x, weight)
    together, gated = x.new_empty(num_rows, 48), x.new_empty(num_rows, 24)
    quantized_linear_into(together, rows, weight)
    quantized_gated_into(gated, rows, weight, None, "silu")
    for row in (0, num_rows - 1):
        alone = slice(row, row + 1)
        assert_same_bits(quantized_linear(x[alone], weight, None), together[alone])
        assert_same_bits(quantized_gated(x[alone], weight, None, "silu"), gated[alone])


LARGE = {
    "int8": (int8_product, "int8_tiles"),
    "w8a8": (int8_product, "int8_tiles"),
    "int4": (int4_product, "int4_tiles"),
    "fp8": (fp8_gemm, "fp8_tiles"),
}


@every_format
def test_tiles_for_many_rows_give_the_same_bits(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = make_matrix(name, 2 * 68, 256, device)
    x = make_rows(9, 256, device, torch.bfloat16)
    linear, gated = quantized_linear(x, matrix.weight, None), quantized_gated(x, matrix.weight, None, "silu")
    module, function = LARGE[name.split()[0]]
    chosen = getattr(module, function)

    def large(weight: DeviceWeight, num_outputs: int, num_rows: int) -> QuantizedTiles:
        tiles: QuantizedTiles = chosen(weight, num_outputs, 1 << 20)
        small: QuantizedTiles = chosen(weight, num_outputs, num_rows)
        assert tiles.rows >= 4 * small.rows and tiles.outputs >= 64
        return tiles

    monkeypatch.setattr(module, function, large)
    assert_same_bits(quantized_linear(x, matrix.weight, None), linear)
    assert_same_bits(quantized_gated(x, matrix.weight, None, "silu"), gated)


@pytest.mark.parametrize("name", ["int8", "w8a8", "int4 g128", "int4 g64 zeros"])
@pytest.mark.parametrize("num_inputs", [1024, 896])
def test_steps_side_by_side_give_the_same_bits(name: str, num_inputs: int, device: str) -> None:
    """As many as there are steps for, and in the order of steps."""
    weight = make_matrix(name, 20, num_inputs, device).weight
    x = make_rows(1, num_inputs, device, torch.bfloat16)
    found, gated = x.new_empty(1, 20), x.new_empty(1, 10)
    chosen = tiles_of(weight, 20, 1)
    assert chosen.sides > 1 or num_inputs == 896
    given = [quantize_for(x, weight), quantized_input(x, weight)]
    wanted, wanted_gated = quantized_linear(x.repeat(17, 1), weight, None)[:1], quantized_gated(x, weight, None, "silu")
    for sides in (1, 2, 4):
        if weight.data.shape[1] // (chosen.step if weight.format != "int4" else 1) % sides:
            continue
        tiles = replace(chosen, sides=sides, warps=sides, at_once=1)
        for rows in given:
            quantized_linear_into(found, rows, weight, tiles=tiles)
            assert_same_bits(found, wanted)
            quantized_gated_into(gated, rows, weight, None, "silu", tiles)
            assert_same_bits(gated, wanted_gated)


def test_many_rows_go_to_the_library_in_pieces(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it gives the same bits is the next test's question, and a GPU's."""
    matrix = make_matrix("fp8", 32, 64, device)
    x, residual = make_rows(37, 64, device, torch.bfloat16), make_rows(37, 32, device, torch.bfloat16)
    rows = quantize_for(x, matrix.weight)
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    parts: list[slice] = []
    by_library = fp8_gemm._by_library
    monkeypatch.setattr(fp8_gemm, "LIBRARY_ROWS", 16)
    monkeypatch.setattr(fp8_gemm, "_takes_library", lambda *_: True)
    monkeypatch.setattr(fp8_gemm, "_by_library", lambda *given: (parts.append(given[-1]), by_library(*given)))
    quantized_linear_into(out, rows, matrix.weight)
    quantized_linear_into(total, rows, matrix.weight, residual=residual)
    assert parts == [slice(0, 16), slice(16, 32)] * 2
    assert_near(out, full_rows(rows) @ matrix.full.t())
    assert_same_bits(total, residual + out)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the library is parts on a GPU only")
def test_rows_by_the_library_have_the_same_bits(device: str) -> None:
    matrix = make_matrix("fp8", 512, 1024, device)
    x = make_rows(fp8_gemm.LIBRARY_ROWS + 40, 1024, device, torch.bfloat16)
    residual = make_rows(len(x), 512, device, torch.bfloat16)
    rows = quantize_for(x, matrix.weight)
    together = torch.empty_like(residual)
    quantized_linear_into(together, rows, matrix.weight, residual=residual)
    for row in (0, 1000, len(x) - 1):
        alone = residual[row : row + 1] + quantized_linear(x[row : row + 1], matrix.weight, None)
        assert_same_bits(together[row : row + 1], alone)


# -- embeddings and arrangement ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["int8", "w8a8", "fp8"])
def test_embedding_from_a_table_of_few_bits(name: str, device: str) -> None:
    matrix = make_matrix(name, 50, 1056, device)
    for dtype in (torch.int32, torch.int64):
        tokens = torch.tensor([49, 0, 7, 7], dtype=dtype, device=device)
        found = quantized_embed(tokens, matrix.weight)
        assert found.dtype == matrix.weight.dtype
        assert_same_bits(found, matrix.full[tokens.long()].float().to(torch.bfloat16))
    scaled = torch.empty_like(found)
    quantized_embed_into(scaled, tokens, matrix.weight, factor=3.0)
    assert_same_bits(scaled, found * 3.0)


def test_a_vocabulary_of_four_bits_is_refused(device: str) -> None:
    table = make_matrix("int4 g32", 50, 64, device).weight
    with pytest.raises(AssertionError, match="make it int8"):
        quantized_embed(torch.tensor([1], device=device), table)


def test_what_cannot_be_arranged_is_reported() -> None:
    assert why_not_arranged(4096, 128) is None
    assert why_not_arranged(4100, 4100) == "4100 inputs are not a multiple of 32"
    assert why_not_arranged(4128, 64) == "4128 inputs are not a multiple of the group of 64"
    assert "more than 131072" in str(why_not_arranged(1 << 18, 64))
    with pytest.raises(AssertionError, match="not a multiple of the group of 64"):
        make_matrix("int4 g64", 16, 96, "cpu")


def test_rows_of_another_group_are_refused(device: str) -> None:
    weight = make_matrix("int4 g32", 16, 128, device).weight
    out = torch.empty(1, 16, device=device)
    with pytest.raises(AssertionError, match="groups of 64 for 128 in groups of 32"):
        quantized_linear_into(out, quantize_groups(make_rows(1, 128, device), 64), weight)


def test_four_bits_take_half_a_byte() -> None:
    weight = make_matrix("int4 g64", 64, 256, "cpu").weight
    assert weight.nbytes == 64 * 128 + 64 * 4 * 2
    assert weight.shape == (64, 256)
