"""Sequences that must not be written against a search through what was written, over any rows."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from archerfish.request import SamplingParams
from archerfish.sampling.logits_processors import BadWords
from tests.lanes import examples

NUM_ROWS, VOCABULARY, LONGEST = 3, 5, 12
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=3)
ROW = st.tuples(st.lists(TOKENS, max_size=4), st.integers(1, 4), st.integers(0, 8))


@examples(200)
@given(st.lists(ROW, min_size=NUM_ROWS, max_size=NUM_ROWS), st.integers(0, 2**32 - 1))
def test_the_token_that_would_complete_a_sequence_of_the_answer_is_forbidden(rows, seed):
    numbers = np.random.default_rng(seed)
    history = torch.from_numpy(numbers.integers(0, VOCABULARY, (NUM_ROWS, LONGEST)))
    logits = torch.from_numpy(numbers.normal(size=(NUM_ROWS, VOCABULARY)).astype(np.float32))
    words, expected = BadWords(), logits.clone()
    for row, (sequences, num_prompt, num_written) in enumerate(rows):
        words.set_row(row, SamplingParams(bad_words_token_ids=sequences), num_prompt)
        answer = history[row, num_prompt : num_prompt + num_written].tolist()
        for token in range(VOCABULARY):
            longer = [*answer, token]
            if any(longer[-len(sequence) :] == sequence for sequence in sequences):
                expected[row, token] = -torch.inf
    positions = np.array([num_prompt + num_written for _, num_prompt, num_written in rows])
    assert torch.equal(words.apply(logits, np.arange(NUM_ROWS), positions, history), expected)
    assert all((row in words) == bool(sequences) for row, (sequences, _, _) in enumerate(rows))


def test_the_next_sequence_on_a_row_has_its_own_words_or_none():
    words, logits, history = BadWords(), torch.zeros(1, VOCABULARY), torch.zeros(1, LONGEST, dtype=torch.int64)
    words.set_row(0, SamplingParams(bad_words_token_ids=[[3]]), 1)
    assert words.apply(logits, np.array([0]), np.array([1]), history)[0, 3] == -torch.inf and len(words) == 1
    words.set_row(0, SamplingParams(), 1)
    assert words.apply(logits, np.array([0]), np.array([1]), history) is logits and len(words) == 0
