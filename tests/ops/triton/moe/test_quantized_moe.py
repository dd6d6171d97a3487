"""Experts of few bits: each pair has the bits of a product of its row alone with its expert's matrix."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from archerfish.ops.reference import layers as reference
from archerfish.ops.signatures import Routed
from archerfish.ops.triton.device_weight import DeviceExperts
from archerfish.ops.triton.gemm.quantized_gemm import quantized_gated, quantized_linear
from archerfish.ops.triton.moe.fused_moe import experts
from archerfish.ops.triton.moe.quantized_moe import tiles_for
from archerfish.ops.triton.runtime.kernel_launch import INTERPRETED
from tests.lanes import full
from tests.ops.triton.gemm.matrices import make_matrix, make_rows

pytestmark = [
    pytest.mark.each_choice,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # The interpreter's numpy, of 1 / 0 and the like.
]

FORMATS = ["int8", "w8a8", "fp8", "int4 g32", "int4 g64 zeros"]
every_format = pytest.mark.parametrize("name", ["w8a8", "fp8", "int4 g64 zeros", *full("int8", "int4 g32")])
HIDDEN, SIZE = (64, 64) if INTERPRETED else (1024, 704)
DTYPE = torch.float16


@dataclass(frozen=True)
class Layer:
    """Experts, and tokens that have chosen among them."""

    x: Tensor
    gate_up: DeviceExperts
    down: DeviceExperts
    routed: Routed

    def run(self, rows: slice = slice(None)) -> Tensor:
        chosen, weights = self.routed
        return experts(self.x[rows], self.gate_up, self.down, chosen[rows], weights[rows], "silu")

    def one_by_one(self, tokens: list[int]) -> Tensor:
        """Each of some tokens through each of its experts by itself."""
        found = torch.zeros(len(tokens), HIDDEN, dtype=torch.float64, device=self.x.device)
        for row, token in enumerate(tokens):
            for expert, weight in zip(self.routed.chosen[token].tolist(), self.routed.weights[token], strict=True):
                inner = quantized_gated(self.x[token, None], self.gate_up.expert(expert), None, "silu")
                found[row] += weight.double() * quantized_linear(inner, self.down.expert(expert), None)[0].double()
        return found.to(DTYPE)


def stacked(name: str, among: int, num_outputs: int, num_inputs: int, device: str) -> DeviceExperts:
    matrix = make_matrix(name, among * num_outputs, num_inputs, device)
    return DeviceExperts(num_experts=among, stacked=replace(matrix.weight, dtype=DTYPE))


def layer(name: str, device: str, *, tokens: int, among: int = 3, places: int = 2) -> Layer:
    scores = torch.randn(tokens, among, generator=torch.Generator().manual_seed(3))
    chosen, weights = reference.route(scores, places, True)
    return Layer(
        make_rows(tokens, HIDDEN, device, DTYPE),
        stacked(name, among, 2 * SIZE, HIDDEN, device),
        stacked(name, among, HIDDEN, SIZE, device),
        Routed(chosen.to(device), weights.to(device)),
    )


def assert_same(found: Tensor, wanted: Tensor, name: str) -> None:
    if INTERPRETED and name == "fp8":
        # There a library adds up, in an order of its own for every shape.
        torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3 * float(wanted.abs().max()))
    else:
        assert torch.equal(found.view(torch.int16), wanted.view(torch.int16))


@every_format
@pytest.mark.parametrize("tokens", [1, 12, 25])
def test_a_pair_has_the_bits_of_a_product_alone(name: str, tokens: int, device: str) -> None:
    one = layer(name, device, tokens=tokens, places=1)
    found, some = one.run(), [0, tokens // 2, tokens - 1]
    assert found.isfinite().all() and found.float().std() > 0
    assert_same(found[some], one.one_by_one(some), name)


@every_format
def test_pairs_of_a_token_are_added_by_their_weights(name: str, device: str) -> None:
    one = layer(name, device, tokens=3)
    wanted = one.one_by_one([0, 1, 2])
    unit = 2 * torch.finfo(DTYPE).eps * float(wanted.abs().max())
    torch.testing.assert_close(one.run(), wanted, rtol=0, atol=unit)


@every_format
def test_a_row_has_the_same_bits_in_every_batch(name: str, device: str) -> None:
    sizes = (9, 13) if INTERPRETED else (2, 10, 40, 400)
    one = layer(name, device, tokens=max(sizes))
    alone = torch.cat([one.run(slice(row, row + 1)) for row in range(2)])
    for tokens in sizes:
        assert_same(one.run(slice(0, tokens))[:2], alone, name)
    assert_same(one.run(slice(1, 4))[:1], alone[1:], name)


@every_format
def test_both_products_are_cut_alike_whatever_the_number_of_tokens(name: str) -> None:
    gate_up, down = stacked(name, 8, 2 * SIZE, HIDDEN, "cpu"), stacked(name, 8, HIDDEN, SIZE, "cpu")
    sizes = [tiles_for(gate_up, down, tokens, 2).num_rows for tokens in (1, 8, 30, 100, 4000)]
    assert sizes == sorted(sizes) and sizes[0] <= 16 and sizes[2:4] == [16, 64] and sizes[4] >= 64


@pytest.mark.parametrize(("name", "tokens"), [("int8", 13), *((name, 4) for name in FORMATS)])
def test_a_token_that_is_no_number_spoils_its_own_row_and_no_other(name: str, tokens: int, device: str) -> None:
    one = layer(name, device, tokens=tokens)
    fine = one.run()
    one.x[2] = torch.nan
    found = one.run()
    assert found[2].isnan().all()
    others = [row for row in range(tokens) if row != 2]
    assert torch.equal(found[others], fine[others])


def test_no_tokens_give_no_rows(device: str) -> None:
    assert layer("int8", device, tokens=0).run().shape == (0, HIDDEN)


def test_tiles_of_outputs_belong_to_one_expert() -> None:
    with pytest.raises(AssertionError, match="24 outputs are not a multiple of 16"):
        stacked("int8", 2, 24, 64, "cpu")
