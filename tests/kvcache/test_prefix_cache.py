"""Block names stand for whole prefixes; the prefix tree finds the longest one that every group can continue from."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.kvcache.pool import BlockId
from archerfish.kvcache.prefix_cache import NO_MATCH, BlockHash, PrefixCache, hash_block, hash_salt
from archerfish.kvcache.tables import BlockHashes
from tests.lanes import examples

tokens_of = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=24)


# -- names ------------------------------------------------------------------------------------------------------------


@given(tokens=tokens_of, block_size=st.integers(1, 5), data=st.data())
def test_a_changed_token_changes_the_name_of_its_block_and_of_all_later_ones(
    tokens: list[int], block_size: int, data: st.DataObject
) -> None:
    num_blocks = len(tokens) // block_size
    place = data.draw(st.integers(0, len(tokens) - 1))
    other = data.draw(st.integers(0, 2**32 - 1).filter(lambda token: token != tokens[place]))
    changed = [*tokens[:place], other, *tokens[place + 1 :]]
    before = BlockHashes("", block_size).prefix(tokens, num_blocks)
    after = BlockHashes("", block_size).prefix(changed, num_blocks)
    for index in range(num_blocks):
        assert (before[index] == after[index]) == (index < place // block_size)


@given(tokens=tokens_of, block_size=st.integers(1, 5), stops=st.lists(st.integers(0, 24), max_size=6))
def test_names_do_not_depend_on_when_they_are_computed(tokens: list[int], block_size: int, stops: list[int]) -> None:
    num_blocks = len(tokens) // block_size
    names = BlockHashes("salt", block_size)
    grown: list[BlockHash] = []
    for stop in stops:
        upto = min(stop, num_blocks)
        # Only what is there yet: a sequence looks up hashes while it grows.
        length = max(upto, len(grown)) * block_size
        grown = max(grown, names.prefix(tokens[:length], upto), key=len)
    at_once = BlockHashes("salt", block_size).prefix(tokens, num_blocks)
    assert grown == at_once[: len(grown)]
    assert names.prefix(tokens, num_blocks) == at_once
    assert names.prefix(tokens, num_blocks // 2) == at_once[: num_blocks // 2]


def test_a_block_whose_tokens_are_not_all_known_has_no_name() -> None:
    names = BlockHashes("", 4)
    names.prefix([1, 2, 3, 4, 5, 6, 7], 1)
    with pytest.raises(AssertionError):
        names.prefix([1, 2, 3, 4, 5, 6, 7], 2)


def test_a_block_has_different_names_at_different_places() -> None:
    names = BlockHashes("", 2).prefix([5, 6, 5, 6, 5, 6], 3)
    assert len(set(names)) == 3


def test_salts_separate_tenants_from_the_first_block_on() -> None:
    tokens = [1, 2, 3, 4]
    named = [BlockHashes(salt, 2).prefix(tokens, 2) for salt in ("", "a", "b", "ab", "\0")]
    assert len({name for names in named for name in names}) == 10


@pytest.mark.parametrize("salt", ["tenant-ø-租户", "\ud800"])
def test_any_text_can_be_a_salt(salt: str) -> None:
    assert BlockHashes(salt, 1).prefix([1], 1) != BlockHashes("", 1).prefix([1], 1)


def test_no_salt_names_a_place_inside_another_tree() -> None:
    # A parent's name that happens to be text, and tokens that are text too, could be sent as a salt.
    parent = b"0123456789abcdef"
    tokens = [0x61616161, 0x62626262]
    salt = (parent + b"aaaabbbb").decode()
    assert hash_block(parent, tokens) != hash_salt(salt)


# -- the tree ---------------------------------------------------------------------------------------------------------


class Published(NamedTuple):
    group: int
    prefix: tuple[int, ...]


class Forest(NamedTuple):
    """What a random history of publishing and forgetting leaves."""

    windows: tuple[int | None, ...]
    block_size: int
    published: list[Published]
    forgotten: set[int]


windows_of = st.lists(st.one_of(st.none(), st.integers(1, 9)), min_size=1, max_size=3).map(tuple)


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    windows = draw(windows_of)
    block_size = draw(st.integers(1, 3))
    # Few different tokens, so that prefixes meet.
    blocks = st.lists(st.tuples(*[st.integers(0, 1)] * block_size), min_size=1, max_size=6)
    prefixes = blocks.map(lambda parts: tuple(token for part in parts for token in part))
    # Whole paths and their pieces: windows drop the early blocks, eviction any.
    published = []
    for prefix in draw(st.lists(prefixes, max_size=5)):
        for group in range(len(windows)):
            first = draw(st.integers(0, len(prefix) // block_size))
            ends = range(first, len(prefix) // block_size)
            published += [Published(group, prefix[: (end + 1) * block_size]) for end in ends]
    return Forest(windows, block_size, published, draw(st.sets(st.integers(0, 60), max_size=8)))


def names_of(prefix: tuple[int, ...], block_size: int) -> list[BlockHash]:
    return BlockHashes("", block_size).prefix(prefix, len(prefix) // block_size)


def needed_places(num_blocks: int, window: int | None, block_size: int) -> set[int]:
    """Blocks that hold a key which the query after num_blocks blocks can see, by looking at every position."""
    query = num_blocks * block_size
    return {p // block_size for p in range(query) if window is None or query - p < window}


@examples(400)
@given(forest=forests(), data=st.data())
def test_match_equals_a_search_through_everything_published(forest: Forest, data: st.DataObject) -> None:
    tree = PrefixCache(forest.windows, forest.block_size)
    known: dict[Published, BlockId] = {}
    for number, entry in enumerate(forest.published):
        entered = tree.publish(entry.group, names_of(entry.prefix, forest.block_size)[-1], BlockId(number))
        assert entered == (entry not in known)
        if entered:
            known[entry] = BlockId(number)
    for entry, block in list(known.items()):
        if block in forest.forgotten:
            tree.forget(block)
            del known[entry]
    tree.check()
    assert len(tree) == len(known)

    paths = [entry.prefix for entry in forest.published] or [(0,) * forest.block_size]
    path = data.draw(st.sampled_from(paths)) + data.draw(st.sampled_from([(), (0,) * forest.block_size]))
    names = names_of(path, forest.block_size)

    def usable(num_blocks: int) -> bool:
        return all(
            Published(group, path[: (place + 1) * forest.block_size]) in known
            for group, window in enumerate(forest.windows)
            for place in needed_places(num_blocks, window, forest.block_size)
        )

    longest = max(length for length in range(len(names) + 1) if usable(length))
    found = tree.match(names)
    assert found.num_blocks == longest
    assert tree.match(names) == found, "matching must not change the tree"
    if longest == 0:
        assert found == NO_MATCH
        return
    for group, window in enumerate(forest.windows):
        needed = needed_places(longest, window, forest.block_size)
        assert found.blocks[group] == [
            known[Published(group, path[: (place + 1) * forest.block_size])] if place in needed else None
            for place in range(longest)
        ]


def test_the_first_block_of_a_name_stays() -> None:
    tree = PrefixCache((None,), 1)
    name = hash_salt("")
    assert tree.publish(0, name, BlockId(3))
    assert not tree.publish(0, name, BlockId(4))
    assert tree.match([name]).blocks == [[3]]
    tree.forget(BlockId(3))
    assert tree.match([name]) == NO_MATCH
    assert tree.publish(0, name, BlockId(4))


def test_groups_do_not_lend_each_other_blocks() -> None:
    tree = PrefixCache((None, None), 1)
    name = hash_salt("")
    tree.publish(0, name, BlockId(0))
    assert tree.match([name]) == NO_MATCH
    tree.publish(1, name, BlockId(1))
    assert tree.match([name]).blocks == [[0], [1]]


def test_a_window_group_that_lost_its_tail_shortens_the_match_for_all() -> None:
    # Blocks of 2, a window of 3 reaches one block back. The window group has blocks 0 and 2 of 4, the full group all.
    tree = PrefixCache((None, 3), 2)
    names = names_of((1, 2, 3, 4, 5, 6, 7, 8), 2)
    for place in range(4):
        tree.publish(0, names[place], BlockId(place))
    tree.publish(1, names[0], BlockId(10))
    tree.publish(1, names[2], BlockId(12))
    found = tree.match(names)
    assert found.num_blocks == 3
    assert found.blocks == [[0, 1, 2], [None, None, 12]]


def test_check_notices_names_and_blocks_that_disagree() -> None:
    tree = PrefixCache((None,), 1)
    tree.publish(0, hash_salt("a"), BlockId(0))
    tree._blocks[0][hash_salt("b")] = BlockId(0)
    with pytest.raises(AssertionError):
        tree.check()
