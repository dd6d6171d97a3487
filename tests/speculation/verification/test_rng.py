"""Seeded decisions: the same for ever, as likely as they should be, and none made from the noise of another."""

import itertools

import numpy as np
import pytest
import torch

from archerfish.ops.reference.noise import gumbel, uniform
from archerfish.speculation.draft import MAX_NODES
from archerfish.speculation.verification import rng
from archerfish.speculation.verification.rng import SeededVerificationRng
from tests.ops.draws import random_logits
from tests.sampling.chance import count, distance_from_uniform, largest_correlation, surprise

PICKING, ACCEPTING = rng._SAMPLE_IDS, rng._ACCEPT_IDS
WEIGHTS = torch.tensor([0.5, 0.0, 2.0, 0.25, 1.25], dtype=torch.float64)


def threshold(seed: int, position: int, depth: int, attempt: int) -> float:
    """The probability above which an attempt is accepted, found by asking."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (
            (low, middle) if SeededVerificationRng(seed, position).accept(depth, attempt, middle) else (middle, high)
        )
    return high


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_decision_depends_on_seed_and_position_and_which_it_is_alone(seed: int) -> None:
    for depth, attempt in itertools.product(range(4), range(3)):
        # The same position, reached by another round.
        assert threshold(seed, 100, depth, attempt) == threshold(seed, 100 + depth, 0, attempt)
        assert SeededVerificationRng(seed, 100).sample(depth, WEIGHTS) == SeededVerificationRng(
            seed, 100 + depth
        ).sample(0, WEIGHTS)
    other = [(seed ^ 1, 100, 0, 0), (seed, 101, 0, 0), (seed, 100, 1, 0), (seed, 100, 0, 1)]
    assert threshold(seed, 100, 0, 0) not in {threshold(*one) for one in other}


def test_what_is_certain_happens_and_what_cannot_does_not() -> None:
    for seed in range(500):
        choices = SeededVerificationRng(seed, 3)
        assert choices.accept(0, 0, 1.0) and not choices.accept(0, 0, 0.0)
        assert choices.sample(0, torch.tensor([0.0, 0.0, 1e-300, 0.0], dtype=torch.float64)) == 2


def test_attempts_are_accepted_uniformly_at_any_position() -> None:
    found = np.array([[threshold(9, position, 0, attempt) for attempt in range(4)] for position in range(400)])
    assert distance_from_uniform(found) < 2.0
    assert largest_correlation(found.T) < 4.0


def test_tokens_are_drawn_by_weights_that_need_not_add_up() -> None:
    drawn = [SeededVerificationRng(4, position).sample(0, WEIGHTS) for position in range(2500)]
    assert surprise(count(drawn, 5), WEIGHTS / WEIGHTS.sum()) < 4.5
    assert [SeededVerificationRng(4, position).sample(0, 17 * WEIGHTS) for position in range(200)] == drawn[:200]


@pytest.mark.parametrize("spread", [0.0, 1.0, 15.0])
def test_what_noise_cannot_lift_is_left_out_without_a_difference(spread: float) -> None:
    weights = torch.softmax(random_logits(1, 400, spread=spread).double(), -1)
    weights[::7] = 0.0
    for position in range(100):
        noise = gumbel(torch.tensor([6]), torch.tensor([position]), torch.arange(PICKING, PICKING + 400))[0]
        assert SeededVerificationRng(6, position).sample(0, weights) == int((weights.log() + noise).argmax())


def test_no_decision_uses_the_id_of_another_or_of_any_token() -> None:
    """For one seed and position the hash is a bijection, so different ids are different bits."""
    assert PICKING + PICKING <= ACCEPTING and ACCEPTING + MAX_NODES < 2**32
    ids = [*range(2000), *range(PICKING, PICKING + 2000), *range(ACCEPTING, ACCEPTING + MAX_NODES)]
    assert len({uniform(5, 77, number) for number in ids}) == len(ids)


def test_noise_of_picks_attempts_and_ordinary_draws_is_uncorrelated() -> None:
    """The ids differ in their two top bits alone, which the hash has to spread."""
    positions = np.arange(60)
    streams = [
        [[uniform(3, int(position), start + token) for token in range(300)] for position in positions]
        for start in (0, PICKING, ACCEPTING)
    ]
    assert largest_correlation(np.concatenate(streams)) < 5.8
    together = np.array(streams).reshape(3, -1)
    assert largest_correlation(together) < 4.0 and largest_correlation((together < 0.02).astype(float)) < 4.0


def test_picks_are_not_the_ordinary_draws() -> None:
    flat = torch.ones(1000, dtype=torch.float64)
    ordinary = gumbel(torch.tensor([8] * 200), torch.arange(200), torch.arange(1000)).argmax(-1).tolist()
    sampled = [SeededVerificationRng(8, position).sample(0, flat) for position in range(200)]
    assert sum(one == other for one, other in zip(ordinary, sampled, strict=True)) < 5
