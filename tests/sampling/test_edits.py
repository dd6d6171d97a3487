"""Edits of single logits against a dictionary of rows, over any history of rows taken up and given on."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from archerfish.request import SamplingParams
from archerfish.sampling.logits_processors import LogitEdits
from tests.lanes import examples
from tests.sampling import naive

NUM_ROWS = 5
VOCABULARY = 7
TOKEN = st.integers(0, VOCABULARY - 1)


@st.composite
def sequences(draw):
    """(params, barred tokens, position from which they may be drawn)."""
    min_tokens = draw(st.sampled_from([0, 0, 1, 4]))
    params = SamplingParams(
        logit_bias=draw(st.dictionaries(TOKEN, st.floats(-100, 100, width=32), max_size=4)),
        allowed_token_ids=draw(st.none() | st.lists(TOKEN, min_size=1, max_size=4)),
        min_tokens=min_tokens,
    )
    return params, tuple(draw(st.lists(TOKEN, max_size=3))), draw(st.integers(1, 9)) + min_tokens


TAKE_UP = st.tuples(st.integers(0, NUM_ROWS - 1), sequences())
# A row may occur several times: drafted tokens are judged at several positions of one sequence.
STEP = st.lists(st.tuples(st.integers(0, NUM_ROWS - 1), st.integers(1, 14)), max_size=2 * NUM_ROWS)


@examples(300)
@given(st.lists(st.one_of(TAKE_UP, STEP), max_size=14), st.integers(0, 2**32 - 1))
def test_a_step_sees_the_edits_of_the_sequences_now_on_its_rows(actions, seed):
    edits = LogitEdits()
    held = dict.fromkeys(range(NUM_ROWS), (SamplingParams(), (), 0))
    random = np.random.default_rng(seed)
    for action in actions:
        if isinstance(action, tuple):
            row, (params, barred, until) = action
            edits.set_row(row, params, barred, until)
            held[row] = (params, barred, until)
            continue
        rows = np.array([row for row, _ in action], np.int64)
        positions = np.array([position for _, position in action], np.int64)
        logits = random.normal(size=(len(action), VOCABULARY)).astype(np.float32)
        given_logits = torch.from_numpy(logits.copy())
        found = edits.apply(given_logits, rows, positions).tolist()
        assert found == [
            naive.edit(row_logits.tolist(), *held[row], position)
            for row_logits, (row, position) in zip(logits, action, strict=True)
        ]
        assert np.array_equal(given_logits.numpy(), logits), "log-probabilities are taken of the unchanged logits"


def edited(params, barred=(), until=0, position=5):
    edits = LogitEdits()
    edits.set_row(1, params, barred, until)
    logits = torch.zeros(1, VOCABULARY)
    return edits.apply(logits, np.array([1]), np.array([position]))[0].tolist()


def test_a_token_is_barred_up_to_but_not_at_the_position_where_min_tokens_are_written():
    params = SamplingParams(min_tokens=3)
    assert edited(params, barred=(2,), until=6, position=5)[2] == -math.inf
    assert edited(params, barred=(2,), until=6, position=6)[2] == 0.0


def test_stop_tokens_are_free_where_no_min_tokens_are_asked():
    assert edited(SamplingParams(), barred=(2,), until=6) == [0.0] * VOCABULARY


def test_a_bias_cannot_bring_back_a_token_that_is_not_allowed():
    found = edited(SamplingParams(logit_bias={0: 100.0, 3: 100.0}, allowed_token_ids=(3, 4)))
    assert found == [-math.inf] * 3 + [100.0, 0.0] + [-math.inf] * 2


def test_barring_the_only_allowed_token_leaves_none():
    params = SamplingParams(allowed_token_ids=(3,), min_tokens=2)
    assert edited(params, barred=(3,), until=9) == [-math.inf] * VOCABULARY


def test_a_token_named_twice_is_allowed_once_and_barred_once():
    params = SamplingParams(allowed_token_ids=(3, 3, 4), min_tokens=2)
    assert edited(params, barred=(4, 4), until=9)[3:5] == [0.0, -math.inf]


def test_the_position_of_a_long_context_is_compared_exactly():
    params = SamplingParams(min_tokens=1)
    for until in (131_073, 2**20 + 1):
        assert edited(params, barred=(0,), until=until, position=until - 1)[0] == -math.inf
        assert edited(params, barred=(0,), until=until, position=until)[0] == 0.0


def test_every_occurrence_of_a_row_is_edited_by_its_own_position():
    edits = LogitEdits()
    edits.set_row(1, SamplingParams(logit_bias={0: 2.0}, min_tokens=2), (3,), 6)
    found = edits.apply(torch.zeros(3, VOCABULARY), np.array([1, 1, 1]), np.array([5, 6, 5]))
    assert found[:, 0].tolist() == [2.0] * 3
    assert found[:, 3].tolist() == [-math.inf, 0.0, -math.inf]


def test_edits_of_rows_that_are_not_in_the_step_cost_nothing():
    edits = LogitEdits()
    edits.set_row(0, SamplingParams(logit_bias={0: 1.0}, allowed_token_ids=(0, 1), min_tokens=2), (3,), 9)
    logits = torch.zeros(2, VOCABULARY)
    assert edits.apply(logits, np.array([1, 2]), np.array([3, 3])) is logits
    edits.set_row(1, SamplingParams(min_tokens=2), (3,), 4)
    assert edits.apply(logits, np.array([1, 2]), np.array([4, 4])) is logits, "nothing is barred any more"
