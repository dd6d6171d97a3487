"""Whatever comes of it: what is spent in vain stays within bounds, and nobody waits for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.speculation.exploration_budget import ExplorationBudget

FIRST, MOST, AT_ONCE, ALLOWED = 16.0, 64.0, 5.0, 0.005


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.0, 10.0)), max_size=60))
def test_no_more_is_lost_than_is_allowed(asked: list[tuple[float, float]]) -> None:
    """Each is asked as soon as the budget allows it, costs something and saves something."""
    budget, num_steps, balance = ExplorationBudget(), 0, 0.0
    for cost, saving in asked:
        wait = budget.steps_to_wait()
        budget.pass_steps(wait)
        assert budget.steps_to_wait() == 0, "who waits may go on"
        num_steps += wait
        budget.debit(cost)
        budget.credit(saving)
        balance += saving - min(cost, AT_ONCE)
        assert balance >= -(FIRST + AT_ONCE + ALLOWED * num_steps) - 1e-6
        assert budget.steps_to_wait() <= AT_ONCE / ALLOWED


def test_time_that_passes_can_be_spent() -> None:
    budget = ExplorationBudget()
    for _ in range(4):
        budget.debit(AT_ONCE)
    wait = budget.steps_to_wait()
    assert wait > 0
    budget.pass_steps(wait - 1)
    assert budget.steps_to_wait() == 1
    budget.pass_steps(1)
    assert budget.steps_to_wait() == 0


def test_the_token_price_includes_what_was_spent_on_drafts() -> None:
    budget = ExplorationBudget()
    assert budget.token_price == 1.0
    for _ in range(1000):
        budget.pass_steps(1)
        budget.debit(1.0)
        budget.credit(3.0)
    assert budget.token_price == pytest.approx((1 + 1) / (1 + 3), rel=0.05)
    budget.pass_steps(1000)
    assert budget.token_price == pytest.approx(1.0, rel=0.01)
    budget.debit(4.0)
    assert budget.token_price == 1.0, "never more than without guesses"


def test_only_so_much_is_saved_up() -> None:
    budget = ExplorationBudget()
    budget.credit(1e9)
    for _ in range(int(MOST)):
        assert budget.steps_to_wait() == 0
        budget.debit(1.0)
    budget.debit(0.1)
    assert budget.steps_to_wait() == pytest.approx(0.1 / ALLOWED, abs=1)
