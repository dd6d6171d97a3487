"""Sequences that wait, in the order in which they are to be admitted: by class and priority, and tenants take turns.

The counters are virtual: they say which tenant is ahead of which now, not what each received over all time. A tenant
that comes back to the queue starts level with the least served one there, so turns cannot be saved up by staying away.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from archerfish.request import RequestClass
from archerfish.scheduling.sequence import Sequence

PROMPT_WEIGHT = 1
"""Weight of a computed prompt token. Tokens from the cache count nothing."""
ANSWER_WEIGHT = 2
"""Weight of a generated token: it takes a pass of its own over everything before it."""

_FEW_COUNTERS = 16
"""Tenants up to which none is forgotten."""


class TenantCounter:
    """One tenant of a queue: its waiting and running sequences, and the service it received."""

    __slots__ = ("_running", "_settled", "turn", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Sequence] = []
        """Waiting sequences by order."""
        self.turn = 0
        """The queue's turn in which one of its sequences was last admitted."""
        self._settled = 0
        self._running: dict[Sequence, list[int]] = {}
        """Running sequences and their tokens, which grow step by step."""

    @property
    def served(self) -> int:
        """Weighted tokens served. Computed on demand, only where tenants compete: steps cost nothing for it."""
        return self._settled + ANSWER_WEIGHT * sum(map(len, self._running.values()))

    @property
    def tokens_received(self) -> int:
        """Weighted tokens served, without prompts that are still to be computed and may yet be cancelled."""
        return self.served - sum(
            PROMPT_WEIGHT * _unserved_prompt(sequence, sequence.stored) for sequence in self._running
        )

    @property
    def running(self) -> set[Sequence]:
        """The tenant's running sequences."""
        return set(self._running)

    @property
    def is_idle(self) -> bool:
        """Whether the tenant has no open sequence."""
        return not self.waiting and not self._running

    def first(self, admits: Callable[[Sequence], bool]) -> Sequence | None:
        """Return the first waiting sequence that may be admitted."""
        return next((sequence for sequence in self.waiting if admits(sequence)), None)

    def catch_up(self, least: int) -> None:
        """Raise a count that is not above the least of all tenants to it; the tenant then goes first among equals."""
        if (missing := least - self.served) >= 0:
            self._settled += missing
            self.turn = 0

    def start(self, sequence: Sequence) -> None:
        """Count a sequence's tokens from now on. The rest of its prompt counts at once: it is computed first."""
        self._running[sequence] = sequence.tokens
        self._settled -= ANSWER_WEIGHT * len(sequence.tokens)
        self._settled += PROMPT_WEIGHT * _note_prompt(sequence, sequence.computed)

    def stop(self, sequence: Sequence) -> None:
        """Stop counting a sequence that ended or was preempted, and refund what was never computed of its prompt."""
        assert sequence.table is not None
        del self._running[sequence]
        # Blocks are reserved for what is computed and for steps in flight, and for nothing else.
        self._settled -= PROMPT_WEIGHT * _note_prompt(sequence, sequence.table.capacity)
        self._settled += ANSWER_WEIGHT * len(sequence.tokens)


class _Rank(NamedTuple):
    """How the next sequences of two tenants compare: the smaller rank goes first. No two orders are equal."""

    is_new: bool
    """Preempted sequences go first, whichever tenant they belong to: what has begun frees its blocks soonest."""
    served: int
    turn: int
    order: tuple[float, ...]
    sequence: Sequence


class FairQueue:
    """Sequences of one class and priority. Tenants take turns, and each tenant's own sequences go in their order."""

    def __init__(self) -> None:
        self.num_sequences = 0
        """Number of sequences, waiting or running."""
        self._counters: dict[str, TenantCounter] = {}
        self._contenders: dict[str, TenantCounter] = {}
        """Tenants with waiting sequences."""
        self._last_to_leave: TenantCounter | None = None
        """The tenant that stopped waiting last."""
        self._num_turns = 0
        self._many_counters = _FEW_COUNTERS

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate in order of admission, as if each sequence cost only its prompt."""
        if len(self._contenders) == 1:
            yield from next(iter(self._contenders.values())).waiting
            return
        turn = self._num_turns
        heads = []
        for counter in self._contenders.values():
            rest = iter(counter.waiting)
            heads.append((_rank(next(rest), counter.served, counter.turn), rest))
        heapify(heads)
        while heads:
            rank, rest = heads[0]
            yield rank.sequence
            following = next(rest, None)
            if following is None:
                heappop(heads)
                continue
            turn += 1
            served = rank.served + PROMPT_WEIGHT * _unserved_prompt(rank.sequence, 0)
            heapreplace(heads, (_rank(following, served, turn), rest))

    def turns(self, admits: Callable[[Sequence], bool]) -> Iterator[Sequence]:
        """Yield the sequences that may be admitted, in order. Take the next only when this one has been started.

        All tenants are compared once, and then only the one whose sequence was started: others have not changed.
        """
        counters = list(self._contenders.values())
        if len(counters) == 1:
            while (sequence := counters[0].first(admits)) is not None:
                yield sequence
            return
        firsts = [(sequence, counter) for counter in counters if (sequence := counter.first(admits)) is not None]
        heads = [(_rank(sequence, counter.served, counter.turn), counter) for sequence, counter in firsts]
        heapify(heads)
        while heads:
            rank, counter = heads[0]
            yield rank.sequence
            following = counter.first(admits)
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (_rank(following, counter.served, counter.turn), counter))

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        tenant = sequence.request.tenant
        counter = self._counters.get(tenant) or self._add_tenant(tenant)
        if not counter.waiting:
            if len(self._counters) > 1:
                counter.catch_up(self._fewest_tokens_received())
            self._contenders[tenant] = counter
        insort(counter.waiting, sequence, key=lambda s: s.order)
        self.num_sequences += 1

    def remove(self, sequence: Sequence) -> None:
        """Take out a waiting sequence."""
        tenant = sequence.request.tenant
        counter = self._contenders[tenant]
        counter.waiting.remove(sequence)
        if not counter.waiting:
            del self._contenders[tenant]
            self._last_to_leave = counter
        self.num_sequences -= 1

    def start(self, sequence: Sequence) -> None:
        """Count a waiting sequence as running."""
        self.remove(sequence)
        counter = self._counters[sequence.request.tenant]
        self._num_turns += 1
        counter.turn = self._num_turns
        counter.start(sequence)
        self.num_sequences += 1

    def stop(self, sequence: Sequence) -> None:
        """Take out a running sequence."""
        self._counters[sequence.request.tenant].stop(sequence)
        self.num_sequences -= 1

    def check(self, running: set[Sequence]) -> None:
        """Check the counters against the running sequences."""
        counted = [counter.running for counter in self._counters.values()]
        assert set().union(*counted) == running, "a running sequence is not counted, or counted twice"
        assert self._contenders == {tenant: counter for tenant, counter in self._counters.items() if counter.waiting}
        assert self.num_sequences == len(running) + sum(1 for _ in self)
        for sequence in running:
            assert 0 <= sequence.prompt_served <= sequence.num_prompt_tokens

    def _fewest_tokens_received(self) -> int:
        """Return the count at which a tenant starts that comes to the queue."""
        if self._contenders:
            return min(counter.tokens_received for counter in self._contenders.values())
        return self._last_to_leave.tokens_received if self._last_to_leave is not None else 0

    def _add_tenant(self, tenant: str) -> TenantCounter:
        if len(self._counters) >= self._many_counters:
            self._forget_tenants()
        counter = self._counters[tenant] = TenantCounter()
        return counter

    def _forget_tenants(self) -> None:
        """Forget tenants that are gone and would have to catch up anyway if they came back."""
        least = self._fewest_tokens_received()
        self._counters = {
            tenant: counter
            for tenant, counter in self._counters.items()
            if not counter.is_idle or counter.served > least
        }
        # Looking through all of them each time their number has doubled costs a newcomer next to nothing.
        self._many_counters = max(_FEW_COUNTERS, 2 * len(self._counters))


def _rank(sequence: Sequence, served: int, turn: int) -> _Rank:
    return _Rank(sequence.scheduled_time is None, served, turn, sequence.order, sequence)


def _unserved_prompt(sequence: Sequence, computed: int) -> int:
    """Return the prompt tokens that the tenant has not received yet, if this many are computed or cached."""
    return max(0, sequence.num_prompt_tokens - max(sequence.prompt_served, computed))


def _note_prompt(sequence: Sequence, computed: int) -> int:
    """Return the unserved prompt tokens, and record that what is computed was served."""
    rest = _unserved_prompt(sequence, computed)
    sequence.prompt_served = sequence.num_prompt_tokens - rest
    return rest


class WaitingQueue:
    """A fair queue for each class and priority, in which tenants take turns.

    Starts and stops of running sequences are reported here, too: whose turn it is depends on what each tenant receives.
    """

    def __init__(self) -> None:
        self._queues: dict[RequestClass, dict[int, FairQueue]] = {kind: {} for kind in RequestClass}
        """Queues by priority, in its order."""
        self._num_waiting = 0
        self._num_tokens = 0

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all waiting sequences. None has been computed; some may be found in the cache."""
        return self._num_tokens

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        for queues in self._queues.values():
            for queue in queues.values():
                yield from queue

    def turns(self, kind: RequestClass, admits: Callable[[Sequence], bool] = lambda _: True) -> Iterator[Sequence]:
        """Yield the sequences that may be admitted, in order. Take the next only when this one has been started."""
        for queue in self._queues[kind].values():
            yield from queue.turns(admits)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence by its order, whether it is new or was preempted."""
        self._queue_of(sequence).add(sequence)
        self._count(sequence, 1)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that ends without running."""
        self._queue_of(sequence).remove(sequence)
        self._count(sequence, -1)
        self._drop_empty_queue(sequence)

    def start(self, sequence: Sequence) -> None:
        """Take out a sequence that gets a row, with its cached tokens counted as computed."""
        self._queue_of(sequence).start(sequence)
        self._count(sequence, -1)

    def stop(self, sequence: Sequence) -> None:
        """Record that a sequence leaves its row; it still has its blocks."""
        self._queue_of(sequence).stop(sequence)
        self._drop_empty_queue(sequence)

    def check(self, running: Iterable[Sequence]) -> None:
        """Check that the queues know what runs, and that empty ones were dropped."""
        by_queue: dict[tuple[RequestClass, int], set[Sequence]] = {}
        for sequence in running:
            request = sequence.request
            by_queue.setdefault((request.request_class, request.priority), set()).add(sequence)
        for kind, queues in self._queues.items():
            assert list(queues) == sorted(queues), "priorities are out of order"
            for priority, queue in queues.items():
                queue.check(by_queue.pop((kind, priority), set()))
                assert queue.num_sequences, "an empty queue was not dropped"
        assert not by_queue, "a sequence runs that no queue knows"
        waiting = list(self)
        assert len(waiting) == self._num_waiting
        assert sum(len(sequence.tokens) for sequence in waiting) == self._num_tokens

    def _queue_of(self, sequence: Sequence) -> FairQueue:
        request = sequence.request
        queues = self._queues[request.request_class]
        queue = queues.get(request.priority)
        if queue is None:
            queue = queues[request.priority] = FairQueue()
            self._queues[request.request_class] = dict(sorted(queues.items()))
        return queue

    def _drop_empty_queue(self, sequence: Sequence) -> None:
        """Clients choose priorities, so there may be any number of them. Without competition no tenant is ahead."""
        request = sequence.request
        queues = self._queues[request.request_class]
        if not queues[request.priority].num_sequences:
            del queues[request.priority]

    def _count(self, sequence: Sequence, change: int) -> None:
        self._num_waiting += change
        self._num_tokens += change * len(sequence.tokens)
