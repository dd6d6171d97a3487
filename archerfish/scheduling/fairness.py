"""Whose turn it is among tenants of one class and priority: whoever was served least. Knows no rows and no steps.

The counters are virtual: they say who is ahead of whom now, not what anyone was given over all time. A tenant that
comes back to the line starts level with the least served one there, so nobody saves up turns by staying away.
"""

from bisect import insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from archerfish.scheduling.sequence import Sequence

PROMPT_WEIGHT = 1
"""What a computed token of a prompt counts. Tokens from the cache count nothing."""
ANSWER_WEIGHT = 2
"""What a written token counts: it takes a pass of its own over everything before it."""

_FEW_ACCOUNTS = 16  # Not worth looking through for some to forget.


class Account:
    """One tenant in a line: its sequences that wait, those that run, and the service it was given."""

    __slots__ = ("_running", "_settled", "turn", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Sequence] = []
        """By order."""
        self.turn = 0
        """The line's turn in which one of its sequences was last admitted."""
        self._settled = 0
        self._running: dict[Sequence, list[int]] = {}
        """The tokens of each, which grow step by step."""

    @property
    def served(self) -> int:
        """Worked out when somebody asks, which is only where tenants compete: steps cost nothing for it."""
        return self._settled + ANSWER_WEIGHT * sum(map(len, self._running.values()))

    @property
    def received(self) -> int:
        """The same without the prompts that are still to be computed, and may yet be cancelled."""
        return self.served - sum(PROMPT_WEIGHT * _prompt_rest(one, one.stored) for one in self._running)

    @property
    def running(self) -> set[Sequence]:
        return set(self._running)

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self._running

    def first(self, admits: Callable[[Sequence], bool]) -> Sequence | None:
        return next((sequence for sequence in self.waiting if admits(sequence)), None)

    def lift(self, least: int) -> None:
        self._settled += max(0, least - self.served)

    def start(self, sequence: Sequence) -> None:
        """From now on its tokens count. The rest of its prompt counts at once: it will be computed before others."""
        self._running[sequence] = sequence.tokens
        self._settled -= ANSWER_WEIGHT * len(sequence.tokens)
        self._settled += PROMPT_WEIGHT * _note_prompt(sequence, sequence.computed)

    def stop(self, sequence: Sequence) -> None:
        """It ended or was preempted. What was never computed of its prompt does not count after all."""
        assert sequence.table is not None
        del self._running[sequence]
        # Blocks are reserved for what is computed and for the steps in flight, for nothing else.
        self._settled -= PROMPT_WEIGHT * _note_prompt(sequence, sequence.table.capacity)
        self._settled += ANSWER_WEIGHT * len(sequence.tokens)


class _Rank(NamedTuple):
    """How the next of one tenant compares with the next of another: the smaller goes first. No two orders are equal."""

    is_new: bool
    """Whoever had to make way goes on first, whichever tenant it belongs to: what is begun frees its blocks soonest."""
    served: int
    turn: int
    order: tuple[float, ...]
    sequence: Sequence


class Line:
    """Sequences of one class and priority. Tenants take turns, and each tenant's own go in their order."""

    def __init__(self) -> None:
        self.num_sequences = 0
        """Waiting or running."""
        self._accounts: dict[str, Account] = {}
        self._contenders: dict[str, Account] = {}
        """Tenants with somebody waiting."""
        self._last_to_leave: Account | None = None
        """The tenant that stopped waiting last."""
        self._num_turns = 0
        self._many_accounts = _FEW_ACCOUNTS

    def __iter__(self) -> Iterator[Sequence]:
        """In order of admission, if each were to cost what is known of it so far: its prompt."""
        if len(self._contenders) == 1:
            yield from next(iter(self._contenders.values())).waiting
            return
        turn = self._num_turns
        heads = []
        for account in self._contenders.values():
            rest = iter(account.waiting)
            heads.append((_rank(next(rest), account.served, account.turn), rest))
        heapify(heads)
        while heads:
            rank, rest = heads[0]
            yield rank.sequence
            following = next(rest, None)
            if following is None:
                heappop(heads)
                continue
            turn += 1
            served = rank.served + PROMPT_WEIGHT * _prompt_rest(rank.sequence, 0)
            heapreplace(heads, (_rank(following, served, turn), rest))

    def turns(self, admits: Callable[[Sequence], bool]) -> Iterator[Sequence]:
        """Those that may join, in order. Ask for the next only when this one has been started.

        All tenants are looked at once, and then only the one whose sequence was started: others have not changed.
        """
        accounts = list(self._contenders.values())
        if len(accounts) == 1:
            while (sequence := accounts[0].first(admits)) is not None:
                yield sequence
            return
        firsts = [(sequence, account) for account in accounts if (sequence := account.first(admits)) is not None]
        heads = [(_rank(sequence, account.served, account.turn), account) for sequence, account in firsts]
        heapify(heads)
        while heads:
            rank, account = heads[0]
            yield rank.sequence
            following = account.first(admits)
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (_rank(following, account.served, account.turn), account))

    def add(self, sequence: Sequence) -> None:
        """Someone waits."""
        tenant = sequence.request.tenant
        account = self._accounts.get(tenant) or self._open_account(tenant)
        if not account.waiting:
            if len(self._accounts) > 1:
                account.lift(self._least_received())
            self._contenders[tenant] = account
        insort(account.waiting, sequence, key=lambda s: s.order)
        self.num_sequences += 1

    def remove(self, sequence: Sequence) -> None:
        """Someone waits no longer."""
        tenant = sequence.request.tenant
        account = self._contenders[tenant]
        account.waiting.remove(sequence)
        if not account.waiting:
            del self._contenders[tenant]
            self._last_to_leave = account
        self.num_sequences -= 1

    def start(self, sequence: Sequence) -> None:
        """Someone who waited runs."""
        self.remove(sequence)
        account = self._accounts[sequence.request.tenant]
        self._num_turns += 1
        account.turn = self._num_turns
        account.start(sequence)
        self.num_sequences += 1

    def stop(self, sequence: Sequence) -> None:
        """Someone who ran does so no longer."""
        self._accounts[sequence.request.tenant].stop(sequence)
        self.num_sequences -= 1

    def check(self, running: set[Sequence]) -> None:
        """The books agree with who runs."""
        counted = [account.running for account in self._accounts.values()]
        assert set().union(*counted) == running, "what somebody is given is not counted, or counted for nobody"
        assert self._contenders == {tenant: one for tenant, one in self._accounts.items() if one.waiting}
        assert self.num_sequences == len(running) + sum(1 for _ in self)
        for sequence in running:
            assert 0 <= sequence.prompt_served <= sequence.num_prompt_tokens

    def _least_received(self) -> int:
        """Where a tenant starts that comes to the line."""
        if self._contenders:
            return min(account.received for account in self._contenders.values())
        return self._last_to_leave.received if self._last_to_leave is not None else 0

    def _open_account(self, tenant: str) -> Account:
        if len(self._accounts) >= self._many_accounts:
            self._forget_tenants()
        account = self._accounts[tenant] = Account()
        return account

    def _forget_tenants(self) -> None:
        """Those that are gone and, were they to come back, would be lifted anyway."""
        least = self._least_received()
        self._accounts = {
            tenant: account
            for tenant, account in self._accounts.items()
            if not account.is_idle or account.served > least
        }
        # Looking through all of them each time their number has doubled costs a newcomer next to nothing.
        self._many_accounts = max(_FEW_ACCOUNTS, 2 * len(self._accounts))


def _rank(sequence: Sequence, served: int, turn: int) -> _Rank:
    return _Rank(sequence.scheduled_time is None, served, turn, sequence.order, sequence)


def _prompt_rest(sequence: Sequence, computed: int) -> int:
    """Prompt tokens that its tenant has not had yet, if this many are computed or cached."""
    return max(0, sequence.num_prompt_tokens - max(sequence.prompt_served, computed))


def _note_prompt(sequence: Sequence, computed: int) -> int:
    """The same, and no token of what is computed counts again."""
    rest = _prompt_rest(sequence, computed)
    sequence.prompt_served = sequence.num_prompt_tokens - rest
    return rest
