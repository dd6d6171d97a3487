"""What a network has read is known by blocks: it outlives sequences, and goes with copies."""

import numpy as np

from archerfish.kvcache.tables import BlockCopy
from archerfish.request import SamplingParams
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart
from archerfish.speculation.drafters.cache_progress import DraftCacheProgress, longest_group

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


def progress_with(table: list[list[int]]) -> DraftCacheProgress:
    return DraftCacheProgress(16, SIZE, 0, np.array(table, np.int32))


def test_a_row_goes_on_where_it_was_left() -> None:
    progress = progress_with([[3, 5, 7]])
    progress.apply(Plan(0, [start(0)], [], [chunk(0, 0, 3, 5, 7)]))
    assert progress.num_computed(0, 10) == 0
    progress.advance(0, 0, 6)
    assert progress.num_computed(0, 10) == 6
    progress.advance(0, 6, 9)
    assert progress.num_computed(0, 10) == 9
    assert progress.num_computed(0, 8) == 8, "no more than the given length"


def test_a_cached_prefix_needs_no_second_reading_and_a_new_block_does() -> None:
    progress = progress_with([[3, 5, 7], [3, 5, 9]])
    progress.apply(Plan(0, [start(0)], [], [chunk(0, 0, 3, 5, 7)]))
    progress.advance(0, 0, 12)
    progress.apply(Plan(1, [start(1, 3, 5)], [], [chunk(1, 8, 9)]))
    assert progress.num_computed(1, 12) == 8
    # The blocks are given to another sequence.
    progress.apply(Plan(2, [start(0)], [], [chunk(0, 0, 3, 5, 7)]))
    assert progress.num_computed(0, 12) == 0


def test_a_prefix_that_was_computed_unread_is_read_from_its_gap() -> None:
    progress = progress_with([[3, 5, 7]])
    progress.apply(Plan(0, [start(0)], [], [chunk(0, 0, 3, 5, 7)]))
    progress.advance(0, 0, 2)
    progress.advance(0, 8, 12)
    assert progress.num_computed(0, 12) == 2


def test_a_copy_has_what_both_share_and_no_more() -> None:
    progress = progress_with([[3, 5], [3, 6]])
    progress.apply(Plan(0, [start(0)], [], [chunk(0, 0, 3, 5)]))
    progress.advance(0, 0, 8)
    # The first six tokens are shared; what the source wrote after them is its own.
    progress.apply(Plan(1, [start(1, 3, 6)], [BlockCopy(5, 6)], [chunk(1, 6)]))
    assert progress.num_computed(1, 8) == 6
    assert progress.num_computed(0, 8) == 8


def test_blocks_that_a_window_has_passed_need_no_reading() -> None:
    progress = progress_with([[0, 0, 7, 8]])
    progress.apply(Plan(0, [start(0, None, None, 7)], [], [chunk(0, 12, 8)]))
    assert progress.num_computed(0, 16) == 8


def test_the_group_that_sees_farthest_is_used() -> None:
    assert longest_group([128, None, None]) == 1
    assert longest_group([128, 4096]) == 1
