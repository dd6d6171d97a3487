"""GEMMs of 16-bit rows: correct, with their epilogues, and each row's bits its own."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from archerfish.ops.reference import layers as reference
from archerfish.ops.triton.gemm import linear_ops as products
from archerfish.ops.triton.gemm.float_gemm import FloatEpilogue, float_gemm_into
from archerfish.ops.triton.gemm.float_tiles import FloatTiles, default_tiles, num_k_splits
from archerfish.ops.triton.runtime.kernel_launch import INTERPRETED
from tests.lanes import examples

pytestmark = pytest.mark.each_choice

DTYPES = [torch.float16, torch.bfloat16]
WIDE = 4096
"""Outputs from which K is walked in one part."""


def numbers(*shape: int, dtype: torch.dtype, device: str, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)


def matrix(num_outputs: int, num_inputs: int, dtype: torch.dtype, device: str) -> Tensor:
    return (numbers(num_outputs, num_inputs, dtype=torch.float32, device=device) * num_inputs**-0.5).to(dtype)


def close(made: Tensor, expected: Tensor) -> None:
    """To the rounding of the format, and of sums in another order."""
    tolerance = 2.0 ** (-7 if made.dtype == torch.bfloat16 else -10)
    torch.testing.assert_close(made.double(), expected.double(), rtol=tolerance, atol=tolerance)


def by_kernel(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, tiles: FloatTiles | None = None, **finish: object
) -> Tensor:
    gated = finish.get("activation") is not None
    out = torch.full((len(x), len(weight) // (2 if gated else 1)), torch.nan, dtype=x.dtype, device=x.device)
    float_gemm_into(out, x, weight, bias, FloatEpilogue(**finish), tiles)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 3, 9, 20, 70])
@pytest.mark.parametrize("shape", [(48, 64), (40, 80), (100, 128), (WIDE, 48), (WIDE + 8, 16)])
def test_it_multiplies(dtype: torch.dtype, num_rows: int, shape: tuple[int, int], device: str) -> None:
    x, weight = numbers(num_rows, shape[1], dtype=dtype, device=device), matrix(*shape, dtype, device)
    close(by_kernel(x, weight), x.double() @ weight.double().t())


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_finishes_as_the_operations_after_it_would(dtype: torch.dtype, device: str) -> None:
    x, weight = numbers(5, 64, dtype=dtype, device=device), matrix(96, 64, dtype, device)
    bias, residual = numbers(96, dtype=dtype, device=device), numbers(5, 96, dtype=dtype, device=device)
    plain = by_kernel(x, weight, bias)
    close(plain, x.double() @ weight.double().t() + bias.double())
    for factor in (1.0, 0.25):
        added = by_kernel(x, weight, bias, residual=residual, factor=factor)
        assert torch.equal(added, reference.add(residual, plain, factor))
    for activation in ("silu", "gelu", "gelu_tanh", "relu"):
        gated = by_kernel(x, weight, bias, activation=activation)
        close(gated, reference.activate(plain, activation, True))


def test_rows_may_be_part_of_wider_ones(device: str) -> None:
    wide, weight = numbers(6, 200, dtype=torch.float16, device=device), matrix(32, 64, torch.float16, device)
    x = wide[:, 40:104]
    assert torch.equal(by_kernel(x, weight), by_kernel(x.contiguous(), weight))


@pytest.mark.parametrize("shape", [(48, 128), (WIDE, 64)])
def test_a_row_has_its_bits_whatever_comes_with_it_and_however_the_work_is_cut(
    shape: tuple[int, int], device: str
) -> None:
    dtype = torch.bfloat16
    weight, x = matrix(*shape, dtype, device), numbers(70, shape[1], dtype=dtype, device=device)
    tiles = default_tiles(16, *shape)  # The interpreter's sums depend on tiles; those of tensor cores do not.
    alone = torch.cat([by_kernel(row[None], weight, tiles=tiles if INTERPRETED else None) for row in x[:4]])
    for num_rows in (4, 17, 33, 70):
        together = by_kernel(x[:num_rows], weight, tiles=tiles if INTERPRETED else None)
        assert torch.equal(together[:4], alone)


@pytest.mark.skipif(INTERPRETED, reason="needs cuBLAS")
@pytest.mark.parametrize("shape", [(1024, 3072), (2048, 2048), (4096, 4096), (6144, 1024), (4096, 14336), (320, 864)])
def test_many_rows_have_the_bits_of_few(shape: tuple[int, int], device: str) -> None:
    products.require_ordered_cublas()
    weight, x = matrix(*shape, torch.bfloat16, device), numbers(2048, shape[1], dtype=torch.bfloat16, device=device)
    few = by_kernel(x[:16], weight)
    for num_rows in (33, 64, 100, 256, 512, 1000, 1100, 2048):
        assert torch.equal(products.linear(x[:num_rows], weight, None)[:16], few), num_rows


def test_only_few_outputs_have_their_inputs_cut_into_parts() -> None:
    assert num_k_splits(1024, 3072) == num_k_splits(WIDE - 1, 64) == 4
    assert num_k_splits(WIDE, 14336) == num_k_splits(128256, 4096) == 1
    assert num_k_splits(100, 40) == 1, "no parts of whole blocks"


@examples(30)
@given(
    num_rows=st.integers(1, 80),
    num_outputs=st.integers(1, 9).map(lambda n: 8 * n),
    num_inputs=st.integers(1, 12).map(lambda n: 16 * n),
)
def test_any_shape(num_rows: int, num_outputs: int, num_inputs: int) -> None:
    device = "cpu" if INTERPRETED else "cuda"
    x, weight = (
        numbers(num_rows, num_inputs, dtype=torch.float16, device=device),
        matrix(num_outputs, num_inputs, torch.float16, device),
    )
    close(by_kernel(x, weight), F.linear(x.float(), weight.float()))
