"""The native draw against plain Python and the reference, and the same tokens for every batch and every kernel."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archerfish.ops.reference.drawing import draw as reference_draw
from archerfish.ops.reference.noise import gumbel
from tests.lanes import examples
from tests.ops.cpu.native import KERNELS, every_kernel, native, needs_native
from tests.ops.draws import DRAW_PARAMS, LOGITS, NEVER, random_logits, rows_of, scores_of
from tests.sampling import naive

pytestmark = needs_native

CLOSE = 2e-5
"""Scores that differ by less may be rounded to either order."""


@examples(300)
@given(st.lists(LOGITS, min_size=1, max_size=40).filter(lambda row: max(row) > NEVER), DRAW_PARAMS)
def test_the_largest_of_what_may_be_drawn_is(logits: list[float], params: dict[str, float]) -> None:
    try:
        scores = scores_of(logits, params)
    except naive.TooClose:
        return
    for kernels in KERNELS:
        drawn = native(kernels, 1).draw(torch.tensor([logits]), rows_of(params))
        assert drawn.peaks.tolist() == [max(logits)]
        assert scores[int(drawn.tokens)] >= max(scores) - CLOSE


@every_kernel
@pytest.mark.parametrize("vocabulary", [1000, 8192, 50_001])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.5, "top_p": 0.999},
        {"top_k": 40},
        {"top_k": 700, "top_p": 0.5},
        {"min_p": 0.01, "top_k": 5000, "top_p": 0.97},
    ],
)
def test_large_vocabularies_as_the_reference_draws_them(
    kernels: str, vocabulary: int, params: dict[str, float]
) -> None:
    logits = random_logits(vocabulary, 24, vocabulary)
    rows = rows_of(*(params | {"seed": seed, "position": 3 * seed} for seed in range(24)))
    found, wanted = native(kernels).draw(logits, rows), reference_draw(logits, rows)
    assert torch.equal(found.peaks, wanted.peaks)
    # A token may lie at the very edge of a nucleus, where sums in another order decide.
    assert (found.tokens == wanted.tokens).sum() >= 23


@every_kernel
def test_a_row_draws_the_same_token_in_every_batch_and_on_every_number_of_threads(kernels: str) -> None:
    logits = random_logits(0, 33, 3000)
    rows = rows_of(
        *({"seed": row, "temperature": 0.5 + row % 3, "top_p": 0.9, "top_k": 50 * (row % 2)} for row in range(33))
    )
    alone = [int(native(kernels, 1).draw(logits[row : row + 1], rows[row : row + 1]).tokens) for row in range(33)]
    for threads in (1, 2, 3):
        for count in (2, 7, 33):
            assert native(kernels, threads).draw(logits[:count], rows[:count]).tokens.tolist() == alone[:count]


def test_every_instruction_set_draws_the_same_tokens() -> None:
    logits, rows = random_logits(1, 200, 777), rows_of(*({"seed": row, "top_p": 0.95} for row in range(200)))
    drawn = [native(kernels).draw(logits, rows).tokens.tolist() for kernels in KERNELS]
    assert all(tokens == drawn[0] for tokens in drawn)


@every_kernel
@pytest.mark.parametrize("size", [1, 15, 16, 17, 5000])
def test_equal_tokens_stay_together_and_the_lowest_is_the_likeliest(kernels: str, size: int) -> None:
    flat = torch.zeros(64, size)
    greedy = native(kernels).draw(flat, rows_of(*[{"temperature": 0.0}] * 64))
    assert greedy.tokens.tolist() == [0] * 64
    params = [{"seed": seed, "top_k": 1, "top_p": 0.01} for seed in range(64)]
    tokens = native(kernels).draw(flat, rows_of(*params)).tokens
    expected = gumbel(torch.arange(64), torch.zeros(64, dtype=torch.int64), torch.arange(size)).argmax(-1)
    assert (tokens == expected).sum() >= 63


@every_kernel
@pytest.mark.parametrize("broken", [math.nan, math.inf, NEVER])
@pytest.mark.parametrize("place", [0, 20, 36])
def test_a_row_from_which_nothing_can_be_drawn_says_so_alone(kernels: str, broken: float, place: int) -> None:
    logits, rows = random_logits(2, 3, 37), rows_of(*[{"seed": 5, "top_p": 0.9}] * 3)
    fine = native(kernels).draw(logits, rows)
    logits[1] = NEVER if broken == NEVER else logits[1]
    logits[1, place] = broken
    drawn = native(kernels).draw(logits, rows)
    assert drawn.tokens[[0, 2]].tolist() == fine.tokens[[0, 2]].tolist()
    assert not math.isfinite(drawn.peaks[1]) and torch.equal(drawn.peaks[[0, 2]], fine.peaks[[0, 2]])
