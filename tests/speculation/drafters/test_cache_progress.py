"""What a network has read is known by blocks: it outlives sequences, and goes with copies."""

import numpy as np

from archerfish.kvcache.tables import BlockCopy
from archerfish.request import SamplingParams
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart
from archerfish.speculation.drafters.cache_progress import Filled, kept_group

SIZE = 4


def start(row: int, *blocks: int | None) -> SequenceStart:
    return SequenceStart(
        row=row,
        tokens=(),
        num_prompt_tokens=0,
        blocks=(blocks,),
        params=SamplingParams(),
        seed=0,
        stop_token_ids=(),
    )


def chunk(row: int, first: int, *new_blocks: int) -> Chunk:
    return Chunk(row, first, 1, True, (new_blocks,) if new_blocks else ())


def filled_with(table: list[list[int]]) -> Filled:
    return Filled(16, SIZE, 0, np.array(table, np.int32))


def test_a_row_goes_on_where_it_was_left() -> None:
    filled = filled_with([[3, 5, 7]])
    filled.take_in(Plan(0, [start(0)], [], [chunk(0, 0, 3, 5, 7)]))
    assert filled.upto(0, 10) == 0
    filled.mark(0, 0, 6)
    assert filled.upto(0, 10) == 6
    filled.mark(0, 6, 9)
    assert filled.upto(0, 10) == 9
    assert filled.upto(0, 8) == 8, "no more than is asked about"


def test_a_cached_prefix_needs_no_second_reading_and_a_new_block_does() -> None:
    filled = filled_with([[3, 5, 7], [3, 5, 9]])
    filled.take_in(Plan(0, [start(0)], [], [chunk(0, 0, 3, 5, 7)]))
    filled.mark(0, 0, 12)
    filled.take_in(Plan(1, [start(1, 3, 5)], [], [chunk(1, 8, 9)]))
    assert filled.upto(1, 12) == 8
    # The blocks are given to somebody else.
    filled.take_in(Plan(2, [start(0)], [], [chunk(0, 0, 3, 5, 7)]))
    assert filled.upto(0, 12) == 0


def test_a_prefix_that_was_computed_unread_is_read_from_its_gap() -> None:
    filled = filled_with([[3, 5, 7]])
    filled.take_in(Plan(0, [start(0)], [], [chunk(0, 0, 3, 5, 7)]))
    filled.mark(0, 0, 2)
    filled.mark(0, 8, 12)
    assert filled.upto(0, 12) == 2


def test_a_copy_has_what_both_share_and_no_more() -> None:
    filled = filled_with([[3, 5], [3, 6]])
    filled.take_in(Plan(0, [start(0)], [], [chunk(0, 0, 3, 5)]))
    filled.mark(0, 0, 8)
    # The first six tokens are shared; what the source wrote after them is its own.
    filled.take_in(Plan(1, [start(1, 3, 6)], [BlockCopy(5, 6)], [chunk(1, 6)]))
    assert filled.upto(1, 8) == 6
    assert filled.upto(0, 8) == 8


def test_blocks_that_a_window_has_passed_need_no_reading() -> None:
    filled = filled_with([[0, 0, 7, 8]])
    filled.take_in(Plan(0, [start(0, None, None, 7)], [], [chunk(0, 12, 8)]))
    assert filled.upto(0, 16) == 8


def test_the_group_that_sees_farthest_is_used() -> None:
    assert kept_group([128, None, None]) == 1
    assert kept_group([128, 4096]) == 1
