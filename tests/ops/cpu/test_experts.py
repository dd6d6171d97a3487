"""Routing and experts by native kernels: against the reference in double precision, the same bits in every batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from archerfish.ops.cpu.native import NativeOps
from archerfish.ops.packed import PackedExperts, PackedWeight, pack_experts
from archerfish.ops.reference import layers as reference
from archerfish.ops.signatures import Routed
from tests.lanes import examples
from tests.ops.cpu.native import KERNELS, every_kernel, native, needs_native
from tests.ops.cpu.test_linear import FORMATS, as_packed, as_read, noise, packed

pytestmark = needs_native

every_format = pytest.mark.parametrize("kind", FORMATS)


class Layer:
    """Experts in some format, and tokens that have chosen among them."""

    def __init__(
        self, kind: str, *, num_tokens: int, num_experts: int, num_chosen: int, hidden: int = 48, size: int = 40
    ) -> None:
        self.x = noise(0, num_tokens, hidden)
        self.up = pack_experts(noise(1, num_experts, 2 * size, hidden, spread=0.2), lambda one: packed(kind, one))
        self.down = pack_experts(noise(2, num_experts, hidden, size, spread=0.2), lambda one: packed(kind, one))
        self.logits = noise(3, num_tokens, num_experts)
        self.num_chosen = num_chosen

    def routed(self, ops: NativeOps) -> Routed:
        return ops.route(self.logits, self.num_chosen, True)

    def run(self, ops: NativeOps, rows: slice = slice(None)) -> Tensor:
        chosen, weights = self.routed(ops)
        return ops.experts(self.x[rows], self.up, self.down, chosen[rows], weights[rows], "silu")


def expert(experts: PackedExperts, number: int) -> PackedWeight:
    """One of them, as a matrix of its own."""
    scales = None if experts.scales is None else experts.scales[number]
    shape = {name: getattr(experts.first, name) for name in ("format", "group", "num_outputs", "num_inputs")}
    padded = experts.first.padded_inputs
    return PackedWeight(**shape, padded_inputs=padded, data=experts.data[number], scales=scales)


def exact(layer: Layer, routed: Routed, kernels: str) -> Tensor:
    """Rounded where kernels round, and otherwise in double precision."""
    out = torch.zeros(layer.x.shape, dtype=torch.float64)
    for token, (chosen, weights) in enumerate(zip(*(part.tolist() for part in routed), strict=True)):
        for number, weight in zip(chosen, weights, strict=True):
            up, down = expert(layer.up, number), expert(layer.down, number)
            inner = as_packed(layer.x[token : token + 1], up) @ as_read(up, kernels).double().T
            inner = reference.activate(inner, "silu", gated=True)
            out[token] += weight * (as_packed(inner.float(), down) @ as_read(down, kernels).double().T)[0]
    return out


# -- routing ----------------------------------------------------------------------------------------------------------


@every_kernel
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("num_experts", "num_chosen"), [(1, 1), (4, 2), (16, 16), (17, 3), (128, 8)])
def test_the_likeliest_are_chosen(kernels: str, num_experts: int, num_chosen: int, normalize: bool) -> None:
    logits = noise(0, 50, num_experts, spread=4.0)
    found = native(kernels).route(logits, num_chosen, normalize)
    wanted = reference.route(logits.double(), num_chosen, normalize)
    assert torch.equal(found.chosen.long(), wanted.chosen)
    torch.testing.assert_close(found.weights, wanted.weights, atol=1e-7, rtol=3e-6)


@every_kernel
def test_of_equals_the_lower_number_is_chosen(kernels: str) -> None:
    logits = torch.tensor([[2.0, 5.0, 2.0, 5.0, 2.0], [0.0] * 5, [-torch.inf, 1.0, -torch.inf, -torch.inf, -torch.inf]])
    wanted = [[1, 3, 0, 2], [0, 1, 2, 3], [1, 0, 2, 3]]
    for ops in (native(kernels).route, reference.route):
        found = ops(logits, 4, False)
        assert found.chosen.tolist() == wanted
        assert found.weights[2].tolist() == [1.0, 0.0, 0.0, 0.0]
        assert torch.equal(found.weights[1], torch.full((4,), 0.2))


@every_kernel
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 3, 18])
def test_a_logit_that_is_no_number_spoils_its_own_row_and_no_other(kernels: str, broken: float, place: int) -> None:
    ops, layer = native(kernels), Layer("int8", num_tokens=5, num_experts=19, num_chosen=3)
    fine, routed = layer.run(ops), layer.routed(ops)
    layer.logits[2, place] = broken
    found, spoilt = layer.run(ops), layer.routed(ops)
    assert spoilt.weights[2].isnan().all() and found[2].isnan().all()
    assert reference.route(layer.logits, 3, True).weights[2].isnan().all()
    assert ((spoilt.chosen >= 0) & (spoilt.chosen < 19)).all()
    for row in (0, 1, 3, 4):
        assert torch.equal(found[row], fine[row])
        assert torch.equal(spoilt.chosen[row], routed.chosen[row])


# -- experts ----------------------------------------------------------------------------------------------------------


@examples(60)
@given(
    st.sampled_from(list(FORMATS)),
    st.integers(0, 20),
    st.integers(1, 9),
    st.data(),
    st.integers(1, 90),
    st.integers(1, 70),
)
def test_any_shape(kind: str, num_tokens: int, num_experts: int, data: st.DataObject, hidden: int, size: int) -> None:
    num_chosen = data.draw(st.integers(1, num_experts))
    shape = {"num_tokens": num_tokens, "num_experts": num_experts, "num_chosen": num_chosen}
    layer, ops = Layer(kind, **shape, hidden=hidden, size=size), native(KERNELS[0])
    found = layer.run(ops)
    assert found.shape == (num_tokens, hidden)
    # Where an activation falls between two steps of its format, either may be right.
    slack = 3e-6 if kind == "float32" else 2e-2
    torch.testing.assert_close(found.double(), exact(layer, layer.routed(ops), KERNELS[0]), atol=slack, rtol=1e-5)


@every_kernel
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_it_is_what_the_reference_computes(kernels: str, activation: str) -> None:
    ops = native(kernels)
    x, up, down = noise(0, 12, 48), noise(1, 6, 80, 48, spread=0.2), noise(2, 6, 48, 40, spread=0.2)
    chosen, weights = ops.route(noise(3, 12, 6), 2, True)
    wide = [one.double() for one in (x, up, down)]
    wanted = reference.experts(*wide, chosen, weights.double(), activation)  # type: ignore[arg-type]
    arguments = ops.adapter("experts")(x, up, down, chosen.long(), weights, activation)
    torch.testing.assert_close(ops.experts(*arguments).double(), wanted, atol=2e-6, rtol=1e-5)


@every_kernel
@every_format
def test_a_row_has_the_same_bits_in_every_batch_and_on_every_number_of_threads(kernels: str, kind: str) -> None:
    layer = Layer(kind, num_tokens=33, num_experts=7, num_chosen=3)
    one = native(kernels, 1)
    alone = torch.cat([layer.run(one, slice(row, row + 1)) for row in range(33)])
    for threads in (1, 2, 3):
        ops = native(kernels, threads)
        assert torch.equal(layer.run(ops), alone)
        for rows in (slice(0, 2), slice(5, 12), slice(32, 33)):
            assert torch.equal(layer.run(ops, rows), alone[rows])


@pytest.mark.skipif(len(KERNELS) < 2, reason="this CPU runs one set of kernels")
@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "bfloat16"])
def test_every_instruction_set_gives_the_same_bits(kind: str) -> None:
    layer = Layer(kind, num_tokens=40, num_experts=19, num_chosen=4)
    first, *others = (native(kernels) for kernels in KERNELS)
    for other in others:
        assert torch.equal(layer.routed(other).weights, layer.routed(first).weights)
        assert torch.equal(layer.run(other), layer.run(first))


@every_kernel
@every_format
def test_more_rows_of_one_expert_than_are_worked_on_at_once(kernels: str, kind: str) -> None:
    layer = Layer(kind, num_tokens=210, num_experts=3, num_chosen=2)
    layer.logits[:, 1] = 9.0  # Everybody's first choice.
    ops = native(kernels)
    found = layer.run(ops)
    assert torch.equal(torch.cat([layer.run(ops, slice(row, row + 1)) for row in range(0, 210, 13)]), found[::13])


@every_kernel
@every_format
def test_an_expert_that_no_token_chose_is_not_read(kernels: str, kind: str) -> None:
    layer = Layer(kind, num_tokens=3, num_experts=30, num_chosen=2)
    ops = native(kernels)
    found = layer.run(ops)
    idle = [number for number in range(30) if number not in layer.routed(ops).chosen]
    for weights in (layer.up, layer.down):
        weights.data[idle] = 0xFF  # NaN in every format that has one.
        if weights.scales is not None:
            weights.scales[idle] = torch.nan
    assert found.isfinite().all() and torch.equal(layer.run(ops), found)
