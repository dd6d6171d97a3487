"""The draw by Triton kernels: against plain Python and the reference; one token in every batch and kind of step."""

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from archerfish.ops.reference.drawing import draw as reference_draw
from archerfish.ops.reference.noise import gumbel
from archerfish.ops.triton.sampling.draw_kernels import noise, noise_keys
from archerfish.ops.triton.sampling.draw_tokens import WORDS, DrawScratch, Kind, device_rows, draw, draw_into, kind_of
from tests.lanes import examples
from tests.ops.draws import DRAW_PARAMS, LOGITS, NEVER, random_logits, rows_of, scores_of
from tests.sampling import naive

pytestmark = pytest.mark.each_choice

CLOSE = 1e-4
"""Scores that differ by less may be rounded to either order."""

EVERY_METHOD: list[dict[str, float]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.5, "top_p": 0.999},
    {"top_k": 40},
    {"top_k": 700, "top_p": 0.5},
    {"min_p": 0.01, "top_k": 5000, "top_p": 0.97},
    {"temperature": 0.8, "min_p": 0.05},
    {"min_p": 0.002, "top_p": 0.8},
]


@pytest.fixture(scope="module")
def device() -> str:
    """Of the module: each example of a property would otherwise want its own."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def noise_of_tokens(out, rows, COUNT: tl.constexpr):  # noqa: N803
    tokens = tl.arange(0, COUNT)
    first, second = noise_keys(rows, tl.program_id(0))
    tl.store(out + tl.program_id(0) * COUNT + tokens, noise(first, second, tokens))


def test_noise_is_that_of_the_reference(device: str) -> None:
    seeds, positions = [0, 1, 2**64 - 1, 0x123456789ABCDEF0], [0, 7, 2**31 + 5, 123_456]
    rows = rows_of(*({"seed": seed, "position": position} for seed, position in zip(seeds, positions, strict=True)))
    found = torch.empty(4, 16384, device=device)
    noise_of_tokens[(4,)](found, device_rows(rows).to(device), COUNT=16384)
    as_signed = torch.from_numpy(rows["seed"].view(np.int64).copy())
    wanted = gumbel(as_signed, torch.tensor(positions), torch.arange(16384))
    torch.testing.assert_close(found.cpu(), wanted, atol=1e-6, rtol=1e-6)


@examples(60)
@given(st.lists(LOGITS, min_size=1, max_size=40).filter(lambda row: max(row) > NEVER), DRAW_PARAMS)
def test_the_largest_of_what_may_be_drawn_is(device: str, logits: list[float], params: dict[str, float]) -> None:
    try:
        scores = scores_of(logits, params)
    except naive.TooClose:
        return
    drawn = draw(torch.tensor([logits], device=device), rows_of(params))
    best, second = [*sorted(scores, reverse=True), NEVER][:2]
    assert drawn.peaks.tolist() == [max(logits)]
    assert scores[int(drawn.tokens)] >= best - CLOSE
    if best - second > CLOSE or params["temperature"] == 0.0:
        assert drawn.tokens.tolist() == [scores.index(best)]


@pytest.mark.parametrize("params", EVERY_METHOD)
@pytest.mark.parametrize("vocabulary", [1000, 4101])
def test_large_vocabularies_as_the_reference_draws_them(vocabulary: int, params: dict[str, float], device: str) -> None:
    logits = random_logits(vocabulary, 3, vocabulary)
    rows = rows_of(*(params | {"seed": seed * 2**61 + seed, "position": 3 * seed} for seed in range(3)))
    found, wanted = draw(logits.to(device), rows), reference_draw(logits, rows)
    assert torch.equal(found.peaks.cpu(), wanted.peaks)
    assert found.tokens.tolist() == wanted.tokens.tolist()


def test_the_largest_vocabularies(device: str) -> None:
    logits = random_logits(0, 1, 270_004)
    rows = rows_of({"top_k": 50, "top_p": 0.9, "seed": 5})
    assert draw(logits.to(device), rows).tokens.tolist() == reference_draw(logits, rows).tokens.tolist()


@pytest.mark.parametrize("spread", [0.0, 1e-3, 40.0])
@pytest.mark.parametrize("params", [{"top_k": 1500}, {"top_p": 0.4}, {"top_k": 2500, "top_p": 0.7}, {"min_p": 0.3}])
def test_flat_and_steep_rows(params: dict[str, float], spread: float, device: str) -> None:
    logits = random_logits(3, 2, 3000, spread=spread)
    logits[1] = logits[1].bfloat16().float()  # Many are equal.
    rows = rows_of(*(params | {"seed": seed} for seed in range(2)))
    assert draw(logits.to(device), rows).tokens.tolist() == reference_draw(logits, rows).tokens.tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_logits_are_taken_as_wide_ones(dtype: torch.dtype, device: str) -> None:
    logits = random_logits(4, 4, 2200).to(device, dtype)
    rows = rows_of(*(EVERY_METHOD[way] | {"seed": way} for way in (0, 1, 2, 5)))
    found, wanted = draw(logits, rows), draw(logits.float(), rows)
    assert torch.equal(found.tokens, wanted.tokens) and torch.equal(found.peaks, wanted.peaks)


@pytest.mark.parametrize("vocabulary", [2200, 2047])
def test_a_row_draws_the_same_token_in_every_batch_and_wherever_it_lies(vocabulary: int, device: str) -> None:
    rows = rows_of(*(params | {"seed": seed} for seed, params in enumerate(EVERY_METHOD)))
    logits = random_logits(0, len(rows), vocabulary).to(device)
    whole = draw(logits, rows)
    for first in (1, 2, 5):
        alone = draw(logits[first : first + 1], rows[first : first + 1])
        assert int(alone.tokens) == int(whole.tokens[first]) and float(alone.peaks) == float(whole.peaks[first])
    apart = torch.full((len(rows), vocabulary + 40), math.nan, device=device)
    apart[:, :vocabulary] = logits
    assert torch.equal(draw(apart[:, :vocabulary], rows).tokens, whole.tokens)


def test_a_row_draws_the_same_token_in_steps_of_every_kind_that_can(device: str) -> None:
    logits = random_logits(1, len(EVERY_METHOD), 2500).to(device)
    for place, params in enumerate(EVERY_METHOD):
        rows = rows_of(params | {"seed": 9})
        drawn = set()
        for kind in (kind for kind in Kind if kind >= kind_of(rows)):
            tokens, peaks = torch.empty(1, dtype=torch.int64, device=device), torch.empty(1, device=device)
            row = logits[place : place + 1]
            draw_into(tokens, peaks, row, device_rows(rows).to(device), kind, DrawScratch.allocate(1, 2500, device))
            drawn.add((int(tokens), float(peaks)))
        assert len(drawn) == 1


def test_the_kind_of_a_step_is_what_its_rows_need() -> None:
    greedy_with_filters = {"temperature": 0.0, "top_p": 0.5, "top_k": 3, "min_p": 0.1}
    assert kind_of(rows_of(greedy_with_filters, {"temperature": 0.0})) == Kind.GREEDY
    assert kind_of(rows_of(greedy_with_filters, {})) == Kind.PLAIN
    for name, value in (("top_p", 0.9), ("top_k", 3), ("min_p", 0.1)):
        assert kind_of(rows_of(greedy_with_filters, {}, {name: value})) == Kind.FILTERED
    assert kind_of(rows_of()) == Kind.GREEDY


@pytest.mark.parametrize("size", [1, 16, 17, 2100])
def test_equal_tokens_stay_together_and_the_lowest_is_the_likeliest(size: int, device: str) -> None:
    flat = torch.zeros(8, size, device=device)
    assert draw(flat, rows_of(*[{"temperature": 0.0}] * 8)).tokens.tolist() == [0] * 8
    tokens = draw(flat, rows_of(*({"seed": seed, "top_k": 1, "top_p": 0.01} for seed in range(8)))).tokens
    expected = gumbel(torch.arange(8), torch.zeros(8, dtype=torch.int64), torch.arange(size)).argmax(-1)
    assert tokens.tolist() == expected.tolist()


@pytest.mark.parametrize("broken", [math.nan, math.inf, NEVER])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"top_p": 0.9, "top_k": 5}])
@pytest.mark.parametrize("place", [0, 2050])
def test_a_row_from_which_nothing_can_be_drawn_says_so_alone(
    broken: float, params: dict[str, float], place: int, device: str
) -> None:
    logits, rows = random_logits(2, 3, 2100).to(device), rows_of(*[params | {"seed": 5}] * 3)
    fine = draw(logits, rows)
    logits[1] = NEVER if broken == NEVER else logits[1]
    logits[1, place] = broken
    drawn = draw(logits, rows)
    assert drawn.tokens[[0, 2]].tolist() == fine.tokens[[0, 2]].tolist()
    assert not math.isfinite(drawn.peaks[1]) and torch.equal(drawn.peaks[[0, 2]], fine.peaks[[0, 2]])
    assert math.isnan(drawn.peaks[1]) == math.isnan(broken)
    assert int(drawn.tokens[1]) == 0


def test_rows_whose_tokens_are_not_used_are_harmless(device: str) -> None:
    """Whatever their bits, they end, draw some token there is, and change nothing next to them."""
    rng = np.random.default_rng(0)
    logits = random_logits(2, 24, 2100).to(device)
    words = torch.from_numpy(rng.integers(-(2**31), 2**31, (24, WORDS), dtype=np.int32))
    odd = [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-40, 3e38, 0.5]
    words[8:, 4:7] = torch.from_numpy(rng.choice(odd, (16, 3)).astype(np.float32)).view(torch.int32)
    params = rows_of({"seed": 5, "top_p": 0.9, "top_k": 20})
    words[3] = device_rows(params)[0]
    tokens, peaks = torch.empty(24, dtype=torch.int64, device=device), torch.empty(24, device=device)
    draw_into(tokens, peaks, logits, words.to(device), Kind.FILTERED, DrawScratch.allocate(24, 2100, device))
    assert int(tokens[3]) == int(draw(logits[3:4], params).tokens)
    assert ((tokens >= 0) & (tokens < 2100)).all()
    assert torch.equal(peaks, logits.amax(-1))


def test_no_rows_at_all(device: str) -> None:
    drawn = draw(torch.empty(0, 100, device=device), rows_of())
    assert drawn.tokens.shape == drawn.peaks.shape == (0,)


def test_a_scratch_of_another_vocabulary_is_refused(device: str) -> None:
    tokens, peaks = torch.empty(1, dtype=torch.int64, device=device), torch.empty(1, device=device)
    with pytest.raises(AssertionError, match="scratch"):
        draw_into(tokens, peaks, random_logits(0, 1, 5000).to(device), device_rows(rows_of({})).to(device), Kind.PLAIN,
                  DrawScratch.allocate(1, 2000, device))  # fmt: skip
