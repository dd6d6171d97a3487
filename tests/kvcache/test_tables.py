"""Every sequence holds exactly the blocks it needs, and what it reads in them was written for its own prefix."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from archerfish.kvcache.pool import BlockId
from archerfish.kvcache.prefix_cache import NO_MATCH, PrefixMatch
from archerfish.kvcache.tables import BlockHashes, BlockTable, Fork, KVTables, blocks_held
from tests.lanes import examples

Windows = tuple[int | None, ...]

windows_of = st.lists(st.one_of(st.none(), st.integers(2, 9)), min_size=1, max_size=3).map(tuple)


class Slot(NamedTuple):
    block: BlockId
    offset: int


@dataclass
class Grown:
    """A sequence as a scheduler keeps it."""

    table: BlockTable
    salt: str
    tokens: list[int]
    hashes: BlockHashes
    computed: int = 0


def needed_places(position: int, window: int | None, block_size: int) -> set[int]:
    """Blocks with a key that the query at this position sees, by looking at every position."""
    return {p // block_size for p in range(position) if window is None or position - p < window}


def snapshot(tables: KVTables, table: BlockTable) -> tuple[object, ...]:
    pool = tables.pool
    references = [pool.references(BlockId(block)) for block in range(pool.num_blocks)]
    groups = [list(blocks) for blocks in table.groups]
    return (
        references,
        pool.num_available,
        pool.num_cached,
        len(tables.prefix_cache),
        groups,
        table.capacity,
        table.num_published,
    )


class TablesMachine(RuleBasedStateMachine):
    """Keeps what each slot of each block was written with: the salt and all tokens up to that position."""

    @initialize(
        block_size=st.integers(1, 4), windows=windows_of, num_blocks=st.integers(4, 24), prefix_caching=st.booleans()
    )
    def start(self, block_size: int, windows: Windows, num_blocks: int, prefix_caching: bool) -> None:
        self.block_size, self.windows = block_size, windows
        self.tables = KVTables(num_blocks, block_size, windows, step_tokens=6, prefix_caching=prefix_caching)
        self.sequences: list[Grown] = []
        self.contents: dict[Slot, tuple[object, ...]] = {}

    def content(self, sequence: Grown, group: int, position: int) -> tuple[object, ...]:
        return (group, sequence.salt, *sequence.tokens[: position + 1])

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14), salt=st.sampled_from(["", "", "other"]))
    def open(self, tokens: list[int], salt: str) -> None:
        names = BlockHashes(salt, self.block_size)
        match = self.tables.match(names.prefix(tokens, (len(tokens) - 1) // self.block_size))
        assert self.tables.prefix_caching or match == NO_MATCH
        computed = match.num_blocks * self.block_size
        self.sequences.append(Grown(self.tables.open(match), salt, tokens, names, computed))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), length=st.integers(1, 6), fresh=st.lists(st.integers(0, 1), min_size=6, max_size=6))
    def grow(self, data: st.DataObject, length: int, fresh: list[int]) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        before = snapshot(self.tables, sequence.table)
        room = self.tables.max_capacity(sequence.table)
        end = sequence.computed + length
        new = self.tables.reserve(sequence.table, end)
        assert (new is not None) == (end <= room), "room says what can be reserved"
        if new is None:
            assert snapshot(self.tables, sequence.table) == before
            return
        sequence.tokens += fresh[: max(0, end - len(sequence.tokens))]
        for group, blocks in enumerate(sequence.table.groups):
            for position in range(sequence.computed, end):
                block = blocks[position // self.block_size]
                assert block is not None
                slot = Slot(block, position % self.block_size)
                self.contents[slot] = self.content(sequence, group, position)
        sequence.computed = end
        self.tables.advance(sequence.table, end, sequence.hashes, sequence.tokens)
        assert 0 <= sequence.table.capacity - end < self.block_size, "waste is less than a block"
        for group, window in enumerate(self.windows):
            held = {place for place, block in enumerate(sequence.table.groups[group]) if block is not None}
            beyond = {end // self.block_size} if end % self.block_size else set()
            assert held == needed_places(end, window, self.block_size) | beyond, "holds just what can be seen"

    @precondition(lambda self: any(sequence.computed for sequence in self.sequences))
    @rule(data=st.data(), fresh=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def fork(self, data: st.DataObject, fresh: list[int]) -> None:
        parent = data.draw(st.sampled_from([sequence for sequence in self.sequences if sequence.computed]))
        num_tokens = data.draw(st.integers(1, parent.computed))
        before = snapshot(self.tables, parent.table)
        available = self.tables.pool.num_available
        forked = self.tables.fork(parent.table, num_tokens)
        num_copies = len(self.windows) if num_tokens % self.block_size else 0
        passed = any(
            parent.table.groups[group][place] is None
            for group, window in enumerate(self.windows)
            for place in needed_places(num_tokens, window, self.block_size)
        )
        if passed or num_copies > available:
            assert forked is None
            assert snapshot(self.tables, parent.table) == before
            return
        assert forked is not None and len(forked.copies) == num_copies
        assert self.tables.pool.num_available == available - num_copies
        for copy in forked.copies:
            for offset in range(self.block_size):
                self.contents.pop(Slot(copy.target, offset), None)
                if Slot(copy.source, offset) in self.contents:
                    self.contents[Slot(copy.target, offset)] = self.contents[Slot(copy.source, offset)]
        self.tables.release_sources(forked.copies)
        tokens = parent.tokens[:num_tokens] + fresh
        names = BlockHashes(parent.salt, self.block_size)
        self.sequences.append(Grown(forked.table, parent.salt, tokens, names, num_tokens))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.sequences) - 1))
        self.tables.release(self.sequences.pop(place).table)

    @rule()
    def drop_cached(self) -> None:
        self.tables.pool.drop_cached()
        assert self.tables.pool.num_cached == 0

    @invariant()
    def books_agree(self) -> None:
        self.tables.check([sequence.table for sequence in self.sequences])

    @invariant()
    def every_key_a_sequence_sees_was_written_for_its_own_prefix(self) -> None:
        for sequence in self.sequences:
            for group, window in enumerate(self.windows):
                first = 0 if window is None else max(0, sequence.computed - window + 1)
                for position in range(first, sequence.computed):
                    block = sequence.table.groups[group][position // self.block_size]
                    assert block is not None
                    found = self.contents[Slot(block, position % self.block_size)]
                    assert found == self.content(sequence, group, position)

    def teardown(self) -> None:
        if hasattr(self, "tables"):
            for sequence in self.sequences:
                self.tables.release(sequence.table)
            self.tables.check([])
            assert self.tables.pool.num_in_use == 0
            assert self.tables.usage == 0.0


TablesMachine.TestCase.settings = examples(250, stateful_step_count=40)
TestTablesMachine = TablesMachine.TestCase


# -- single operations ------------------------------------------------------------------------------------------------


def tables_of(
    num_blocks: int, block_size: int = 4, windows: Windows = (None,), *, step_tokens: int = 8, caching: bool = True
) -> KVTables:
    return KVTables(num_blocks, block_size, windows, step_tokens=step_tokens, prefix_caching=caching)


def grown(tables: KVTables, tokens: list[int], match: PrefixMatch = NO_MATCH, salt: str = "") -> Grown:
    """A sequence whose tokens are all computed, in one go."""
    sequence = Grown(tables.open(match), salt, tokens, BlockHashes(salt, tables.block_size))
    assert tables.reserve(sequence.table, len(tokens)) is not None
    sequence.computed = len(tokens)
    tables.advance(sequence.table, sequence.computed, sequence.hashes, tokens)
    return sequence


def match_of(tables: KVTables, tokens: list[int], salt: str = "") -> PrefixMatch:
    return tables.match(BlockHashes(salt, tables.block_size).prefix(tokens, len(tokens) // tables.block_size))


def test_only_full_blocks_are_published() -> None:
    tables = tables_of(8)
    sequence = grown(tables, list(range(11)))
    assert len(tables.prefix_cache) == 2
    assert match_of(tables, list(range(12))).num_blocks == 2
    tables.release(sequence.table)
    assert (tables.pool.num_cached, tables.pool.num_in_use) == (2, 0)


def test_without_prefix_caching_nothing_is_published() -> None:
    tables = tables_of(8, caching=False)
    sequence = grown(tables, list(range(12)))
    assert len(tables.prefix_cache) == 0
    tables.release(sequence.table)
    assert tables.pool.num_cached == 0


def test_a_second_copy_of_a_prefix_stays_private_and_becomes_free() -> None:
    tables = tables_of(8)
    first, second = grown(tables, list(range(8))), grown(tables, list(range(8)))
    assert len(tables.prefix_cache) == 2
    tables.release(second.table)
    assert tables.pool.num_cached == 0
    tables.release(first.table)
    assert tables.pool.num_cached == 2


def test_eviction_shortens_a_cached_prefix_from_its_end() -> None:
    tables = tables_of(6)
    tables.release(grown(tables, list(range(16))).table)
    for left in (4, 4, 4, 3, 2, 1, 0):
        assert match_of(tables, list(range(16))).num_blocks == left
        tables.pool.reserve(1)


def test_a_prefix_in_use_outlives_an_older_one_that_is_not() -> None:
    tables = tables_of(4)
    tables.release(grown(tables, [1] * 8).table)
    tables.release(grown(tables, [2] * 8).table)
    table = tables.open(match_of(tables, [1] * 8))
    tables.pool.reserve(2)
    assert match_of(tables, [1] * 8).num_blocks == 2
    assert match_of(tables, [2] * 8).num_blocks == 0
    tables.release(table)


def test_a_fork_shares_full_blocks_and_copies_the_partial_one_of_each_group() -> None:
    tables = tables_of(20, windows=(None, 6))
    parent = grown(tables, list(range(10)))
    forked = tables.fork(parent.table, 9)
    assert isinstance(forked, Fork)
    assert [copy.source for copy in forked.copies] == [parent.table.groups[0][2], parent.table.groups[1][2]]
    assert forked.table.groups[0][:2] == parent.table.groups[0][:2]
    assert forked.table.groups[1][:2] == [parent.table.groups[1][0], parent.table.groups[1][1]]
    assert [blocks[2] for blocks in forked.table.groups] == [copy.target for copy in forked.copies]
    assert forked.table.capacity == 12


def test_a_fork_at_the_end_of_a_block_copies_nothing() -> None:
    tables = tables_of(8)
    parent = grown(tables, list(range(9)))
    in_use = tables.pool.num_in_use
    forked = tables.fork(parent.table, 8)
    assert forked is not None and forked.copies == [] and forked.table.capacity == 8
    assert tables.pool.num_in_use == in_use


def test_a_fork_is_refused_when_the_window_has_passed_what_it_needs() -> None:
    tables = tables_of(20, windows=(4,))
    parent = grown(tables, list(range(16)))
    before = snapshot(tables, parent.table)
    assert tables.fork(parent.table, 8) is None
    assert snapshot(tables, parent.table) == before
    assert tables.fork(parent.table, 16) is not None


def test_a_fork_is_refused_when_no_block_is_left_for_the_copy() -> None:
    tables = tables_of(5, windows=(None, None))
    parent = grown(tables, list(range(7)))
    before = snapshot(tables, parent.table)
    assert tables.fork(parent.table, 6) is None
    assert snapshot(tables, parent.table) == before
    assert tables.fork(parent.table, 4) is not None


def test_the_source_of_a_copy_is_retained_until_the_copy_is_done() -> None:
    tables = tables_of(20)
    parent = grown(tables, list(range(7)))
    forked = tables.fork(parent.table, 6)
    assert forked is not None
    [copy] = forked.copies
    tables.release(parent.table)
    tables.check([forked.table], forked.copies)
    assert tables.pool.references(copy.source) == 1
    tables.release_sources(forked.copies)
    tables.check([forked.table])
    assert tables.pool.references(copy.source) == 0


def test_a_fork_publishes_its_own_continuation() -> None:
    tables = tables_of(20)
    parent = grown(tables, [1, 2, 3, 4, 5, 6, 7])
    forked = tables.fork(parent.table, 6)
    assert forked is not None
    child = Grown(forked.table, "", [1, 2, 3, 4, 5, 6, 9, 9, 9], BlockHashes("", 4))
    tables.reserve(child.table, 9)
    tables.advance(child.table, 9, child.hashes, child.tokens)
    found = match_of(tables, child.tokens)
    assert found.blocks == [[parent.table.groups[0][0], forked.copies[0].target]]


def test_a_fork_from_the_middle_of_a_cached_prefix_publishes_what_follows_its_own_end() -> None:
    tables = tables_of(20)
    parent = grown(tables, list(range(12)))
    forked = tables.fork(parent.table, 5)
    assert forked is not None
    tokens = [0, 1, 2, 3, 4, 9, 9, 9]
    tables.advance(forked.table, 8, BlockHashes("", 4), tokens)
    assert match_of(tables, tokens).num_blocks == 2


def test_a_window_group_releases_blocks_while_a_full_group_retains_them() -> None:
    tables = tables_of(40, windows=(None, 5))
    sequence = grown(tables, list(range(20)))
    full, window = sequence.table.groups
    assert None not in full
    # The query at 20 sees 16 to 20.
    assert [block is None for block in window] == [True, True, True, True, False]
    tables.release(sequence.table)
    assert tables.pool.num_in_use == 0


def test_blocks_that_a_window_has_passed_can_be_matched_until_their_room_is_needed() -> None:
    tables = tables_of(6, windows=(4,))
    tokens = list(range(12))
    sequence = grown(tables, tokens)
    assert tables.pool.num_in_use == 1
    assert match_of(tables, tokens[:4]).num_blocks == 1
    tables.pool.reserve(5)
    assert match_of(tables, tokens[:4]).num_blocks == 0
    assert match_of(tables, tokens).blocks == [[None, None, sequence.table.groups[0][2]]]


def test_check_notices_a_block_without_holder_and_one_with_an_unknown_holder() -> None:
    tables = tables_of(8)
    sequence = grown(tables, list(range(6)))
    tables.check([sequence.table])
    with pytest.raises(AssertionError):
        tables.check([])
    with pytest.raises(AssertionError):
        tables.check([sequence.table, sequence.table])


# -- how many blocks a sequence holds ---------------------------------------------------------------------------------


@examples(300)
@given(
    windows=windows_of,
    block_size=st.integers(1, 5),
    step_tokens=st.integers(1, 9),
    num_tokens=st.integers(1, 40),
    data=st.data(),
)
def test_a_sequence_never_holds_more_than_blocks_held(
    windows: Windows, block_size: int, step_tokens: int, num_tokens: int, data: st.DataObject
) -> None:
    most = blocks_held(num_tokens, windows, block_size, step_tokens)
    # Exactly that many exist: a sequence that needed one more would not get it.
    tables = KVTables(most, block_size, windows, step_tokens=step_tokens, prefix_caching=data.draw(st.booleans()))
    table, names, tokens = tables.open(NO_MATCH), BlockHashes("", block_size), [0] * num_tokens
    computed = 0
    while computed < num_tokens:
        computed += data.draw(st.integers(1, min(step_tokens, num_tokens - computed)))
        assert tables.reserve(table, computed) is not None
        assert tables.pool.num_in_use <= most
        tables.advance(table, computed, names, tokens)
        tables.check([table])


@given(windows=windows_of, block_size=st.integers(1, 5), step_tokens=st.integers(1, 9), num_tokens=st.integers(1, 40))
def test_blocks_held_grows_with_length_and_step_and_never_exceeds_all_blocks(
    windows: Windows, block_size: int, step_tokens: int, num_tokens: int
) -> None:
    held = blocks_held(num_tokens, windows, block_size, step_tokens)
    assert len(windows) <= held <= len(windows) * -(-num_tokens // block_size)
    assert blocks_held(num_tokens + 1, windows, block_size, step_tokens) >= held
    assert blocks_held(num_tokens, windows, block_size, step_tokens + 1) >= held


# Blocks shared with one that stays are not given back when the window passes them.
@example(windows=(3,), block_size=1, num_blocks=5, others=[(0, 2, True), (0, 1, True)], requested=(0, 5), step_tokens=1)
@examples(500)
@given(
    windows=windows_of,
    block_size=st.integers(1, 4),
    num_blocks=st.integers(3, 40),
    others=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 20), st.booleans()), max_size=5),
    requested=st.tuples(st.integers(0, 2), st.integers(1, 30)),
    step_tokens=st.integers(1, 7),
)
def test_what_can_be_held_can_be_grown(
    windows: Windows,
    block_size: int,
    num_blocks: int,
    others: list[tuple[int, int, bool]],
    requested: tuple[int, int],
    step_tokens: int,
) -> None:
    """Whatever others hold or have left in the cache: after a yes, growing to that length never runs out of blocks."""
    tables = KVTables(num_blocks, block_size, windows, step_tokens=step_tokens, prefix_caching=True)
    for kind, length, stays in others:
        table = tables.open(NO_MATCH)
        if tables.reserve(table, length) is None:
            continue
        tables.advance(table, length, BlockHashes("", block_size), [kind] * length)
        if not stays:
            tables.release(table)
    tokens = [requested[0]] * requested[1]
    names = BlockHashes("", block_size)
    match = tables.match(names.prefix(tokens, (len(tokens) - 1) // block_size))
    available = tables.pool.num_available
    fits = tables.can_hold(match, len(tokens))
    assert tables.pool.num_available == available
    if not fits:
        assert blocks_held(len(tokens), windows, block_size, step_tokens) > available
        return
    table, computed = tables.open(match), match.num_blocks * block_size
    while computed < len(tokens):
        computed += min(step_tokens, len(tokens) - computed)
        assert tables.reserve(table, computed) is not None
        tables.advance(table, computed, names, tokens)


def test_blocks_in_use_by_others_cost_nothing_but_idle_cached_ones_do() -> None:
    tables = tables_of(4)
    first = grown(tables, list(range(8)))
    match = match_of(tables, list(range(8)))
    assert tables.can_hold(match, 16), "two shared with the first, two that are free"
    tables.release(first.table)
    assert tables.can_hold(match, 16)
    tables.pool.reserve(1)
    assert not tables.can_hold(match, 16)
