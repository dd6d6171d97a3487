"""What is drawn over many positions and seeds, against the distribution that was asked for."""

import numpy as np
import pytest
import torch

from archerfish.ops.reference.drawing import draw as draw_operation
from archerfish.request import SamplingParams
from archerfish.sampling.sampler import Sampler
from archerfish.scheduling.sequence import sequence_seed
from tests.ops.cpu.native import KERNELS, native
from tests.sampling import naive
from tests.sampling.chance import count, largest_correlation, surprise

SMALL = [1.1, 0.4, -0.3, 2.0, 0.0, -1.2, 1.6, 0.9]
EXPECTED_SURPRISE = 4.5


@pytest.fixture(params=["reference", *KERNELS], autouse=True)
def implementation(request, monkeypatch):
    """Every test of this file draws with each of them."""
    if request.param != "reference":
        monkeypatch.setitem(globals(), "draw_operation", native(request.param, 1).draw)


def over_positions(params, logits, num_draws, seed=0):
    """Draws of one row at positions 1, 2, 3, ..."""
    sampler = Sampler(1, draw_operation)
    sampler.set_row(0, params, seed, 1, ())
    logits = torch.tensor(logits, dtype=torch.float32)
    tokens = []
    # In pieces that stay in the processor's cache.
    for positions in np.array_split(np.arange(1, num_draws + 1), -(-num_draws * len(logits) // 2**18)):
        rows, batch = np.zeros(len(positions), np.int64), logits.expand(len(positions), -1)
        tokens += sampler.draw(batch, rows, positions, torch.zeros(1, num_draws + 1)).tokens
    return tokens


def over_seeds(params, logits, seeds, position=1):
    """Draws of one position by rows of these seeds."""
    sampler = Sampler(len(seeds), draw_operation)
    for row, seed in enumerate(seeds):
        sampler.set_row(row, params, seed, 1, ())
    batch = torch.tensor(logits, dtype=torch.float32).expand(len(seeds), -1)
    return sampler.draw(batch, np.arange(len(seeds)), np.full(len(seeds), position), torch.zeros(len(seeds), 1)).tokens


def wanted(params, logits):
    scaled = [x / params.temperature for x in logits]
    return naive.softmax(naive.keep_likeliest(scaled, params.top_k, params.top_p, params.min_p))


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.6, 10.0])
def test_draws_over_positions_follow_the_softmax_at_the_temperature(temperature):
    params = SamplingParams(temperature=temperature)
    found = count(over_positions(params, SMALL, 30_000), len(SMALL))
    assert surprise(found, wanted(params, SMALL)) < EXPECTED_SURPRISE


@pytest.mark.parametrize("temperature", [0.7, 1.6])
def test_draws_over_consecutive_seeds_follow_the_softmax_at_the_temperature(temperature):
    params = SamplingParams(temperature=temperature)
    found = count(over_seeds(params, SMALL, range(8000)), len(SMALL))
    assert surprise(found, wanted(params, SMALL)) < EXPECTED_SURPRISE


def test_draws_over_the_sequences_of_one_request_follow_the_softmax():
    params = SamplingParams(temperature=0.9)
    found = count(over_seeds(params, SMALL, [sequence_seed(42, index) for index in range(8000)]), len(SMALL))
    assert surprise(found, wanted(params, SMALL)) < EXPECTED_SURPRISE


def test_a_wrong_temperature_would_be_noticed():
    params = SamplingParams(temperature=0.7)
    found = count(over_positions(params, SMALL, 30_000), len(SMALL))
    for other in (0.66, 0.74, 1.0):
        assert surprise(found, wanted(SamplingParams(temperature=other), SMALL)) > 10


def zipf(vocabulary):
    """Logits as a language model's: a few likely tokens in random places, and a long tail."""
    ranks = np.random.default_rng(0).permutation(vocabulary) + 1
    return (-1.1 * np.log(ranks)).astype(np.float32).tolist()


LARGE = zipf(4000)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.5),
        SamplingParams(temperature=0.8, top_k=50),
        SamplingParams(temperature=1.2, top_p=0.7),
        SamplingParams(temperature=0.9, min_p=0.01),
        SamplingParams(temperature=1.3, top_k=200, top_p=0.8, min_p=0.003),
    ],
    ids=["plain", "hot", "top_k", "top_p", "min_p", "all filters"],
)
def test_draws_from_a_large_vocabulary_follow_the_filtered_softmax(params):
    found = count(over_positions(params, LARGE, 4000, seed=7), len(LARGE))
    assert surprise(found, wanted(params, LARGE)) < EXPECTED_SURPRISE


def test_the_tail_of_a_large_vocabulary_is_drawn_as_often_as_it_should_be():
    """One likely token against 60,000 that are each all but impossible, and half of the mass together."""
    vocabulary = 60_001
    logits = [np.log(60_000.0)] + [0.0] * (vocabulary - 1)
    draws = np.array(over_positions(SamplingParams(), logits, 400, seed=3))
    share = (draws == 0).mean()
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(400)
    tail = draws[draws > 0]
    assert len(set(tail.tolist())) >= len(tail) - 5
    assert abs(tail.mean() / vocabulary - 0.5) < 4 / np.sqrt(12 * len(tail))


@pytest.mark.parametrize("step", [1, 2, 7, 16])
def test_draws_at_neighbouring_positions_are_independent(step):
    draws = np.array(over_positions(SamplingParams(), [0.0] * 6, 20_000))
    pairs = draws[:-step] * 6 + draws[step:]
    assert surprise(count(pairs, 36), np.full(36, 1 / 36)) < EXPECTED_SURPRISE


@pytest.mark.parametrize("step", [1, 2, 16, 256])
def test_draws_of_neighbouring_seeds_are_independent(step):
    draws = np.array(over_seeds(SamplingParams(), [0.0] * 6, range(6000)))
    pairs = draws[:-step] * 6 + draws[step:]
    assert surprise(count(pairs, 36), np.full(36, 1 / 36)) < EXPECTED_SURPRISE


def test_whole_answers_of_neighbouring_seeds_and_siblings_are_uncorrelated():
    logits = [0.0, 1.0]
    seeds = [*range(20), *(sequence_seed(0, index) for index in range(1, 20))]
    answers = np.array([over_positions(SamplingParams(), logits, 1500, seed=seed) for seed in seeds], float)
    assert largest_correlation(answers) < 4.8
