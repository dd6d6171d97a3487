"""Limits of a key hold over any minute, waits are exact, tenants take turns, and the service takes on only so much."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.server.keys import Key
from archerfish.server.limits import Admission, RateLimits, TenantQueue
from tests.lanes import examples


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def limits() -> tuple[RateLimits, Clock]:
    clock = Clock()
    return RateLimits(clock), clock


# -- requests and tokens a minute -------------------------------------------------------------------------------------


def test_a_key_without_limits_is_always_admitted() -> None:
    rates, _ = limits()
    key = Key(name="free")
    assert all(rates.admit(key, 10**9) is None for _ in range(1000))
    rates.settle(key, 10**9, 5)
    assert rates.headers(key) == {}


def test_requests_are_admitted_at_once_up_to_the_limit_and_then_as_they_come_back() -> None:
    rates, clock = limits()
    key = Key(name="a", requests_per_minute=6)
    assert [rates.admit(key, 1) for _ in range(7)] == [None] * 6 + [10.0]
    clock.now += 4.0
    assert rates.admit(key, 1) == pytest.approx(6.0)
    clock.now += 6.0
    assert rates.admit(key, 1) is None
    assert rates.admit(key, 1) == pytest.approx(10.0)
    clock.now += 1e6
    assert [rates.admit(key, 1) is None for _ in range(7)] == [True] * 6 + [False], "no more than a minute's is kept"


def test_tokens_are_taken_by_estimate_and_settled_afterwards() -> None:
    rates, clock = limits()
    key = Key(name="a", tokens_per_minute=600)
    assert rates.admit(key, 500) is None
    assert rates.admit(key, 200) == pytest.approx(10.0)
    rates.settle(key, 500, 100)
    assert rates.admit(key, 200) is None
    rates.settle(key, 200, 450)
    assert rates.admit(key, 100) == pytest.approx(5.0), "fifty are left"
    clock.now += 5.0
    assert rates.admit(key, 100) is None


def test_settling_never_leaves_more_than_the_limit() -> None:
    rates, clock = limits()
    key = Key(name="a", tokens_per_minute=600)
    assert rates.admit(key, 600) is None
    clock.now += 60.0
    rates.settle(key, 600, 0)
    assert rates.headers(key)["x-ratelimit-remaining-tokens"] == "600"


def test_a_request_that_is_refused_takes_nothing_of_either() -> None:
    rates, _ = limits()
    key = Key(name="a", requests_per_minute=2, tokens_per_minute=100)
    assert rates.admit(key, 90) is None
    for _ in range(5):
        assert rates.admit(key, 50) is not None
    assert rates.admit(key, 10) is None
    assert rates.admit(key, 0) == pytest.approx(30.0), "now it is the requests"


def test_a_request_larger_than_the_limit_is_admitted_when_nothing_is_in_use_and_paid_off_later() -> None:
    rates, clock = limits()
    key = Key(name="a", tokens_per_minute=100)
    assert rates.admit(key, 30) is None
    assert rates.admit(key, 500) == pytest.approx(18.0)
    clock.now += 18.0
    assert rates.admit(key, 500) is None
    assert rates.admit(key, 1) == pytest.approx(401 * 0.6)
    rates.settle(key, 500, 120)
    assert rates.admit(key, 1) == pytest.approx(21 * 0.6)


def test_keys_do_not_share_their_limits() -> None:
    rates, _ = limits()
    one, other = Key(name="a", requests_per_minute=1), Key(name="b", requests_per_minute=1)
    assert rates.admit(one, 1) is None and rates.admit(other, 1) is None
    assert rates.admit(one, 1) is not None and rates.admit(other, 1) is not None


def test_a_limit_that_is_changed_holds_at_once_and_is_used_as_far_as_the_old_one_was() -> None:
    rates, _ = limits()
    assert rates.admit(Key(name="a", tokens_per_minute=100), 75) is None
    larger = Key(name="a", tokens_per_minute=1000)
    assert rates.headers(larger)["x-ratelimit-remaining-tokens"] == "250"
    assert rates.admit(larger, 250) is None


def test_work_without_limits_under_the_same_name_takes_nothing_and_gives_nothing_back() -> None:
    rates, _ = limits()
    key = Key(name="a", requests_per_minute=2, tokens_per_minute=100)
    assert rates.admit(key, 60) is None
    assert rates.admit(Key(name="a"), 10**6) is None
    rates.settle(Key(name="a"), 10**6, 5)
    assert rates.headers(Key(name="a")) == {}
    assert rates.headers(key)["x-ratelimit-remaining-tokens"] == "40"
    assert rates.admit(key, 40) is None and rates.admit(key, 0) is not None


def test_a_clock_that_goes_back_gives_nothing() -> None:
    rates, clock = limits()
    key = Key(name="a", requests_per_minute=1)
    assert rates.admit(key, 1) is None
    clock.now -= 100.0
    assert rates.admit(key, 1) == pytest.approx(60.0)


@examples(200)
@given(
    per_minute=st.integers(1, 5000),
    tokens_per_minute=st.integers(1, 10**7),
    asked=st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 30)), min_size=1, max_size=30),
)
def test_waiting_as_long_as_told_is_enough_and_no_minute_sees_more_than_twice_the_limit(
    per_minute: int, tokens_per_minute: int, asked: list[tuple[int, float]]
) -> None:
    rates, clock = limits()
    key = Key(name="a", requests_per_minute=per_minute, tokens_per_minute=tokens_per_minute)
    admitted: list[tuple[float, int]] = []
    for tokens, pause in asked:
        clock.now += pause
        wait = rates.admit(key, tokens)
        if wait is not None:
            assert wait > 0
            clock.now += wait
            assert rates.admit(key, tokens) is None
        admitted.append((clock.now, tokens))
    for start, _ in admitted:
        within = [tokens for time, tokens in admitted if start <= time < start + 60.0]
        assert len(within) <= 2 * per_minute
        # What was saved, what came meanwhile, and the last one, which may be larger than that by itself.
        assert sum(within) <= 2 * tokens_per_minute + max(within) + 1


@examples(200)
@given(limit=st.integers(1, 10**6), tokens=st.integers(1, 10**6), fraction=st.floats(0, 0.999))
def test_nobody_is_told_to_wait_longer_than_is_needed(limit: int, tokens: int, fraction: float) -> None:
    rates, clock = limits()
    key = Key(name="a", tokens_per_minute=limit)
    rates.admit(key, limit)
    wait = rates.admit(key, tokens)
    assert wait is not None
    clock.now += fraction * wait
    left = wait - fraction * wait
    if left > 1e-5:
        assert rates.admit(key, tokens) == pytest.approx(left, abs=1e-5)


def test_headers_tell_the_limits_and_what_is_left() -> None:
    rates, clock = limits()
    key = Key(name="a", requests_per_minute=60, tokens_per_minute=60_000)
    assert rates.admit(key, 90_000) is None
    assert rates.headers(key) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "60000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m30s",
    }
    clock.now += 0.98
    assert rates.headers(key)["x-ratelimit-reset-requests"] == "20ms"
    clock.now += 60.0
    assert rates.headers(key)["x-ratelimit-remaining-tokens"] == "30980"
    assert rates.headers(key)["x-ratelimit-reset-tokens"] == "29.02s"
    clock.now += 60.0
    assert rates.headers(key)["x-ratelimit-reset-tokens"] == "0ms"
    assert rates.headers(key)["x-ratelimit-remaining-requests"] == "60"
    requests_only = rates.headers(Key(name="b", requests_per_minute=5))
    assert set(requests_only) == {f"x-ratelimit-{what}-requests" for what in ("limit", "remaining", "reset")}


# -- the whole service ------------------------------------------------------------------------------------------------


def test_sequences_and_tokens_are_both_bounded() -> None:
    admission = Admission(max_sequences=3, max_tokens=100)
    assert admission.enter("a", 2, 50)
    assert not admission.enter("b", 2, 10), "too many sequences"
    assert not admission.enter("b", 1, 51), "too many tokens"
    assert (admission.num_sequences, admission.num_tokens) == (2, 50)
    assert admission.enter("b", 1, 50)
    assert not admission.enter("a", 1, 1)
    admission.leave("b", 1, 25)
    assert admission.enter("a", 1, 25)


def test_more_tokens_than_there_may_be_are_taken_when_there_are_no_others() -> None:
    admission = Admission(max_sequences=2, max_tokens=100)
    assert admission.enter("a", 1, 1)
    assert not admission.enter("a", 1, 500)
    admission.leave("a", 1, 1)
    assert not admission.enter("a", 3, 1), "more sequences never are"
    assert admission.enter("a", 1, 500)
    assert not admission.enter("a", 1, 1)
    admission.leave("a", 1, 500)
    assert admission.enter("a", 1, 1)


def test_a_tenant_leaves_its_share_to_others() -> None:
    admission = Admission(max_sequences=8, max_tokens=1000)
    assert not admission.enter("a", 5, 1, tenant_share=0.5)
    assert admission.enter("a", 3, 1, tenant_share=0.5) and admission.enter("a", 1, 1, tenant_share=0.5)
    assert not admission.enter("a", 1, 1, tenant_share=0.5)
    assert admission.enter("b", 4, 1, tenant_share=0.5)
    admission.leave("a", 2, 1)
    assert not admission.enter("b", 1, 1, tenant_share=0.5) and admission.enter("a", 2, 1, tenant_share=0.5)


def test_a_tenant_leaves_prompt_tokens_to_others() -> None:
    admission = Admission(max_sequences=8, max_tokens=1000)
    assert admission.enter("a", 1, 500, tenant_share=0.5)
    assert not admission.enter("a", 1, 1, tenant_share=0.5)
    assert admission.enter("b", 1, 500, tenant_share=0.5)
    admission.leave("a", 1, 500)
    assert admission.enter("a", 1, 5000, tenant_share=0.5), "a body larger than the share, when the tenant has no other"
    admission.leave("b", 1, 500)
    assert admission.enter("b", 1, 500, tenant_share=0.5), "it takes no more than its share from others"


def test_leaving_what_never_entered_is_noticed() -> None:
    admission = Admission(max_sequences=2, max_tokens=100)
    assert admission.enter("a", 1, 10)
    with pytest.raises(AssertionError):
        admission.leave("a", 1, 11)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(1, 4), st.integers(0, 60)), max_size=60))
def test_it_never_holds_more_than_it_may(moves: list[tuple[bool, str, int, int]]) -> None:
    admission = Admission(max_sequences=5, max_tokens=100)
    inside: list[tuple[str, int, int]] = []
    for enters, *one in moves:
        if enters:
            if admission.enter(*one, tenant_share=0.8):  # type: ignore[call-arg]
                inside.append(tuple(one))  # type: ignore[arg-type]
        elif inside:
            admission.leave(*inside.pop(0))
        assert admission.num_sequences == sum(sequences for _, sequences, _ in inside) <= 5
        assert admission.num_tokens == sum(tokens for _, _, tokens in inside) <= 100
        for tenant in "ab":
            assert sum(sequences for name, sequences, _ in inside if name == tenant) <= 4


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
