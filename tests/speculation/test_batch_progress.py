"""Sequences side by side: what is saved is what all of them are ahead, and guesses are worth what they save."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.speculation.batch_progress import BatchProgress, token_values

# -- what tokens are worth --------------------------------------------------------------------------------------------


def test_where_all_can_be_made_faster_all_count_in_full() -> None:
    assert token_values({0: 60.0, 1: 60.0, 5: 60.0}, {0: 2.0, 1: 2.0, 5: 2.0}) == {0: 1.0, 1: 1.0, 5: 1.0}


def test_where_one_of_the_longest_cannot_nothing_is_saved() -> None:
    assert token_values({0: 60.0, 1: 60.0}, {0: 9.0, 1: 1.0}) == {0: 0.0, 1: 0.0}
    assert token_values({0: 60.0, 1: 60.0}, {0: 9.0, 1: 1.2}) == {0: 0.0, 1: 0.0}, "hardly faster is not faster"


def test_only_those_count_that_would_be_the_last() -> None:
    assert token_values({0: 60.0, 1: 10.0, 2: 10.0}, {0: 3.0, 1: 1.0, 2: 1.0}) == {0: 3.0, 1: 0.0, 2: 0.0}


def test_one_alone_counts_in_full() -> None:
    assert token_values({3: 7.0}, {3: 1.0}) == {3: 1.0}
    assert token_values({}, {}) == {}


@given(st.lists(st.tuples(st.integers(1, 99), st.sampled_from([1.0, 1.5, 2.0, 7.0])), min_size=2, max_size=6))
def test_tokens_that_have_to_be_written_ahead_are_worth_the_steps_that_they_save(rows: list[tuple[int, float]]) -> None:
    left = {row: float(num_left) for row, (num_left, _) in enumerate(rows)}
    found = token_values(left, {row: speed for row, (_, speed) in enumerate(rows)})
    num_steps = max(num_left / speed for num_left, speed in rows)
    value = sum(found[row] * max(0.0, num_left - num_steps) for row, num_left in left.items())
    assert value / len(rows) == pytest.approx(max(left.values()) - num_steps)


# -- what was saved ---------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(1, 4), min_size=20, max_size=20), min_size=1, max_size=4))
def test_steps_are_saved_by_which_all_are_ahead(written: list[list[int]]) -> None:
    """Rows that begin together and have the same to write: against the steps that were made in the end."""
    length, progress, total = 20, BatchProgress(), 0
    for row in range(len(written)):
        progress.start(row)
    before, made = [1] * len(written), 0
    while any(number < length for number in before):
        running = {row: number for row, number in enumerate(before) if number < length}
        total += progress.take_saved_steps(running, made + 1)
        assert total == max(0, min(running.values()) - (made + 1)), "nothing counts before the slowest has come on"
        for row in running:
            before[row] += written[row][made]
        made += 1
    assert total <= length - 1 - made + max(max(row) for row in written)


def test_a_row_that_begins_later_takes_nothing_back() -> None:
    progress = BatchProgress()
    progress.start(0)
    assert progress.take_saved_steps({0: 1}, 1) == 0
    assert progress.take_saved_steps({0: 9}, 3) == 6
    progress.start(1)
    assert progress.take_saved_steps({0: 10, 1: 1}, 4) == 0
    assert progress.take_saved_steps({0: 20, 1: 1 + 4}, 6) == 2, "the new one is two steps ahead, and the other more"
    assert progress.take_saved_steps({0: 21}, 7) == 6, "the rest counts when it has ended"


def test_a_long_prompt_is_no_step_lost() -> None:
    progress = BatchProgress()
    progress.start(0)
    assert progress.take_saved_steps({0: 1}, 17) == 0
    assert progress.take_saved_steps({0: 3}, 18) == 1


def test_new_rows_are_thought_to_be_as_fast_as_others_were() -> None:
    progress = BatchProgress()
    for step in range(0, 2000, 20):
        progress.start(0)
        progress.observe({0: 1}, step)
        progress.observe({0: 31}, step + 10)
    progress.start(0)
    progress.observe({0: 1}, 2001)
    assert progress.speed(0) > 1.5
    progress.observe({0: 101}, 2101)
    assert progress.speed(0) == pytest.approx(1.0, rel=0.2), "until it is known better"
