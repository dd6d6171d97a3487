"""Whatever comes of it: what is spent in vain stays within bounds, and nobody waits for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.speculation.exploration_budget import Account

FIRST, MOST, AT_ONCE, ALLOWED = 16.0, 64.0, 5.0, 0.005


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.0, 10.0)), max_size=60))
def test_no_more_is_lost_than_is_allowed(asked: list[tuple[float, float]]) -> None:
    """Each is asked as soon as the account allows it, costs something and saves something."""
    account, num_steps, balance = Account(), 0, 0.0
    for cost, saving in asked:
        wait = account.wait()
        account.passed(wait)
        assert account.wait() == 0, "who waits may go on"
        num_steps += wait
        account.spent(cost)
        account.saved(saving)
        balance += saving - min(cost, AT_ONCE)
        assert balance >= -(FIRST + AT_ONCE + ALLOWED * num_steps) - 1e-6
        assert account.wait() <= AT_ONCE / ALLOWED


def test_time_that_passes_can_be_spent() -> None:
    account = Account()
    for _ in range(4):
        account.spent(AT_ONCE)
    wait = account.wait()
    assert wait > 0
    account.passed(wait - 1)
    assert account.wait() == 1
    account.passed(1)
    assert account.wait() == 0


def test_tokens_cost_what_steps_took_lately_with_what_was_spent_on_guesses() -> None:
    account = Account()
    assert account.price == 1.0
    for _ in range(1000):
        account.passed(1)
        account.spent(1.0)
        account.saved(3.0)
    assert account.price == pytest.approx((1 + 1) / (1 + 3), rel=0.05)
    account.passed(1000)
    assert account.price == pytest.approx(1.0, rel=0.01)
    account.spent(4.0)
    assert account.price == 1.0, "never more than without guesses"


def test_only_so_much_is_saved_up() -> None:
    account = Account()
    account.saved(1e9)
    for _ in range(int(MOST)):
        assert account.wait() == 0
        account.spent(1.0)
    account.spent(0.1)
    assert account.wait() == pytest.approx(0.1 / ALLOWED, abs=1)
