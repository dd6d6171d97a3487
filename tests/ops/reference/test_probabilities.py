"""The distribution of the draw: against numpy by hand, against what is drawn, and the same in any batch."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from archerfish.ops.reference.drawing import draw
from archerfish.ops.reference.noise import gumbel
from archerfish.ops.reference.probabilities import probabilities
from tests.lanes import examples
from tests.ops.draws import DRAW_PARAMS, LOGITS, NEVER, random_logits, rows_of
from tests.sampling import naive
from tests.sampling.chance import count, surprise

Params = dict[str, Any]

EVERY_METHOD: list[Params] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.6},
    {"temperature": 1.7, "top_k": 3},
    {"temperature": 1.3, "top_p": 0.8},
    {"min_p": 0.1},
    {"temperature": 1.5, "top_k": 6, "top_p": 0.9, "min_p": 0.03},
    {"temperature": 1.5, "top_k": 5000, "top_p": 0.9, "min_p": 0.03},
]
"""Greedy; narrow where top_k is small, wide elsewhere."""


def by_hand(logits: list[float], params: Params) -> np.ndarray:
    """In float64 numpy, from the definition: thresholds one after the other, then shares of what is left."""
    row = np.array(logits, np.float32)
    if params["temperature"] == 0.0:
        return np.eye(len(row))[row.argmax()]
    scaled = (row / np.float32(params["temperature"])).astype(np.float64)
    filtered = np.array(naive.keep_likeliest(scaled.tolist(), int(params["top_k"]), params["top_p"], params["min_p"]))
    weights = np.exp(filtered - filtered.max())
    return weights / weights.sum()


@st.composite
def batches(choose: st.DrawFn) -> tuple[list[list[float]], list[Params]]:
    vocabulary = choose(st.integers(1, 12))
    row = st.lists(LOGITS, min_size=vocabulary, max_size=vocabulary).filter(lambda x: max(x) > NEVER)
    rows = choose(st.lists(row, min_size=1, max_size=5))
    return rows, choose(st.lists(DRAW_PARAMS, min_size=len(rows), max_size=len(rows)))


@examples(300)
@given(batches())
def test_every_row_has_the_distribution_of_its_parameters(batch: tuple[list[list[float]], list[Params]]):
    rows, params = batch
    try:
        wanted = np.stack([by_hand(row, one) for row, one in zip(rows, params, strict=True)])
    except naive.TooClose:
        assume(False)
    found = probabilities(torch.tensor(rows), rows_of(*params))
    assert found.dtype == torch.float64
    assert np.abs(found.numpy() - wanted).max() < 1e-14


def test_the_likeliest_of_equals_is_the_lowest() -> None:
    found = probabilities(torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]), rows_of(*[{"temperature": 0.0}] * 2))
    assert found.tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]


@pytest.mark.parametrize("params", EVERY_METHOD, ids=str)
def test_draws_are_counted_as_often_as_it_says(params: Params) -> None:
    logits = random_logits(3, 1, 9, spread=1.0)
    wanted = probabilities(logits, rows_of(params))[0]
    rows = rows_of(*(params | {"seed": 11, "position": position} for position in range(20_000)))
    drawn = count(draw(logits.expand(len(rows), -1), rows).tokens.numpy(), 9)
    if wanted.max() == 1.0:
        assert drawn.tolist() == (wanted * len(rows)).tolist()
    else:
        assert surprise(drawn, wanted) < 4.5


@pytest.mark.parametrize("params", EVERY_METHOD, ids=str)
def test_the_draw_is_the_largest_of_its_logarithm_and_the_noise(params: Params) -> None:
    """So it is the analytic law of the draw: noise of this kind makes a draw from just that distribution."""
    logits = random_logits(4, 300, 1111)
    rows = rows_of(*(params | {"seed": row, "position": 7 * row} for row in range(300)))
    noise = gumbel(torch.arange(300), 7 * torch.arange(300), torch.arange(1111))
    scores = probabilities(logits, rows).log() + noise
    chosen = scores.gather(1, draw(logits, rows).tokens[:, None])[:, 0]
    # The draw adds in float32: scores that are closer than that may be rounded to either order.
    assert (chosen >= scores.amax(-1) - 1e-5).all()


@pytest.mark.parametrize("vocabulary", [7, 64, 1000, 3001])
def test_a_row_has_the_same_bits_alone_and_among_any_neighbours(vocabulary: int) -> None:
    logits = random_logits(5, 3 * len(EVERY_METHOD), vocabulary)
    rows = rows_of(*EVERY_METHOD * 3)
    together = probabilities(logits, rows)
    for row in range(len(rows)):
        assert torch.equal(probabilities(logits[row : row + 1], rows[row : row + 1])[0], together[row])
    order = np.random.default_rng(0).permutation(len(rows))
    assert torch.equal(probabilities(logits[order], rows[order]), together[order])


@pytest.mark.parametrize("params", EVERY_METHOD, ids=str)
def test_they_add_up_and_tokens_outside_the_filters_have_none(params: Params) -> None:
    logits = random_logits(6, 20, 2000)
    found = probabilities(logits, rows_of(*[params] * 20))
    assert (found >= 0.0).all() and torch.allclose(found.sum(-1), torch.ones(20, dtype=torch.float64), atol=1e-13)
    assert (found.amax(-1) == found.gather(1, logits.argmax(-1, keepdim=True))[:, 0]).all()
    if "top_k" in params and params["top_k"] < 2000:
        assert ((found > 0.0).sum(-1) <= params["top_k"]).all()


@pytest.mark.parametrize("broken", [math.nan, math.inf, NEVER])
def test_a_row_that_is_not_finite_does_not_disturb_its_neighbours(broken: float) -> None:
    logits = random_logits(7, 3, 20)
    for params in EVERY_METHOD:
        fine = probabilities(logits, rows_of(*[params] * 3))
        spoilt = logits.clone()
        spoilt[1] = broken
        assert torch.equal(probabilities(spoilt, rows_of(*[params] * 3))[[0, 2]], fine[[0, 2]])
