"""A queue in which tenants take turns: what one of them queues never delays another by more than one item."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class TenantQueue(Generic[Item]):
    """First in, first out for each tenant; between tenants the items alternate."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, deque[Item]] = OrderedDict()
        """By tenant, none of them empty; the tenant whose turn is next comes first."""

    def __len__(self) -> int:
        return sum(map(len, self._items.values()))

    def num_items(self, tenant: str) -> int:
        """Return the number of queued items of a tenant."""
        return len(self._items.get(tenant, ()))

    def push(self, tenant: str, item: Item) -> None:
        """Queue an item behind the others of its tenant."""
        self._items.setdefault(tenant, deque()).append(item)

    def pop(self) -> Item:
        """Take the first item of the tenant whose turn it is. The queue must not be empty."""
        tenant, items = self._items.popitem(last=False)
        item = items.popleft()
        if items:
            self._items[tenant] = items  # Behind all other tenants.
        return item

    def remove(self, tenant: str, item: Item) -> bool:
        """Take an item out; False if it is not queued any more."""
        items = self._items.get(tenant)
        if items is None or item not in items:
            return False
        items.remove(item)
        if not items:
            del self._items[tenant]
        return True
