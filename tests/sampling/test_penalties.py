"""Penalties against one-row-at-a-time Python."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archerfish.request import SamplingParams
from archerfish.sampling.logits_processors import penalize
from tests.lanes import examples
from tests.sampling import naive

NEVER = -math.inf
PENALTIES = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3, 2.0, 50.0]),
    presence_penalty=st.sampled_from([0.0, -2.0, 0.7, 2.0]),
    frequency_penalty=st.sampled_from([0.0, -1.5, 0.3, 2.0]),
)
VOCABULARY = 9


@st.composite
def penalized_rows(draw):
    row = st.lists(st.one_of(st.floats(-20, 20, width=32), st.just(NEVER)), min_size=VOCABULARY, max_size=VOCABULARY)
    tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=7)
    return [
        (draw(row), draw(tokens), draw(tokens), draw(PENALTIES))
        for _ in range(draw(st.integers(min_value=1, max_value=4)))
    ]


@examples(200)
@given(penalized_rows(), st.integers(0, VOCABULARY - 1), st.integers(0, 4))
def test_penalties_fall_on_tokens_of_the_rows_own_history_only(rows, leftover, margin):
    longest = max(len(prompt) + len(written) for _, prompt, written, _ in rows) + margin
    history = torch.full((len(rows), longest), leftover)  # What an earlier sequence left behind does not count.
    for place, (_, prompt, written, _) in enumerate(rows):
        history[place, : len(prompt) + len(written)] = torch.tensor(prompt + written, dtype=torch.int64)
    found = penalize(
        torch.tensor([row for row, *_ in rows]),
        history,
        torch.tensor([len(prompt) + len(written) for _, prompt, written, _ in rows]),
        torch.tensor([len(prompt) for _, prompt, _, _ in rows]),
        *(
            torch.tensor([getattr(params, f"{name}_penalty") for *_, params in rows], dtype=torch.float32)
            for name in ("repetition", "presence", "frequency")
        ),
    )
    for place, (row, prompt, written, params) in enumerate(rows):
        assert found[place].tolist() == pytest.approx(naive.penalize(row, prompt, written, params), rel=1e-5, abs=1e-5)


def test_many_occurrences_are_counted_exactly():
    history = torch.zeros(1, 5000, dtype=torch.int64)
    found = penalize(
        torch.zeros(1, 2), history, torch.tensor([5000]), torch.tensor([1000]), *torch.tensor([[1.0], [0.5], [0.25]])
    )
    assert found.tolist() == [[-(4000 * 0.25 + 0.5), 0.0]]
