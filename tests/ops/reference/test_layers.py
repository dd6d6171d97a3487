"""Everything of a layer but attention, against numpy in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archerfish.ops.reference.layers import activate, embed, experts, layer_norm, linear, rms_norm, rotate, route
from tests.lanes import examples

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUNDING = {torch.float32: 3e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}


def random(seed, *size, dtype=torch.float32, spread=1.0):
    return (torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


def wide(tensor):
    return tensor.double().numpy()


def assert_rounds_to(found, wanted, dtype, slack=1.0):
    assert found.dtype == dtype
    assert np.allclose(wide(found), wanted, rtol=slack * ROUNDING[dtype], atol=slack * ROUNDING[dtype] / 8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 100.0])
def test_rms_norm(dtype, offset, spread):
    x, weight = random(0, 7, 64, dtype=dtype, spread=spread), random(1, 64, dtype=dtype)
    wanted = wide(x) / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + 1e-5) * (wide(weight) + offset)
    assert_rounds_to(rms_norm(x, weight, 1e-5, offset), wanted, dtype)


def test_rms_norm_of_heads_reduces_over_the_last_dimension_only():
    x, weight = random(0, 5, 3, 16), random(1, 16)
    whole = rms_norm(x, weight, 1e-6, 0.0)
    for head in range(3):
        torch.testing.assert_close(
            whole[:, head], rms_norm(x[:, head].clone(), weight, 1e-6, 0.0), rtol=1e-6, atol=1e-7
        )


def test_rms_norm_squares_in_float32():
    """300 squared is past the end of float16."""
    x = torch.full((1, 8), 300.0, dtype=torch.float16)
    assert_rounds_to(rms_norm(x, torch.ones(8, dtype=torch.float16), 1e-6, 0.0), np.ones((1, 8)), torch.float16)


def test_rms_norm_adds_the_offset_before_rounding():
    """The weight is a bfloat16, but one more than it is not."""
    weight = torch.full((2,), 2.0**-9, dtype=torch.bfloat16)
    found = rms_norm(torch.tensor([[1.0, -1.0]]), weight, 0.0, 1.0)
    assert found[0, 0] == pytest.approx(1 + 2.0**-9, abs=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mean", [0.0, 5.0])
def test_layer_norm(dtype, mean):
    x, weight, bias = random(0, 7, 64, dtype=dtype) + mean, random(1, 64, dtype=dtype), random(2, 64, dtype=dtype)
    centred = wide(x) - wide(x).mean(-1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * wide(weight) + wide(bias)
    assert_rounds_to(layer_norm(x, weight, bias, 1e-5), wanted, dtype, slack=2.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turning", [16, 8, 2])
def test_rotation_turns_pairs_as_complex_numbers_and_leaves_the_rest(dtype, turning):
    tokens, heads, dim = 6, 3, 16
    x = random(0, tokens, heads, dim, dtype=dtype)
    angles = random(1, tokens, turning // 2, spread=3.0)
    found = rotate(x, torch.cat((angles.cos(), angles.sin()), -1))
    half = turning // 2
    pairs = wide(x)[..., :half] + 1j * wide(x)[..., half:turning]
    rotated = pairs * np.exp(1j * wide(angles))[:, None, :]
    wanted = np.concatenate((rotated.real, rotated.imag, wide(x)[..., turning:]), -1)
    assert found.shape == x.shape
    assert_rounds_to(found, wanted, dtype)
    assert torch.equal(found[..., turning:], x[..., turning:])


def test_rotated_scores_depend_on_distance_only():
    frequencies = 10_000.0 ** (-torch.arange(8) / 8)
    q, k = random(0, 1, 1, 16), random(1, 1, 1, 16)

    def rotated(x, position):
        return rotate(x, torch.cat(((position * frequencies).cos(), (position * frequencies).sin()))[None])

    scores = [float((rotated(q, start + 5) * rotated(k, start)).sum()) for start in (0, 1, 37, 400)]
    assert scores == pytest.approx([scores[0]] * 4, abs=1e-3)


def test_rotation_applies_a_magnitude_that_is_part_of_the_angles():
    x = random(0, 2, 1, 8)
    cos, sin = torch.full((2, 4), 2.0), torch.zeros(2, 4)
    assert torch.equal(rotate(x, torch.cat((cos, sin), -1)), 2 * x)


NONLINEAR = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
}


@pytest.mark.parametrize("activation", NONLINEAR)
@pytest.mark.parametrize("dtype", DTYPES)
def test_activation_of_a_gated_layer_takes_the_gate_first(activation, dtype):
    x = random(0, 5, 12, dtype=dtype, spread=2.0)
    wanted = NONLINEAR[activation](wide(x)[:, :6]) * wide(x)[:, 6:]
    assert_rounds_to(activate(x, activation, True), wanted, dtype, slack=3.0)


@pytest.mark.parametrize("activation", NONLINEAR)
def test_activation_of_a_plain_layer_preserves_its_width(activation):
    x = random(0, 5, 12, spread=2.0)
    assert_rounds_to(activate(x, activation, False), NONLINEAR[activation](wide(x)), torch.float32, slack=3.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(dtype, with_bias):
    x, weight = random(0, 5, 24, dtype=dtype), random(1, 9, 24, dtype=dtype)
    bias = random(2, 9, dtype=dtype) if with_bias else None
    wanted = wide(x) @ wide(weight).T + (wide(bias) if bias is not None else 0.0)
    assert_rounds_to(linear(x, weight, bias), wanted, dtype, slack=8.0)


def test_embedding_picks_rows():
    table = random(0, 11, 4)
    assert torch.equal(embed(torch.tensor([3, 10, 0, 3]), table), table[[3, 10, 0, 3]])


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_routing_takes_the_likeliest_and_of_equals_the_first(dtype, normalize):
    logits = torch.randint(-4, 5, (40, 12), generator=torch.Generator().manual_seed(0)).to(dtype)  # Many are equal.
    found = route(logits, 5, normalize)
    powers = np.exp(wide(logits))
    for row, shares in enumerate(powers / powers.sum(-1, keepdims=True)):
        order = sorted(range(12), key=lambda expert: (-shares[expert], expert))[:5]
        total = shares[order].sum() if normalize else 1.0
        assert found.chosen[row].tolist() == order
        assert np.allclose(found.weights[row], shares[order] / total, rtol=1e-5)
    assert found.weights.dtype == torch.float32


def naive_experts(x, gate_up, down, chosen, weights, activation):
    out = np.zeros(x.shape)
    for token in range(len(x)):
        for expert, weight in zip(chosen[token], weights[token], strict=True):
            inner = gate_up[expert] @ x[token]
            size = len(inner) // 2
            out[token] += weight * (down[expert] @ (NONLINEAR[activation](inner[:size]) * inner[size:]))
    return out


@examples(40)
@given(
    st.integers(1, 9),
    st.integers(1, 6),
    st.data(),
    st.sampled_from(sorted(NONLINEAR)),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_experts_sum_what_each_chosen_one_makes_of_a_token(num_tokens, num_experts, data, activation, dtype):
    hidden, size = 10, 6
    per_token = data.draw(st.integers(1, num_experts))
    order = st.permutations(range(num_experts)).map(lambda order: order[:per_token])
    chosen = torch.tensor(data.draw(st.lists(order, min_size=num_tokens, max_size=num_tokens)))
    x, weights = random(0, num_tokens, hidden, dtype=dtype), random(1, num_tokens, per_token).abs()
    gate_up = random(2, num_experts, 2 * size, hidden, dtype=dtype, spread=0.3)
    down = random(3, num_experts, hidden, size, dtype=dtype, spread=0.3)
    found = experts(x, gate_up, down, chosen, weights, activation)
    wanted = naive_experts(wide(x), wide(gate_up), wide(down), chosen.tolist(), weights.tolist(), activation)
    assert found.dtype == dtype
    assert np.allclose(wide(found), wanted, rtol=0.05 if dtype == torch.bfloat16 else 1e-4, atol=20 * ROUNDING[dtype])


def test_experts_that_no_token_chose_are_not_run():
    """Their weights may be anything: a NaN there must not reach the tokens."""
    gate_up, down = random(0, 3, 8, 5), random(1, 3, 5, 4)
    gate_up[1] = torch.nan
    down[1] = torch.nan
    out = experts(random(2, 4, 5), gate_up, down, torch.tensor([[0], [2], [2], [0]]), torch.ones(4, 1), "silu")
    assert torch.isfinite(out).all()
