"""The block pool agrees with a naive model of it after any sequence of operations."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from archerfish.kvcache.pool import BlockId, BlockPool
from tests.lanes import examples

NUM_BLOCKS = 7


class PoolMachine(RuleBasedStateMachine):
    """A model of the pool: which blocks are free, how often each is held, and cached blocks in the order of their
    release.
    """

    @initialize()
    def start(self) -> None:
        self.evicted: list[BlockId] = []
        self.pool = BlockPool(NUM_BLOCKS, on_evict=self.evicted.append)
        self.free = {BlockId(block) for block in range(NUM_BLOCKS)}
        self.held: dict[BlockId, int] = {}
        self.published: set[BlockId] = set()
        self.cached: list[BlockId] = []
        self.expected_evictions: list[BlockId] = []

    @rule(count=st.integers(0, NUM_BLOCKS + 2))
    def reserve(self, count: int) -> None:
        taken = self.pool.reserve(count)
        if count > len(self.free) + len(self.cached):
            assert taken is None
            return
        assert taken is not None and len(set(taken)) == len(taken) == count
        # Nothing cached is given up while there are free blocks; then the one released longest ago goes first.
        num_evicted = max(0, count - len(self.free))
        victims, self.cached = self.cached[:num_evicted], self.cached[num_evicted:]
        assert set(victims) <= set(taken) <= self.free | set(victims)
        self.published -= set(victims)
        self.expected_evictions += victims
        self.free -= set(taken)
        self.held.update(dict.fromkeys(taken, 1))

    @precondition(lambda self: self.held or self.cached)
    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted({*self.held, *self.cached})))
        self.pool.retain(block)
        if block in self.cached:
            self.cached.remove(block)
        self.held[block] = self.held.get(block, 0) + 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.held)))
        self.pool.release(block)
        self.held[block] -= 1
        if self.held[block] == 0:
            del self.held[block]
            if block in self.published:
                self.cached.append(block)
            else:
                self.free.add(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.held)))
        self.pool.publish(block)
        self.published.add(block)

    @rule()
    def drop_cached(self) -> None:
        self.pool.drop_cached()
        self.expected_evictions += self.cached
        self.free |= set(self.cached)
        self.published -= set(self.cached)
        self.cached = []

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def a_free_block_cannot_be_released_retained_or_published(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.free)))
        for operation in (self.pool.release, self.pool.retain, self.pool.publish):
            with pytest.raises(AssertionError):
                operation(block)

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def a_cached_block_cannot_be_released_or_published(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.cached))
        for operation in (self.pool.release, self.pool.publish):
            with pytest.raises(AssertionError):
                operation(block)

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.pool.check()
        assert self.evicted == self.expected_evictions
        assert self.pool.num_available == len(self.free) + len(self.cached)
        assert self.pool.num_cached == len(self.cached)
        assert self.pool.num_in_use == len(self.held)
        for block in range(NUM_BLOCKS):
            assert self.pool.references(BlockId(block)) == self.held.get(BlockId(block), 0)


PoolMachine.TestCase.settings = examples(120, stateful_step_count=60)
TestPoolMachine = PoolMachine.TestCase


def cached_in_order(pool: BlockPool, count: int) -> list[BlockId]:
    blocks = pool.reserve(count)
    assert blocks is not None
    for block in blocks:
        pool.publish(block)
    for block in blocks:
        pool.release(block)
    return blocks


def test_a_refused_reservation_evicts_nothing() -> None:
    evicted: list[BlockId] = []
    pool = BlockPool(4, evicted.append)
    cached_in_order(pool, 3)
    assert pool.reserve(5) is None
    assert (evicted, pool.num_cached, pool.num_available) == ([], 3, 4)
    assert pool.reserve(4) is not None


def test_taking_a_cached_block_up_again_makes_it_the_last_to_go() -> None:
    evicted: list[BlockId] = []
    pool = BlockPool(3, evicted.append)
    first, second, third = cached_in_order(pool, 3)
    pool.retain(first)
    pool.release(first)
    pool.reserve(3)
    assert evicted == [second, third, first]


def test_an_evicted_block_is_private_to_its_new_holder() -> None:
    pool = BlockPool(1, lambda block: None)
    cached_in_order(pool, 1)
    taken = pool.reserve(1)
    assert taken is not None
    pool.release(taken[0])
    assert (pool.num_cached, pool.num_available) == (0, 1)


def test_a_published_block_stays_in_use_until_its_last_holder_goes() -> None:
    pool = BlockPool(2, lambda block: None)
    (block,) = pool.reserve(1) or []
    pool.publish(block)
    pool.retain(block)
    pool.release(block)
    assert (pool.num_cached, pool.num_in_use) == (0, 1)
    pool.release(block)
    assert (pool.num_cached, pool.num_in_use) == (1, 0)


@pytest.mark.parametrize("corrupt", ["lost", "twice", "cached unpublished", "free published", "free in use"])
def test_check_notices_books_that_do_not_add_up(corrupt: str) -> None:
    pool = BlockPool(4, lambda block: None)
    (held,) = pool.reserve(1) or []
    if corrupt == "lost":
        pool._free.pop()
    elif corrupt == "twice":
        pool._free.append(pool._free[0])
    elif corrupt == "cached unpublished":
        pool._cached[pool._free.pop()] = None
    elif corrupt == "free published":
        pool._published[pool._free[0]] = True
    else:
        pool._free[0] = held
    with pytest.raises(AssertionError):
        pool.check()
