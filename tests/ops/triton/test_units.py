"""Units of work: every key that a query sees is walked exactly once, in whole splits, the longest first."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archerfish.ops.triton.units import SPLIT, UNIT_FIELDS, Cut, TileCut, attention_units, most_units

SIZES = st.lists(
    st.tuples(st.sampled_from([0, 1, 500, 511, 512, 513, 1500, 5000]) | st.integers(0, 3000), st.integers(1, 90)),
    max_size=8,
)
CUTS = st.builds(
    lambda small, large, enough, partials: Cut(TileCut(small, enough), TileCut(large, enough), partials),
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


@settings(derandomize=True, deadline=None, max_examples=150)
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


@settings(derandomize=True, deadline=None, max_examples=150)
@given(SIZES, WINDOWS, CUTS)
def test_those_who_share_a_tile_have_a_split_each_and_room_for_what_they_find(sizes, window, cut):
    for units in units_of(sizes, window, cut):
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
                wanted = range(oldest // SPLIT, oldest // SPLIT + num_arrivals)
                assert sorted(unit[4] for unit in shared) == list(wanted)
                assert all(unit[5] == unit[4] + 1 for unit in shared)
                assert first_partial + num_arrivals * num_tokens <= cut.most_partials
                taken[first_partial : first_partial + num_arrivals * num_tokens] += 1
        assert taken.max(initial=0) <= 1


@settings(derandomize=True, deadline=None, max_examples=150)
@given(SIZES, WINDOWS, CUTS)
def test_long_units_come_first_and_tiles_are_no_larger_than_told(sizes, window, cut):
    capacity = most_units(sum(length for _, length in sizes), len(sizes), cut)
    for units, tile in zip(units_of(sizes, window, cut), (cut.small, cut.large), strict=True):
        assert units.dtype == np.int32 and units.shape[1] == UNIT_FIELDS
        assert len(units) <= capacity
        keys = [num_keys(unit, window) for unit in units.tolist()]
        assert keys == sorted(keys, reverse=True)
        assert (units[:, 2] <= tile.num_tokens).all()


def test_tiles_are_shared_only_while_there_are_few():
    few, many = ([(2000, 1)] * count for count in (9, 10))
    cut = Cut(TileCut(4, 10), TileCut(32, 10), 1000)
    assert len(units_of(few, None, cut).small) == 9 * 4
    assert len(units_of(many, None, cut).small) == 10


def test_one_that_is_longer_than_its_share_is_shared_among_however_many():
    units = units_of([(500, 1)] * 50 + [(30_000, 1)], None, Cut(TileCut(4, 10), TileCut(32, 10), 1000)).small
    assert len(units) == 50 + 59
    assert (units[units[:, 0] == 57][:, 6] == 59).all()


def test_the_longest_are_shared_where_there_is_not_room_for_all():
    units = units_of([(600, 1), (2000, 1), (1100, 1)], None, Cut(TileCut(4, 100), TileCut(32, 100), 7)).small
    assert {(row, arrivals) for row, *_, arrivals, _ in units.tolist()} == {(8, 4), (9, 3), (7, 1)}


@pytest.mark.parametrize(("length", "is_small"), [(1, True), (8, True), (9, False), (500, False)])
def test_short_chunks_have_small_tiles(length, is_small):
    small, large = units_of([(100, length)], None, Cut(TileCut(4, 10), TileCut(32, 10), 100))
    assert (len(small) > 0, len(large) > 0) == (is_small, not is_small)
