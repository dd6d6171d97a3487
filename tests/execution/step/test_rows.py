"""What an executor remembers of rows: the newest sequence on each, and all of its blocks."""

import pytest

from archerfish.execution.step.rows import Rows
from archerfish.request import SamplingParams
from archerfish.scheduling.plan import Chunk, SequenceStart


def start(row, tokens, blocks, num_prompt=None):
    return SequenceStart(
        row=row,
        tokens=tuple(tokens),
        num_prompt_tokens=len(tokens) if num_prompt is None else num_prompt,
        blocks=tuple(tuple(group) for group in blocks),
        params=SamplingParams(),
        seed=0,
        stop_token_ids=(),
    )


def grow(row, *blocks):
    return Chunk(row, 0, 1, True, tuple(tuple(group) for group in blocks))


def test_a_sequence_brings_its_tokens_and_the_blocks_it_shares():
    rows = Rows(3, 32, 2, 4)
    rows.start(start(1, [5, 6, 7], [[8], [9]], num_prompt=2))
    assert rows.tokens[1, :3].tolist() == [5, 6, 7]
    assert rows.num_prompt[1] == 2
    assert [table[1, 0] for table in rows.tables] == [8, 9]


def test_new_blocks_follow_those_a_sequence_has_in_every_group():
    rows = Rows(3, 32, 2, 4)
    rows.start(start(1, range(9), [[8, 3], [9, 4]]))
    rows.append_blocks(grow(1, [5], [6]))
    rows.append_blocks(grow(1, [1, 2], [7, 0]))
    assert rows.tables[0][1, :5].tolist() == [8, 3, 5, 1, 2]
    assert rows.tables[1][1, :5].tolist() == [9, 4, 6, 7, 0]


def test_rows_do_not_touch_one_another():
    rows = Rows(3, 32, 1, 4)
    rows.start(start(0, [1], [[1]]))
    rows.start(start(1, [2], [[2]]))
    rows.append_blocks(grow(0, [7]))
    rows.append_blocks(grow(1, [9]))
    assert rows.tables[0][:2, :2].tolist() == [[1, 7], [2, 9]]


def test_a_row_given_to_another_sequence_counts_its_blocks_anew():
    rows = Rows(1, 32, 1, 4)
    rows.start(start(0, range(12), [[4, 5, 6]]))
    rows.append_blocks(grow(0, [7]))
    rows.start(start(0, [1, 2], [[]]))
    rows.append_blocks(grow(0, [3]))
    assert rows.tables[0][0, 0] == 3
    rows.append_blocks(grow(0, [2]))
    assert rows.tables[0][0, :2].tolist() == [3, 2]


def test_places_a_window_has_passed_hold_a_valid_block_and_keep_later_ones_in_place():
    rows = Rows(1, 32, 2, 4)
    rows.start(start(0, range(12), [[None, None, 6], [3, 4, 5]]))
    rows.append_blocks(grow(0, [8], [9]))
    assert rows.tables[0][0, 2:4].tolist() == [6, 8]
    assert rows.tables[1][0, :4].tolist() == [3, 4, 5, 9]
    assert (rows.tables[0][0] >= 0).all()


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_the_longest_context_and_the_token_drawn_at_its_end_fit(block_size):
    rows = Rows(1, 10, 1, block_size)
    num_blocks = -(-10 // block_size)
    rows.start(start(0, range(10), [[]]))
    rows.append_blocks(grow(0, range(num_blocks)))
    assert rows.tables[0].shape[1] == num_blocks
    rows.tokens[0, 10] = 3
