"""Units of work: every key that a query sees is walked exactly once, in whole splits, the longest first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.ops.triton.attention.attention_schedule import (
    SPLIT,
    UNIT_FIELDS,
    ChunkColumns,
    Cut,
    TileCut,
    attention_units,
    most_units,
)
from tests.lanes import examples

pytestmark = pytest.mark.each_choice

SIZES = st.lists(
    st.tuples(st.sampled_from([0, 1, 500, 511, 512, 513, 1500, 5000]) | st.integers(0, 3000), st.integers(1, 90)),
    max_size=8,
)
CUTS = st.builds(
    lambda small, large, enough, partials: Cut(TileCut(small, enough), TileCut(large, enough, True), partials),
    st.sampled_from([1, 3, 4, 16]),
    st.sampled_from([16, 32, 64]),
    st.sampled_from([0, 4, 1000]),
    st.sampled_from([0, 10, 100, 100_000]),
)
WINDOWS = st.none() | st.sampled_from([1, 60, 512, 700])


def units_of(sizes, window, cut):
    """Of chunks (start, length), whose rows of the table are not their places."""
    lengths = np.array([length for _, length in sizes], dtype=np.int64)
    starts = np.array([start for start, _ in sizes], dtype=np.int64)
    return attention_units(np.arange(len(sizes)) + 7, starts, lengths, np.cumsum(lengths) - lengths, window, cut)


def num_keys(unit, window):
    _, _, num_tokens, position, first_split, end_split, _, _ = unit
    oldest = 0 if window is None else max(0, position - window + 1)
    return min(position + num_tokens, end_split * SPLIT) - max(oldest, first_split * SPLIT)


@examples(150)
@given(SIZES, WINDOWS, CUTS)
def test_every_split_that_a_query_sees_is_walked_once(sizes, window, cut):
    walked = {}
    for unit in np.concatenate(units_of(sizes, window, cut)).tolist():
        row, first_token, num_tokens, position, first_split, end_split, _, _ = unit
        assert num_keys(unit, window) > 0, "a unit without work"
        for token in range(num_tokens):
            key = (row, first_token + token, position + token)
            walked.setdefault(key, []).extend(range(first_split, end_split))
    wanted, first = set(), 0
    for row, (start, length) in enumerate(sizes):
        wanted |= {(row + 7, first + token, start + token) for token in range(length)}
        first += length
    assert walked.keys() == wanted
    for (_, _, position), splits in walked.items():
        oldest = 0 if window is None else max(0, position - window + 1)
        assert len(set(splits)) == len(splits)
        assert set(range(oldest // SPLIT, position // SPLIT + 1)) <= set(splits)


@examples(150)
@given(SIZES, WINDOWS, CUTS)
def test_those_who_share_a_tile_have_some_splits_each_and_room_for_what_they_find(sizes, window, cut):
    for units, tile in zip(units_of(sizes, window, cut), (cut.small, cut.large), strict=True):
        taken = np.zeros(cut.most_partials, int)
        tiles = {}
        for unit in units.tolist():
            tiles.setdefault(unit[1], []).append(unit)
        for shared in tiles.values():
            _, _, num_tokens, position, _, _, num_arrivals, first_partial = shared[0]
            assert len(shared) == num_arrivals
            assert {unit[7] for unit in shared} == {first_partial}
            if num_arrivals > 1:
                oldest = 0 if window is None else max(0, position - window + 1)
                ranges = sorted((unit[4], unit[5]) for unit in shared)
                ends = [oldest // SPLIT, *(end for _, end in ranges)]
                assert [first for first, _ in ranges] == ends[:-1], "one after the other"
                assert tile is cut.small or all(end == first + 1 for first, end in ranges)
                assert ends[-1] == -(-(position + num_tokens) // SPLIT)
                num_partials = (ends[-1] - ends[0]) * num_tokens
                assert first_partial + num_partials <= cut.most_partials
                taken[first_partial : first_partial + num_partials] += 1
        assert taken.max(initial=0) <= 1


@examples(150)
@given(SIZES, WINDOWS, CUTS)
def test_long_units_come_first_and_tiles_are_within_their_size(sizes, window, cut):
    capacity = most_units(sum(length for _, length in sizes), len(sizes), cut)
    for units, tile in zip(units_of(sizes, window, cut), (cut.small, cut.large), strict=True):
        assert units.dtype == np.int32 and units.shape[1] == UNIT_FIELDS
        assert len(units) <= capacity
        keys = [num_keys(unit, window) for unit in units.tolist()]
        assert keys == sorted(keys, reverse=True)
        assert (units[:, 2] <= tile.num_tokens).all()


def test_equal_tiles_are_cut_so_that_every_program_has_one_unit():
    cut = Cut(TileCut(4, 10), TileCut(32, 10), 1000)
    for count, length, units_each in ((1, 30_000, 10), (2, 30_000, 5), (2, 2000, 4), (4, 2000, 2)):
        units = units_of([(length, 1)] * count, None, cut).small
        assert len(units) == count * units_each, (count, length)
        sizes = units[:, 5] - units[:, 4]
        assert sizes.max() - sizes.min() <= max(1, sizes.max() // 4)


def test_tiles_are_not_shared_where_there_are_enough():
    cut = Cut(TileCut(4, 10), TileCut(32, 10), 1000)
    assert len(units_of([(2000, 1)] * 40, None, cut).small) == 40


def test_a_long_one_among_short_ones_is_shared_by_more():
    units = units_of([(500, 1)] * 50 + [(30_000, 1)], None, Cut(TileCut(4, 10), TileCut(32, 10), 1000)).small
    # 109 splits for 40 units: three each.
    assert len(units) == 50 + 20
    assert (units[units[:, 0] == 57][:, 6] == 20).all()


def test_the_longest_are_shared_where_there_is_not_room_for_all():
    units = units_of([(600, 1), (2000, 1), (1100, 1)], None, Cut(TileCut(4, 100), TileCut(32, 100), 7)).small
    assert {(row, arrivals) for row, *_, arrivals, _ in units.tolist()} == {(8, 4), (9, 3), (7, 1)}


@pytest.mark.parametrize(("length", "is_small"), [(1, True), (8, True), (9, False), (500, False)])
def test_short_chunks_have_small_tiles(length, is_small):
    small, large = units_of([(100, length)], None, Cut(TileCut(4, 10), TileCut(32, 10), 100))
    assert (len(small) > 0, len(large) > 0) == (is_small, not is_small)


def test_tokens_of_trees_are_units_by_themselves():
    columns = ChunkColumns(*(np.array(each) for each in ([7, 8, 9], [100, 50, 30], [3, 5, 1], [0, 3, 8])))
    found = columns.with_lines(np.array([-1, -1, -1, 0, 1, 1, 2, 2, -1]))
    assert found.rows.tolist() == [7, 8, 8, 8, 8, 8, 9]
    assert found.starts.tolist() == [100, 50, 51, 51, 52, 52, 30]
    assert found.lengths.tolist() == [3, 1, 1, 1, 1, 1, 1]
    assert found.query_starts.tolist() == [0, 3, 4, 5, 6, 7, 8]
    cut = Cut(TileCut(4, 10), TileCut(32, 10), 0)
    units = attention_units(*found, None, cut).small
    assert sorted(units[:, 1].tolist()) == [0, 3, 4, 5, 6, 7, 8]
    assert len(units) <= most_units(9, 3, cut)


def test_there_is_room_for_trees_of_every_sequence():
    cut = Cut(TileCut(4, 10), TileCut(32, 10), 0)
    lengths = np.full(5, 64)
    columns = ChunkColumns(np.arange(5), np.full(5, 40), lengths, np.cumsum(lengths) - lengths)
    units = attention_units(*columns.with_lines(np.tile(np.arange(64), 5)), None, cut).small
    assert len(units) == 320 <= most_units(320, 5, cut)
