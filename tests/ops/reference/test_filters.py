"""Filters against one-row-at-a-time Python, and against their own promises."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from archerfish.ops.reference.filters import filter_logits
from tests.lanes import examples
from tests.sampling import naive

NEVER = -math.inf
IDLE = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}

# Halves: many tokens are then equally likely, as they are in real 16-bit logits.
LOGITS = st.one_of(
    st.integers(-4, 6).map(lambda x: x / 2), st.sampled_from([0.0, 1.0, NEVER]), st.sampled_from([-(2.0**100), -80.0])
)
FILTERS = st.fixed_dictionaries(
    {
        "top_k": st.sampled_from([0, 1, 2, 3, 4, 5, 9, 10**6]),
        "top_p": st.sampled_from([1.0, 1e-30, 0.05, 0.3, 0.45, 0.55, 0.71, 0.85, 0.93, 0.99]),
        "min_p": st.sampled_from([0.0, 0.0, 1e-30, 0.02, 0.11, 0.4, 0.95, 1.0]),
    }
)


@st.composite
def batches(draw, max_rows=5):
    vocabulary = draw(st.integers(1, 12))
    row = st.lists(LOGITS, min_size=vocabulary, max_size=vocabulary).filter(lambda x: max(x) > NEVER)
    rows = draw(st.lists(row, min_size=1, max_size=max_rows))
    return rows, draw(st.lists(FILTERS, min_size=len(rows), max_size=len(rows)))


def filtered(rows, params, *, drop_idle=True):
    """Filter all rows at once, as the sampler does: a filter that no row uses is None."""

    def of(name):
        values = [one[name] for one in params]
        return None if drop_idle and all(v == IDLE[name] for v in values) else torch.tensor(values, dtype=torch.float32)

    return filter_logits(torch.tensor(rows), of("top_k"), of("top_p"), of("min_p")).tolist()


def expected(row, params):
    try:
        return naive.keep_likeliest(torch.tensor(row).tolist(), **params)
    except naive.TooClose:
        assume(False)


@examples(400)
@given(batches())
def test_every_row_is_filtered_by_its_own_parameters(batch):
    rows, params = batch
    assert filtered(rows, params) == [expected(row, one) for row, one in zip(rows, params, strict=True)]


@examples(100)
@given(batches(), st.sampled_from(sorted(IDLE)))
def test_each_filter_alone_does_its_own_part(batch, name):
    rows, params = batch
    params = [IDLE | {name: one[name]} for one in params]
    assert filtered(rows, params) == [expected(row, one) for row, one in zip(rows, params, strict=True)]


@examples(300)
@given(batches())
def test_a_row_has_the_same_tokens_alone_as_among_neighbours(batch):
    rows, params = batch
    together = filtered(rows, params)
    assert together == [filtered([row], [one])[0] for row, one in zip(rows, params, strict=True)]


def test_tokens_equal_to_the_kth_count_towards_top_p_in_any_batch():
    row, params = [3.0, 1.0, 1.0, 1.0], {"top_k": 2, "top_p": 0.85, "min_p": 0.0}
    alone = filtered([row], [params])
    with_a_wider_row = filtered([row, [0.0] * 4], [params, params | {"top_k": 4}])
    assert alone[0] == with_a_wider_row[0]


@pytest.mark.parametrize("spread", [0.01, 1.0])
def test_a_neighbour_does_not_change_how_top_p_rounds(spread):
    """top_p is set to the very float a row's probabilities sum to, so one bit of difference would show."""
    generator = torch.Generator().manual_seed(0)
    neighbour = torch.randn(1, 1000, generator=generator) * spread
    for _ in range(40):
        row = torch.randn(1, 1000, generator=generator) * 2
        chances = torch.softmax(row.topk(5).values, -1)
        edges = (chances.cumsum(-1) - chances)[0, 1:].tolist()
        for edge in edges:
            for top_p in (edge, float(np.nextafter(np.float32(edge), np.float32(1)))):
                alone = filter_logits(row, torch.tensor([5.0]), torch.tensor([top_p]), None)
                both = torch.cat((row, neighbour))
                together = filter_logits(both, torch.tensor([5.0, 0.0]), torch.tensor([top_p, 0.95]), None)
                assert torch.equal(alone[0], together[0])


def large_rows():
    """Nuclei of a few, of hundreds and of thousands of tokens, and plateaus of equal ones across any round number."""
    random = np.random.default_rng(0)
    peaked = random.normal(size=(3, 5000)) * 6
    flat = random.normal(size=(3, 5000)) * 0.3
    coarse = (random.normal(size=(3, 5000)) * 2).round(1)
    plateaus = [np.where(np.arange(5000) < size, 3.0, 0.0)[random.permutation(5000)] for size in (255, 256, 257, 2048)]
    return torch.from_numpy(np.concatenate((peaked, flat, coarse, plateaus))).float()


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.83, 0.97])
@pytest.mark.parametrize("top_k", [0, 200, 1000])
def test_rows_of_a_large_vocabulary_keep_what_they_should_together_and_alone(top_k, top_p):
    rows = large_rows()
    num_checked = 0
    together = filter_logits(
        rows, torch.full((len(rows),), float(top_k)) if top_k else None, torch.full((len(rows),), top_p), None
    )
    for row, filtered_row in zip(rows, together, strict=True):
        alone = filter_logits(row[None], torch.tensor([top_k]) if top_k else None, torch.tensor([top_p]), None)[0]
        assert torch.equal(alone, filtered_row)
        try:
            wanted = naive.keep_likeliest(row.tolist(), top_k, top_p)
        except naive.TooClose:
            continue
        assert filtered_row.tolist() == wanted
        num_checked += 1
    assert num_checked >= 8


@examples(100)
@given(batches())
def test_a_filter_given_but_idle_changes_nothing(batch):
    rows, _ = batch
    assert filtered(rows, [IDLE] * len(rows), drop_idle=False) == rows


@examples(100)
@given(batches())
def test_a_likeliest_token_always_stays(batch):
    rows, params = batch
    for row, filtered_row in zip(rows, filtered(rows, params), strict=True):
        assert max(filtered_row) == max(row)
        assert all(x in (NEVER, y) for x, y in zip(filtered_row, row, strict=True))


def test_the_tiniest_thresholds_still_leave_the_likeliest_token():
    filtered_row = filtered([[1.0, 2.0, 3.0, 3.0]], [{"top_k": 1, "top_p": 1e-45, "min_p": 1.0}])
    assert filtered_row == [[NEVER, NEVER, 3.0, 3.0]]


def test_top_p_just_below_one_cuts_no_token_that_matters():
    row = torch.linspace(0, -5, 50_000)
    filtered_row = filter_logits(row[None], None, torch.tensor([1 - 1e-6]), None)[0]
    lost = torch.softmax(row.double(), 0)[filtered_row == NEVER].sum()
    assert 0 <= lost < 2e-6


def test_top_p_is_exact_over_a_large_flat_vocabulary():
    """Every token is equally likely up to a tilt, so half the mass is about half of the tokens."""
    row = torch.linspace(1e-3, -1e-3, 150_000)
    filtered_row = filter_logits(row[None], None, torch.tensor([0.5]), None)[0] > NEVER
    mass = torch.softmax(row.double(), 0)[filtered_row].sum().item()
    assert mass == pytest.approx(0.5, abs=1e-4)


def test_the_given_logits_are_not_changed():
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    filter_logits(logits, torch.tensor([3.0, 0.0, 1.0]), torch.tensor([0.5, 1.0, 0.9]), torch.tensor([0.1, 0.0, 0.5]))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_row_that_is_not_finite_does_not_disturb_its_neighbours(broken):
    fine = [1.0, 4.0, 3.0, 2.0]
    params = {"top_k": 3, "top_p": 0.9, "min_p": 0.05}
    filtered_row = filtered([fine, [broken] * 4, fine], [params] * 3)
    assert filtered_row[0] == filtered_row[2] == filtered([fine], [params])[0]
