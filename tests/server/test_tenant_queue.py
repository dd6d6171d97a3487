"""Tenants take turns, each of them in its own order, and what was taken out is gone."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from archerfish.server.tenant_queue import TenantQueue


def test_items_of_tenants_alternate() -> None:
    queue: TenantQueue[int] = TenantQueue()
    for number, tenant in enumerate("aaabbc"):
        queue.push(tenant, number)
    assert (len(queue), queue.num_items("a"), queue.num_items("z")) == (6, 3, 0)
    assert queue.remove("b", 4) and not queue.remove("b", 4) and not queue.remove("z", 1)
    assert [queue.pop() for _ in range(5)] == [0, 3, 5, 1, 2]
    assert not queue


@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_no_tenant_waits_for_more_than_one_item_of_each_other(tenants: list[str]) -> None:
    queue: TenantQueue[tuple[str, int]] = TenantQueue()
    for number, tenant in enumerate(tenants):
        queue.push(tenant, (tenant, number))
    popped = [queue.pop() for _ in tenants]
    assert sorted(popped) == sorted((tenant, number) for number, tenant in enumerate(tenants))
    for tenant in set(tenants):
        places = [place for place, (owner, _) in enumerate(popped) if owner == tenant]
        assert [popped[place][1] for place in places] == sorted(popped[place][1] for place in places)
        assert all(after - before <= len(set(tenants)) for before, after in itertools.pairwise(places))
