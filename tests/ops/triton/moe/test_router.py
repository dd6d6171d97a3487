"""Routing by a Triton kernel: the reference's experts and weights, the same bits for a token in every batch."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from archerfish.ops.reference.layers import route as reference_route
from archerfish.ops.signatures import Routed
from archerfish.ops.triton.moe.router import route
from tests.lanes import examples

pytestmark = pytest.mark.each_choice


@pytest.fixture(scope="module")
def device() -> str:
    """Of the module: each example of a property would otherwise want its own."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def random_logits(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2


def agree(found: Routed, logits: Tensor, normalize: bool) -> None:
    wanted = reference_route(logits, found.chosen.shape[1], normalize)
    assert found.chosen.tolist() == wanted.chosen.tolist()
    torch.testing.assert_close(found.weights.cpu(), wanted.weights, atol=2e-6, rtol=2e-6, equal_nan=True)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("experts", "chosen"), [(1, 1), (8, 2), (60, 4), (128, 8), (1000, 10), (1024, 1)])
def test_as_the_reference_routes(experts: int, chosen: int, normalize: bool, device: str) -> None:
    logits = random_logits(experts, 5, experts)
    agree(route(logits.to(device), chosen, normalize), logits, normalize)


@examples(40)
@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, 1.5, -3.0, -math.inf]), min_size=1, max_size=20),
    st.integers(1, 20),
    st.booleans(),
)
def test_of_equals_those_with_lower_numbers(device: str, row: list[float], chosen: int, normalize: bool) -> None:
    logits = torch.tensor([row])
    agree(route(logits.to(device), min(chosen, len(row)), normalize), logits, normalize)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_logits_are_taken_as_wide_ones(dtype: torch.dtype, device: str) -> None:
    logits = random_logits(0, 4, 64).to(dtype)
    agree(route(logits.to(device), 6, True), logits, True)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("normalize", [True, False])
def test_where_a_logit_is_no_number_no_weight_is_one(broken: float, normalize: bool, device: str) -> None:
    logits = random_logits(0, 3, 20)
    logits[1, 13] = broken
    routed = route(logits.to(device), 4, normalize)
    agree(routed, logits, normalize)
    if math.isnan(broken):
        assert routed.weights[1].isnan().all()


@pytest.mark.parametrize("experts", [60, 61, 128])
def test_a_token_has_the_same_bits_in_every_batch_and_wherever_it_lies(experts: int, device: str) -> None:
    logits = random_logits(1, 9, experts).to(device)
    whole = route(logits, 4, True)
    apart = torch.zeros(9, experts + 20, device=device)
    apart[:, :experts] = logits
    for start, some in ((0, logits[:1]), (2, logits[2:9]), (0, apart[:, :experts])):
        routed = route(some, 4, True)
        assert torch.equal(routed.chosen, whole.chosen[start : start + len(some)])
        assert torch.equal(routed.weights, whole.weights[start : start + len(some)])


def test_no_tokens_at_all(device: str) -> None:
    assert route(torch.empty(0, 8, device=device), 2, True).chosen.shape == (0, 2)


def test_more_experts_than_there_is_room_for_are_refused(device: str) -> None:
    with pytest.raises(AssertionError, match="1025 experts"):
        route(torch.zeros(1, 1025, device=device), 2, True)
