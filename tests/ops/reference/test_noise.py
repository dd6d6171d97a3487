"""Seeded noise: the same numbers everywhere, Gumbel-distributed, independent for every seed, position and token."""

import math

import numpy as np
import pytest
import torch

from archerfish.ops.reference.noise import LARGEST_GAP, gumbel
from archerfish.ops.reference.noise import uniform as one_uniform
from archerfish.scheduling.sequence import sequence_seed
from tests.sampling.chance import distance_from_uniform, largest_correlation, surprise

GOLDEN = 0x9E3779B9
FACTORS = (0x7FEB352D, 0x846CA68B)
EULER = 0.5772156649015329


def noise(seeds, positions, tokens):
    """For seeds of 0 to 2**64 - 1."""
    signed = np.array(seeds, np.uint64).view(np.int64)
    return gumbel(torch.from_numpy(signed), torch.as_tensor(positions), torch.as_tensor(tokens))


def uniform(values):
    """What the noise was made from: near 0 where the noise is large."""
    return -np.expm1(-np.exp(-values.double().numpy()))


# The hash once more, in whole numbers without limit, and backwards.


def mix(x):
    x ^= x >> 16
    x = x * FACTORS[0] % 2**32
    x ^= x >> 15
    x = x * FACTORS[1] % 2**32
    return x ^ (x >> 16)


def unmix(x):
    x ^= x >> 16
    x = x * pow(FACTORS[1], -1, 2**32) % 2**32
    x ^= (x >> 15) ^ (x >> 30)
    x = x * pow(FACTORS[0], -1, 2**32) % 2**32
    return x ^ (x >> 16)


def keys(seed, position):
    low, high = seed % 2**32, seed >> 32
    first = mix((mix(low ^ GOLDEN) + position) % 2**32)
    return first, mix(mix((high + first) % 2**32) ^ position)


def hashed(seed, position, token):
    first, second = keys(seed, position)
    return mix(mix((token * GOLDEN + first) % 2**32) ^ second)


def token_with_bits(seed, position, bits):
    """The token whose noise is made from these very bits."""
    first, second = keys(seed, position)
    return (unmix(unmix(bits) ^ second) - first) * pow(GOLDEN, -1, 2**32) % 2**32


def exact_noise(bits):
    return -math.log(-math.log1p(-(bits + 0.5) / 2**32))


SEEDS = [0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1, 0x0123456789ABCDEF]


@pytest.mark.parametrize("position", [0, 1, 77, 131_072, 2**31 - 1])
def test_noise_is_the_same_function_in_any_language(position):
    tokens = [0, 1, 2, 31_999, 151_935, 262_143]
    found = noise(SEEDS, [position] * len(SEEDS), tokens).double().numpy()
    wanted = np.array([[exact_noise(hashed(seed, position, token)) for token in tokens] for seed in SEEDS])
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("position", [0, 1, 77, 131_072, 2**31 - 1])
@pytest.mark.parametrize("number", [0, 1, 151_935, 2**30, 2**31 + 5, 2**32 - 1])
def test_single_numbers_are_those_that_noise_is_made_from(position, number):
    for seed in SEEDS:
        assert one_uniform(seed, position, number) == (hashed(seed, position, number) + 0.5) / 2**32


def test_every_seed_has_noise_of_its_own_up_to_the_last_bit():
    rows = noise(SEEDS, [5] * len(SEEDS), range(64))
    assert len({tuple(row) for row in rows.tolist()}) == len(SEEDS)


BITS = sorted({(2**power + change) % 2**32 for power in range(33) for change in (-2, -1, 0, 1, 2)})


def test_the_extremes_of_the_hash_give_finite_noise():
    found = noise([9], [3], [token_with_bits(9, 3, bits) for bits in BITS])[0]
    assert torch.isfinite(found).all()
    wanted = np.array([exact_noise(bits) for bits in BITS])
    # The far lower end is coarse on purpose: no draw ever depends on it.
    inner = np.array(BITS) < 2**32 - 2**12
    assert np.allclose(found.double().numpy()[inner], wanted[inner], rtol=1e-5, atol=1e-4)
    assert (found[~torch.from_numpy(inner)] < -2.0).all()


def test_larger_bits_never_give_larger_noise():
    found = noise([9], [3], [token_with_bits(9, 3, bits) for bits in BITS])[0]
    assert (found.diff() <= 0).all()


def test_the_largest_noise_is_as_fine_as_the_hash():
    """Among tens of thousands of tokens the winner's noise comes from the smallest bits, which must all differ."""
    found = noise([9], [3], [token_with_bits(9, 3, bits) for bits in range(3000)])[0]
    assert len(found.unique()) > 2900


def test_noise_is_bit_equal_in_any_batch_and_for_any_part_of_the_vocabulary():
    random = np.random.default_rng(0)
    seeds = random.integers(0, 2**64, 40, np.uint64)
    positions = random.integers(0, 10_000, 40)
    whole = noise(seeds, positions, np.arange(1003))
    for row in range(40):
        assert torch.equal(noise(seeds[row : row + 1], positions[row : row + 1], np.arange(1003))[0], whole[row])
    for first, last in ((0, 1), (0, 3), (5, 22), (1, 1003), (990, 1003)):
        assert torch.equal(noise(seeds, positions, np.arange(first, last)), whole[:, first:last])
    order = random.permutation(40)
    assert torch.equal(noise(seeds[order], positions[order], np.arange(1003)), whole[torch.from_numpy(order)])


def test_noise_is_bit_equal_for_token_ids_of_each_rows_own():
    random = np.random.default_rng(0)
    seeds, positions = random.integers(0, 2**64, 40, np.uint64), random.integers(0, 10_000, 40)
    whole = noise(seeds, positions, np.arange(1003))
    for width in (1, 5, 64, 997):
        tokens = random.integers(0, 1003, (40, width))
        assert torch.equal(noise(seeds, positions, tokens), whole.gather(1, torch.from_numpy(tokens)))


def test_no_two_noises_differ_by_more_than_the_largest_gap():
    found = noise([9], [3], [token_with_bits(9, 3, bits) for bits in BITS])[0]
    assert 25 < found.max() - found.min() < LARGEST_GAP - 5


R, V = 200, 2048
COUNTING = np.arange(R)
ZEROS = np.zeros(R, np.int64)
STREAMS = {
    "consecutive seeds": (COUNTING, ZEROS + 100),
    "consecutive positions": (ZEROS, COUNTING),
    "seed and position rising together": (COUNTING, COUNTING),
    "position rising as the seed falls": (COUNTING[::-1], COUNTING),
    "seeds that differ in the high half": (COUNTING.astype(np.uint64) << np.uint64(32), ZEROS + 5),
    "seeds with both halves alike": (COUNTING.astype(np.uint64) * np.uint64(2**32 + 1), COUNTING),
    "seeds down from the largest": (np.uint64(2**64 - 1) - COUNTING.astype(np.uint64), ZEROS + 7),
    "seeds of one bit": ([1 << bit for bit in range(64)], [11] * 64),
    "positions of one bit": ([3] * 31, [1 << bit for bit in range(31)]),
    "sequences of one request": ([sequence_seed(1234, index) for index in range(R)], ZEROS + 9),
    "sequences of requests with consecutive seeds": (
        [sequence_seed(seed, index) for seed in range(20) for index in range(10)],
        ZEROS + 9,
    ),
}


@pytest.fixture(params=STREAMS, ids=lambda name: name.replace(" ", "_"))
def stream(request):
    seeds, positions = STREAMS[request.param]
    return noise(seeds, positions, np.arange(V))


def test_noise_is_gumbel_distributed(stream):
    assert stream.mean().item() == pytest.approx(EULER, abs=6 * math.sqrt(math.pi**2 / 6 / stream.numel()))
    assert stream.double().var().item() == pytest.approx(math.pi**2 / 6, rel=0.03)
    assert distance_from_uniform(uniform(stream)) < 2.2


def test_every_row_of_noise_is_uniform_by_itself(stream):
    assert max(distance_from_uniform(row) for row in uniform(stream)) < 2.8


def test_no_two_rows_of_noise_are_correlated(stream):
    assert largest_correlation(uniform(stream)) < 5.8
    # The largest values decide draws: they must not coincide either.
    assert largest_correlation((uniform(stream) < 0.02).astype(float)) < 8.5


def test_no_row_of_noise_is_another_one_shifted(stream):
    rows = uniform(stream)[:60] - 0.5
    spectrum = np.fft.rfft(rows, n=2 * V, axis=1)
    largest = max(
        np.abs(np.fft.irfft(spectrum[row].conj() * spectrum[row + 1 :], axis=1)).max() for row in range(len(rows) - 1)
    )
    assert largest / (V / 12) * math.sqrt(V) < 6.8


def test_neighbouring_values_are_independent(stream):
    cells = (uniform(stream) * 16).astype(int).clip(0, 15)
    along_tokens = np.bincount((cells[:, :-1] * 16 + cells[:, 1:]).ravel(), minlength=256)
    along_rows = np.bincount((cells[:-1] * 16 + cells[1:]).ravel(), minlength=256)
    assert surprise(along_tokens, np.full(256, 1 / 256)) < 5
    assert surprise(along_rows, np.full(256, 1 / 256)) < 5


def test_the_token_with_the_largest_noise_is_uniform(stream):
    winners = stream.argmax(-1).numpy()
    pairs = len(winners) * (len(winners) - 1) / 2
    repeats = (len(winners) - len(set(winners.tolist()))) / max(1.0, pairs / V)
    assert repeats < 2.5


def test_every_bit_of_the_hash_is_set_half_of_the_time():
    values = (uniform(noise(range(300), [1] * 300, np.arange(1000))) * 2**20).astype(np.int64).ravel()
    share = np.array([((values >> bit) & 1).mean() for bit in range(4, 20)])
    assert np.abs(share - 0.5).max() * 2 * math.sqrt(len(values)) < 5


@pytest.mark.parametrize("part", ["seed", "position", "token"])
def test_one_changed_bit_of_any_input_changes_half_of_the_hash(part):
    random = np.random.default_rng(1)
    flips = []
    for bit in range({"seed": 64, "position": 20, "token": 18}[part]):
        seeds, positions = random.integers(0, 2**64, 200, np.uint64), random.integers(0, 2**20, 200)
        tokens = np.array([4711])
        before = uniform(noise(seeds, positions, tokens))
        if part == "seed":
            seeds = seeds ^ np.uint64(1 << bit)
        elif part == "position":
            positions = positions ^ (1 << bit)
        else:
            tokens = tokens ^ (1 << bit)
        after = uniform(noise(seeds, positions, tokens))
        changed = (before * 2**12).astype(np.int64) ^ (after * 2**12).astype(np.int64)
        flips.append([((changed >> place) & 1).mean() for place in range(12)])
    assert np.abs(np.array(flips) - 0.5).max() * 2 * math.sqrt(200) < 5


def test_seeds_whose_first_keys_run_in_step_are_still_independent():
    """Two seeds can be found whose first keys agree at every position but one apart; the second key must part them."""
    middle = 0x13579BDF
    one, other = (unmix(value) ^ GOLDEN for value in (middle, middle + 1))
    assert keys(one, 41)[0] == keys(other, 40)[0]
    ahead = uniform(noise([one] * R, COUNTING + 1, np.arange(V)))
    behind = uniform(noise([other] * R, COUNTING, np.arange(V)))
    assert largest_correlation(np.concatenate((ahead, behind))) < 5.8


def test_sequences_of_one_request_have_different_seeds():
    seeds = {sequence_seed(seed, index) for seed in (0, 1, 2, 2**64 - 1) for index in range(1000)}
    assert len(seeds) == 4000
    assert all(0 <= seed < 2**64 for seed in seeds)
