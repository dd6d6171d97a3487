"""How keys share the service: rates per minute, the queue of open requests, and turns in other queues."""

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from archerfish.engine.input_processor import EngineInputs
from archerfish.metrics.service import ServiceMetrics
from archerfish.request import Request
from archerfish.server.errors import ApiError
from archerfish.server.keys import Key

Clock = Callable[[], float]

_MINUTE = 60.0
_SHARE_OF_A_KEY = 0.5
"""Share of the queue that one of several keys may fill."""
_BATCH_SHARE = 0.5
"""Share of the queue that lines of batches may fill: the rest is for clients that wait for their answers."""
_GRAIN = 1e-6  # A second or token that is missing by less than this is there, whatever rounding says.

Item = TypeVar("Item")


@dataclass(slots=True)
class _Bucket:
    """Holds as much as may be used in a minute, and fills evenly. Below empty it is in debt."""

    limit: int
    """A minute."""
    level: float
    filled_at: float

    def fill(self, now: float, limit: int) -> None:
        """Bring the level up to now. If the limit changed, the level changes in proportion."""
        self.level *= limit / self.limit
        self.limit = limit
        self.level = min(limit, self.level + max(0.0, now - self.filled_at) * limit / _MINUTE)
        self.filled_at = now

    def seconds_until(self, level: float) -> float:
        return max(0.0, (level - self.level) * _MINUTE / self.limit)


class _Buckets(NamedTuple):
    """The buckets of one key; None where it has no limit."""

    requests: _Bucket | None
    tokens: _Bucket | None


@dataclass(slots=True)
class RateLimits:
    """Requests and tokens a minute, for each key by its name, online and in batches.

    Tokens are taken by estimate and settled at the end.
    """

    clock: Clock
    _requests: dict[tuple[str, bool], _Bucket] = field(default_factory=dict, init=False)
    _tokens: dict[tuple[str, bool], _Bucket] = field(default_factory=dict, init=False)

    def admit(self, key: Key, estimated_tokens: int) -> float | None:
        """Take one request and its tokens from what is left (None), or nothing at all (seconds until it can be).

        A request larger than a whole minute's tokens is let in when none are in use, and leaves a debt: it would
        otherwise never be.
        """
        requests, tokens = self._buckets(key)
        wait = 0.0 if requests is None else requests.seconds_until(1.0)
        if tokens is not None:
            wait = max(wait, tokens.seconds_until(min(estimated_tokens, tokens.limit)))
        if wait > _GRAIN:
            return wait
        if requests is not None:
            requests.level -= 1
        if tokens is not None:
            tokens.level -= estimated_tokens
        return None

    def settle(self, key: Key, estimated: int, actual: int) -> None:
        """A request that was admitted has ended: correct what was taken for it."""
        tokens = self._buckets(key).tokens
        if tokens is not None:
            tokens.level = min(tokens.limit, tokens.level + estimated - actual)

    def headers(self, key: Key) -> dict[str, str]:
        """OpenAI's response headers: the limits of a key, what is left of them, and when all of it will be back."""
        requests, tokens = self._buckets(key)
        headers = {}
        for name, bucket in (("requests", requests), ("tokens", tokens)):
            if bucket is not None:
                headers[f"x-ratelimit-limit-{name}"] = str(bucket.limit)
                headers[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(bucket.level + _GRAIN)))
                headers[f"x-ratelimit-reset-{name}"] = _duration(bucket.seconds_until(bucket.limit))
        return headers

    def _buckets(self, key: Key) -> _Buckets:
        """Return the key's buckets, filled up to now."""
        return _Buckets(
            self._bucket(self._requests, key, key.requests_per_minute),
            self._bucket(self._tokens, key, key.tokens_per_minute),
        )

    def _bucket(self, buckets: dict[tuple[str, bool], _Bucket], key: Key, limit: int | None) -> _Bucket | None:
        if limit is None:
            return None
        now, name = self.clock(), (key.name, key.is_batch)
        bucket = buckets.get(name)
        if bucket is None:
            bucket = buckets[name] = _Bucket(limit, limit, now)
        bucket.fill(now, limit)
        return bucket


def _duration(seconds: float) -> str:
    """Format a duration as OpenAI does: 20ms, 1.5s, 6m0s."""
    milliseconds = math.ceil((seconds - _GRAIN) * 1000)
    if milliseconds < 1000:
        return f"{max(0, milliseconds)}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    minutes, rest = divmod(math.ceil(milliseconds / 1000), 60)
    return f"{minutes}m{rest}s"


class _Admitted(NamedTuple):
    """Open sequences and prompt tokens of a tenant."""

    num_sequences: int
    num_tokens: int


class Admission:
    """Counts sequences and prompt tokens that wait or run, of all tenants and of each."""

    def __init__(self, max_sequences: int, max_tokens: int) -> None:
        self.max_sequences = max_sequences
        self.max_tokens = max_tokens
        self.num_sequences = 0
        self.num_tokens = 0
        self._by_tenant: dict[str, _Admitted] = {}
        """What tenants with open sequences have open."""

    def enter(
        self,
        tenant: str,
        num_sequences: int,
        num_tokens: int,
        *,
        tenant_share: float = 1.0,
        total_share: float = 1.0,
    ) -> bool:
        """Admit all of it, or nothing.

        One tenant may have `tenant_share` of all sequences and tokens open, and all tenants together `total_share`.
        More prompt tokens than a share are admitted when nothing else that counts towards it is open.
        """
        own = self._by_tenant.get(tenant, _Admitted(0, 0))
        own_sequences, own_tokens = own.num_sequences + num_sequences, own.num_tokens + num_tokens
        sequences, tokens = self.num_sequences + num_sequences, self.num_tokens + num_tokens
        if own_sequences > self.most_of(tenant_share) or sequences > self.most_of(total_share):
            return False
        most_tokens = tenant_share * self.max_tokens
        if own.num_sequences and own_tokens > most_tokens:
            return False
        # A body that alone is larger than its tenant's share takes no more than that share from the others.
        others = sum(min(one.num_tokens, most_tokens) for name, one in self._by_tenant.items() if name != tenant)
        if self.num_sequences and others + min(own_tokens, most_tokens) > total_share * self.max_tokens:
            return False
        self.num_sequences, self.num_tokens = sequences, tokens
        self._by_tenant[tenant] = _Admitted(own_sequences, own_tokens)
        return True

    def most_of(self, share: float) -> int:
        """Sequences in a share of all that there may be; at least one."""
        return max(1, int(share * self.max_sequences))

    def leave(self, tenant: str, num_sequences: int, num_tokens: int) -> None:
        """Some of what was taken on has ended."""
        self.num_sequences -= num_sequences
        self.num_tokens -= num_tokens
        own = self._by_tenant.pop(tenant)
        left = _Admitted(own.num_sequences - num_sequences, own.num_tokens - num_tokens)
        if left.num_sequences:
            self._by_tenant[tenant] = left
        assert min(*left, self.num_sequences, self.num_tokens) >= 0, "more left than had entered"


class RequestLoad(NamedTuple):
    """The share of the queue and of a key's rate that requests use."""

    num_sequences: int
    num_prompt_tokens: int
    max_tokens: int
    """Tokens read and generated at most, where a limit is known; the actual number is settled at the end."""

    @classmethod
    def of_inputs(cls, inputs: EngineInputs) -> "RequestLoad":
        """The load of all requests of a body."""
        limit = inputs.num_sequences * (inputs.params.max_tokens or 0)
        return cls(inputs.num_sequences, inputs.num_prompt_tokens, inputs.num_prompt_tokens + limit)

    @classmethod
    def of_request(cls, request: Request) -> "RequestLoad":
        """The load of one of them."""
        num_prompt_tokens, params = len(request.prompt_token_ids), request.params
        return cls(params.n, num_prompt_tokens, num_prompt_tokens + params.n * (params.max_tokens or 0))

    def without(self, parts: Sequence["RequestLoad"]) -> "RequestLoad":
        """Return what is left without some of the requests."""
        return RequestLoad(*(whole - sum(part) for whole, *part in zip(self, *parts, strict=True)))


class RequestLimits:
    """Admits the requests of all keys within the queue and each key's rate, and accounts for them until they end."""

    def __init__(
        self, admission: Admission, rates: RateLimits, metrics: ServiceMetrics, *, has_several_keys: bool
    ) -> None:
        self._admission = admission
        self._rates = rates
        self._metrics = metrics
        self._key_share = _SHARE_OF_A_KEY if has_several_keys else 1.0
        self.idle = asyncio.Event()
        """Set while nothing is open."""
        self.idle.set()

    @property
    def num_sequences(self) -> int:
        """Answers that are open."""
        return self._admission.num_sequences

    def admit(self, caller: Key, load: RequestLoad) -> None:
        """Admit all of it, or raise the ApiError that the client gets."""
        num_sequences, num_tokens, max_tokens = load
        total_share = _BATCH_SHARE if caller.is_batch else 1.0
        limit = self._admission.most_of(min(self._key_share, total_share))
        if num_sequences > limit:
            message = f"the request asks for {num_sequences:,} answers, and {limit:,} can be open at once: send fewer"
            raise ApiError(400, message, code="too_many_answers")
        shares = {"tenant_share": self._key_share, "total_share": total_share}
        if not self._admission.enter(caller.name, num_sequences, num_tokens, **shares):
            seconds = max(1, round(self._metrics.retry_after(self._admission.num_tokens)))
            message = f"the queue is full ({self.num_sequences} answers); try again in {seconds} seconds"
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": str(seconds)})
        self.idle.clear()
        self._metrics.num_open_answers = self.num_sequences
        try:
            self.check_rate(caller, max_tokens)
        except BaseException:
            self._leave(caller, load)
            raise

    def check_rate(self, caller: Key, max_tokens: int) -> None:
        """Count a request towards the rate of its key, or raise the ApiError that the client gets."""
        wait = self._rates.admit(caller, max_tokens)
        if wait is not None:
            seconds = math.ceil(wait)
            message = f"the key {caller.name!r} has used up its limit per minute; try again in {seconds} seconds"
            headers = {"Retry-After": str(seconds), **self._rates.headers(caller)}
            raise ApiError(429, message, code="rate_limit_exceeded", headers=headers)

    def headers(self, caller: Key) -> dict[str, str]:
        """Return the response headers that name the limits of a key."""
        return self._rates.headers(caller)

    def settle(self, caller: Key, load: RequestLoad, num_tokens: int) -> None:
        """Release requests that have ended, with the number of tokens that they read and generated."""
        if load.num_sequences:
            self._rates.settle(caller, load.max_tokens, num_tokens)
            self._leave(caller, load)

    def _leave(self, caller: Key, load: RequestLoad) -> None:
        self._admission.leave(caller.name, load.num_sequences, load.num_prompt_tokens)
        self._metrics.num_open_answers = self.num_sequences
        if self.num_sequences == 0:
            self.idle.set()


class TenantQueue(Generic[Item]):
    """First in, first out for each tenant; between tenants the items alternate.

    What one tenant queues never delays another by more than one item.
    """

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
