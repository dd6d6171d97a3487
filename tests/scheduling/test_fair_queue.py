"""Tenants that compete are served alike; one with few requests need not wait for one with many."""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.kvcache.tables import BlockTable
from archerfish.request import Request
from archerfish.scheduling.plan import Plan
from archerfish.scheduling.policy import WholeBatches
from archerfish.scheduling.sequence import Sequence, SequenceFacts
from archerfish.scheduling.waiting_queue import ANSWER_WEIGHT, PROMPT_WEIGHT, FairQueue
from tests.lanes import examples, full
from tests.scheduling.steps import BATCH, ONLINE, Stepper, request, stepper


@dataclass(frozen=True)
class Size:
    prompt: int
    answer: int

    @property
    def service(self) -> int:
        return PROMPT_WEIGHT * self.prompt + ANSWER_WEIGHT * self.answer


@dataclass
class Market:
    """A scheduler and tenants that send one request after another; counts what each of them was served."""

    steps: Stepper
    sizes: dict[str, Size]
    max_in_flight: int = 1
    served: Counter[str] = field(default_factory=Counter)
    started: list[str] = field(default_factory=list)
    """Tenants in the order of their starts, resumptions aside."""
    _numbers: Iterator[int] = field(default_factory=count)
    _computed: Counter[str] = field(default_factory=Counter)
    """By request, as far as its prompt was ever computed."""
    _in_flight: deque[Plan] = field(default_factory=deque)

    def send(self, tenant: str, num_requests: int = 1) -> None:
        size = self.sizes[tenant]
        for number in (next(self._numbers) for _ in range(num_requests)):
            self.steps.add(
                request(
                    f"{tenant} {number}",
                    [number + 1000, *range(size.prompt - 1)],
                    tenant=tenant,
                    arrival=float(number),
                    max_tokens=size.answer,
                )
            )

    def fill_queue(self, num_waiting: int) -> None:
        """Let every tenant have so many requests that wait."""
        waiting = Counter(sequence.request.tenant for sequence in self.steps.scheduler._sequences.waiting)
        for tenant in self.sizes:
            self.send(tenant, max(0, num_waiting - waiting[tenant]))

    def step(self) -> None:
        while len(self._in_flight) < self.max_in_flight and self.steps.scheduler.can_plan_ahead():
            plan = self.steps.plan()
            if not plan.chunks:
                break
            self._count_prompts(plan)
            self._in_flight.append(plan)
        for event in self.steps.commit(self._in_flight.popleft()):
            self.served[tenant_of(event.request_id)] += ANSWER_WEIGHT * len(event.token_ids)

    def _count_prompts(self, plan: Plan) -> None:
        for chunk in plan.chunks:
            request_id = self.steps.rows[chunk.row]
            tenant = tenant_of(request_id)
            if chunk.start == self._computed[request_id] == 0:
                self.started.append(tenant)
            end = min(chunk.start + chunk.length, self.sizes[tenant].prompt)
            self.served[tenant] += PROMPT_WEIGHT * max(0, end - self._computed[request_id])
            self._computed[request_id] = max(self._computed[request_id], end)


def tenant_of(request_id: str) -> str:
    return request_id.split()[0]


def market(sizes: dict[str, Size], **engine: int) -> Market:
    defaults = {"rows": 4, "step_tokens": 64, "blocks": 400, "max_model_len": 128}
    return Market(stepper(**{**defaults, **engine}), sizes)  # type: ignore[arg-type]


# -- tenants that always want more ------------------------------------------------------------------------------------

sizes = st.builds(Size, st.integers(1, 40), st.integers(1, 20))


@examples(150)
@given(
    sizes=st.tuples(sizes, sizes),
    rows=st.integers(1, 6),
    step_tokens=st.integers(2, 80),
    spare_blocks=st.sampled_from([0, 4, 12, 200]),
    max_in_flight=st.integers(1, 3),
)
def test_two_tenants_that_always_want_more_are_never_far_apart(
    sizes: tuple[Size, Size], rows: int, step_tokens: int, spare_blocks: int, max_in_flight: int
) -> None:
    a, b = sizes
    house = market({"a": a, "b": b}, rows=rows, step_tokens=step_tokens, blocks=32 + spare_blocks)
    house.max_in_flight = max_in_flight
    # A tenant is admitted only when it is not ahead. What it gains on the other is that prompt, the answers that its
    # sequences on the rows still have to write, and a prompt of the other that counts and is not computed yet.
    largest = max(PROMPT_WEIGHT * a.prompt, PROMPT_WEIGHT * b.prompt)
    bound = 2 * largest + rows * max(ANSWER_WEIGHT * a.answer, ANSWER_WEIGHT * b.answer)
    for _ in range(300):
        house.fill_queue(rows + 1)
        house.step()
        assert abs(house.served["a"] - house.served["b"]) <= bound
    assert min(house.served.values()) > 0


@pytest.mark.parametrize("blocks", [40, *full(400)])
def test_tenants_of_all_sizes_get_equal_shares_in_the_long_run(blocks: int) -> None:
    tenants = {"chat": Size(10, 20), "reader": Size(100, 2), "writer": Size(2, 60), "tiny": Size(1, 1)}
    house = market(tenants, rows=8, blocks=blocks)
    for _ in range(1000):
        house.fill_queue(20)
        house.step()
    assert (house.steps.scheduler.num_preemptions > 0) == (blocks == 40)
    assert max(house.served.values()) < 1.1 * min(house.served.values())


def test_a_tenant_of_many_small_requests_does_not_get_more_than_one_of_few_large_ones() -> None:
    house = market({"many": Size(4, 4), "few": Size(40, 40)})
    for _ in range(800):
        house.fill_queue(20)
        house.step()
    starts = Counter(house.started)
    assert 9 < starts["many"] / starts["few"] < 11


# -- a tenant that wants little ---------------------------------------------------------------------------------------


@examples(60)
@given(
    light=sizes,
    heavy=sizes,
    backlog=st.integers(10, 60),
    rows=st.integers(1, 6),
    pauses=st.lists(st.integers(1, 40), min_size=1, max_size=4),
)
def test_a_light_tenant_is_next_however_long_the_others_queue_is(
    light: Size, heavy: Size, backlog: int, rows: int, pauses: list[int]
) -> None:
    house = market({"light": light, "heavy": heavy}, rows=rows)
    house.send("heavy", backlog)
    count = 0
    """Of the light tenant: what the other had when it last came, and its own service since."""
    for pause in pauses:
        for _ in range(pause):
            house.step()
            house.send("heavy", backlog - house.steps.scheduler.num_waiting)
        while house.served["heavy"] <= count:  # Until then it is not the one that was served less.
            house.step()
            house.send("heavy", backlog - house.steps.scheduler.num_waiting)
        count = max(count, house.served["heavy"]) + light.service
        house.started.clear()
        house.send("light")
        while "light" not in house.started:
            house.step()
        assert house.started[0] == "light"


def test_a_request_of_a_light_tenant_waits_for_a_row_and_not_for_the_queue() -> None:
    house = market({"heavy": Size(8, 10), "light": Size(8, 10)}, rows=2)
    house.send("heavy", 1000)
    house.step()
    house.send("light")
    num_steps = 0
    while "light" not in house.started:
        house.step()
        num_steps += 1
    assert num_steps <= 11


def test_who_stayed_away_has_saved_up_nothing() -> None:
    house = market({"always": Size(20, 10), "back": Size(20, 10)}, rows=2)
    house.send("always", 300)
    for _ in range(500):
        house.step()
    house.send("back", 300)
    house.started.clear()
    for _ in range(200):
        house.step()
    assert house.started[0] == "back"
    starts = Counter(house.started)
    assert abs(starts["always"] - starts["back"]) <= 2


def test_a_tenant_that_stayed_away_while_none_waited_has_saved_up_nothing_either() -> None:
    house = market({"alone": Size(20, 10), "back": Size(20, 10)}, rows=2)
    house.send("back")
    for _ in range(200):
        house.send("alone")  # Ends before the next one comes: the line is empty most of the time, but never idle.
        for _ in range(6):
            house.step()
    house.send("back", 100)
    house.send("alone", 100)
    house.started.clear()
    for _ in range(200):
        house.step()
    starts = Counter(house.started)
    assert abs(starts["alone"] - starts["back"]) <= 3


def test_running_answers_count_though_nothing_of_the_tenant_was_admitted_lately() -> None:
    house = market({"writer": Size(4, 100), "reader": Size(30, 1)}, rows=4)
    house.send("writer", 4)
    house.step()
    house.send("writer", 9)
    house.send("reader", 9)
    while len(house.started) < 4 + 9:
        house.step()
    assert house.started[4:] == ["reader"] * 9


# -- what is counted --------------------------------------------------------------------------------------------------


def test_tokens_from_the_cache_count_nothing() -> None:
    steps = stepper(rows=1, caching=True, blocks=64)
    shared = list(range(40))
    steps.add(request("warm", shared, max_tokens=1))
    steps.step()
    for number in range(4):
        steps.add(request(f"cached {number}", [*shared, number], tenant="cached", max_tokens=1))
        steps.add(request(f"fresh {number}", 8, tenant="fresh", max_tokens=1))
    seen = [name.split()[0] for _ in range(8) for name in steps.step()]
    # Forty-one tokens each, of which one is computed, against eight.
    assert seen == ["cached", "fresh", "cached", "cached", "cached", "fresh", "fresh", "fresh"]


def test_a_prompt_that_is_cancelled_counts_as_far_as_it_was_computed() -> None:
    steps = stepper(rows=1, step_tokens=8)
    steps.add(request("long", 60, tenant="a", max_tokens=1))
    steps.step()
    steps.add(request("other", 20, tenant="b", arrival=1.0, max_tokens=1))
    steps.add(*(request(f"{tenant} next", 4, tenant=tenant, arrival=2.0, max_tokens=1) for tenant in "ab"))
    steps.scheduler.cancel("long")
    seen = []
    while steps.scheduler.has_work:
        seen += [name for name in steps.step() if name not in seen]
    assert seen == ["other", "a next", "b next"]


@pytest.mark.parametrize("caching", [False, True])
def test_what_is_computed_again_after_a_preemption_counts_once(caching: bool) -> None:
    steps = stepper(blocks=8, max_model_len=32, caching=caching)
    steps.add(
        request("old", 15, tenant="a", max_tokens=10), request("young", 15, tenant="b", arrival=1.0, max_tokens=10)
    )
    line = steps.scheduler._sequences.waiting._queues[ONLINE][0]
    steps.finish()
    assert steps.scheduler.num_preemptions
    # Preempted after two tokens, the second is alone in line and starts from where it was.
    assert {tenant: account.served for tenant, account in line._counters.items()} == {
        tenant: Size(15, 10).service for tenant in "ab"
    }


def test_draws_count_when_they_are_known_and_not_if_they_are_dropped() -> None:
    steps = stepper()
    steps.add(request("a", 5, tenant="a", max_tokens=9), request("b", 5, tenant="b", max_tokens=9))
    first = steps.plan()
    accounts = steps.scheduler._sequences.waiting._queues[ONLINE][0]._counters

    def served() -> list[int]:
        return [account.served for account in accounts.values()]

    # The prompts count at once; as received only when they are computed.
    assert served() == [5 * PROMPT_WEIGHT] * 2
    second = steps.plan()
    assert served() == [5 * PROMPT_WEIGHT] * 2
    assert [account.tokens_received for account in accounts.values()] == [0, 0]
    steps.commit(first)
    assert [account.tokens_received for account in accounts.values()] == served()
    assert served() == [5 * PROMPT_WEIGHT + ANSWER_WEIGHT] * 2
    steps.scheduler.cancel("a")
    steps.commit(second)
    assert served() == [5 * PROMPT_WEIGHT + ANSWER_WEIGHT, 5 * PROMPT_WEIGHT + 2 * ANSWER_WEIGHT]


# -- with classes, priorities, siblings and batches -----------------------------------------------------------------


def test_class_and_priority_go_before_fairness() -> None:
    steps = stepper(rows=1)
    steps.add(*(request(f"first {number}", 3, tenant="a", max_tokens=1) for number in range(3)))
    steps.add(request("less urgent", 3, tenant="b", priority=1, max_tokens=1))
    steps.add(request("batch", 3, tenant="c", kind=BATCH, priority=-1, max_tokens=1))
    seen = [name for _ in range(5) for name in steps.step()]
    assert seen == ["first 0", "first 1", "first 2", "less urgent", "batch"]


def test_service_of_one_class_does_not_count_in_another() -> None:
    steps = stepper(rows=1)
    steps.add(*(request(f"batch {number}", 30, tenant="a", kind=BATCH, max_tokens=1) for number in range(5)))
    for _ in range(4):
        steps.step()
    steps.add(*(request(f"a {number}", 3, tenant="a", arrival=1.0, max_tokens=1) for number in range(3)))
    steps.add(*(request(f"b {number}", 3, tenant="b", arrival=2.0, max_tokens=1) for number in range(3)))
    assert [name for _ in range(6) for name in steps.step()] == ["a 0", "b 0", "a 1", "b 1", "a 2", "b 2"]


def test_several_answers_to_one_prompt_count_like_several_requests() -> None:
    house = market({"several": Size(4, 8), "single": Size(4, 8)}, rows=2)
    house.steps.add(request("several 0", [1, 2, 3, 4], tenant="several", n=20, max_tokens=8))
    house.send("single", 40)
    for _ in range(60):
        house.step()
    assert abs(house.served["several"] - house.served["single"]) <= 3 * Size(4, 8).service


def test_a_preempted_sequence_goes_on_before_any_tenant_starts_another() -> None:
    steps = stepper(blocks=8, max_model_len=32)
    steps.add(
        request("old", 15, tenant="a", max_tokens=10), request("young", 15, tenant="a", arrival=1.0, max_tokens=10)
    )
    while not steps.scheduler.num_preemptions:
        steps.step()
    steps.add(*(request(f"other {number}", 15, tenant="b", arrival=2.0, max_tokens=2) for number in range(3)))
    seen: list[str] = []
    while steps.scheduler.has_work:
        seen += [name for name in steps.step() if name not in seen]
    assert seen == ["old", "young", "other 0", "other 1", "other 2"]


def test_the_last_to_come_is_preempted_whichever_tenant_was_served_more() -> None:
    steps = stepper(blocks=8, max_model_len=32)
    steps.add(request("old", 15, tenant="heavy", max_tokens=10))
    steps.step()
    steps.add(request("young", 15, tenant="light", arrival=1.0, max_tokens=10))
    while not steps.scheduler.num_preemptions:
        lengths = steps.step()
    assert set(lengths) == {"old"}


def test_a_whole_batch_has_places_for_every_tenant() -> None:
    steps = stepper(rows=4, policy=WholeBatches(4, None))
    steps.scheduler.expects_more = True
    steps.add(*(request(f"heavy {number}", 6, tenant="heavy", arrival=number) for number in range(9)))
    steps.add(*(request(f"light {number}", 6, tenant="light", arrival=20.0 + number) for number in range(2)))
    assert list(steps.step()) == ["heavy 0", "light 0", "heavy 1", "light 1"]


# -- the line alone ---------------------------------------------------------------------------------------------------


def sequence(one: Request, number: int = 0) -> Sequence:
    return Sequence(one, number, 0, 0, SequenceFacts(4, 64, ()))


@given(entries=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 3)), max_size=14))
def test_a_queue_is_listed_in_the_order_in_which_it_is_then_served(entries: list[tuple[str, int, int]]) -> None:
    line = FairQueue()
    for number, (tenant, prompt, arrival) in enumerate(entries):
        line.add(sequence(request(str(number), prompt, tenant=tenant, arrival=arrival), number))
    listed = list(line)
    assert len(listed) == len(entries)
    for expected in listed[: len(listed) // 2]:
        # Computed afresh for each, or once for all of them: it is the same order.
        first = next(line.turns(lambda _: True))
        assert first is expected
        line.start(first)
    turns = line.turns(lambda _: True)
    for expected in listed[len(listed) // 2 :]:
        first = next(turns)
        assert first is expected
        line.start(first)
    assert next(turns, None) is None and not list(line)


def test_who_may_not_join_does_not_hold_up_other_tenants_nor_its_own() -> None:
    line = FairQueue()
    for number, tenant in enumerate("aab"):
        line.add(sequence(request(str(number), 3, tenant=tenant, arrival=number), number))
    seen = []
    for one in line.turns(lambda one: one.request.request_id != "0"):
        seen.append(one.request.request_id)
        line.start(one)
    assert seen == ["1", "2"]


def test_tenants_that_will_not_come_back_are_forgotten() -> None:
    line = FairQueue()
    line.add(sequence(request("always", 3, tenant="always")))
    for number in range(10_000):
        one = sequence(request(str(number), 3, tenant=str(number)), number + 1)
        line.add(one)
        line.remove(one)
    assert len(line._counters) <= 32


def test_a_tenant_that_is_ahead_is_remembered_while_it_is_away() -> None:
    steps = stepper(rows=1)
    steps.add(*(request(f"a {number}", 20, tenant="a", arrival=number, max_tokens=1) for number in range(2)))
    steps.add(*(request(f"b {number}", 2, tenant="b", arrival=9.0, max_tokens=1) for number in range(8)))
    seen = [name for _ in range(3) for name in steps.step()]
    assert seen == ["a 0", "b 0", "b 1"]
    steps.scheduler.cancel("a 1")
    steps.add(request("a again", 2, tenant="a", arrival=1.0))
    assert [name for _ in range(3) for name in steps.step()] == ["b 2", "b 3", "b 4"]


def test_it_is_remembered_even_when_many_others_come_and_go() -> None:
    line = FairQueue()
    ahead = sequence(request("ahead", 50, tenant="ahead"))
    line.add(ahead)
    line.add(sequence(request("behind", 3, tenant="behind"), 1))
    line.start(ahead)
    ahead.table = BlockTable([], capacity=52)
    line.stop(ahead)
    for number in range(100):
        one = sequence(request(str(number), 3, tenant=str(number)), number + 2)
        line.add(one)
        line.remove(one)
    line.add(sequence(request("again", 3, tenant="ahead"), 1000))
    line.add(sequence(request("new", 3, tenant="new"), 2000))
    assert [one.request.request_id for one in line] == ["behind", "new", "again"]


def test_a_newcomer_is_level_with_the_least_served_of_those_in_line() -> None:
    line = FairQueue()
    for number, tenant in enumerate("aabb"):
        line.add(sequence(request(str(number), {"a": 3, "b": 40}[tenant], tenant=tenant), number))
    for expected, one in zip(("0", "2"), line.turns(lambda _: True), strict=False):
        assert one.request.request_id == expected
        line.start(one)
        one.computed = one.num_prompt_tokens
    # Tenant a has had 3 tokens and b 40: c comes between them.
    for number in (4, 5):
        line.add(sequence(request(str(number), 30, tenant="c"), number))
    assert [one.request.request_id for one in line] == ["4", "1", "5", "3"]
