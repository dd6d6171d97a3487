"""Rows that are asked in vain rest longer and longer, and wake at once when it pays."""

from itertools import pairwise

import pytest

from archerfish.speculation.backoff import ProposalBackoff


def begin(backoff: ProposalBackoff, step: int) -> bool:
    """Begin a step, and return whether any row may be drafted for."""
    backoff.begin_step(step)
    return not backoff.is_idle


def steps_asked(gains: set[int], num_steps: int) -> list[int]:
    """In which steps a single row is asked, where asking in some of them brings something."""
    backoff, asked = ProposalBackoff(), []
    backoff.start(0)
    for step in range(num_steps):
        if begin(backoff, step) and backoff.may_propose(0):
            asked.append(step)
            backoff.record(0, succeeded=step in gains)
        backoff.update_idle([0])
    return asked


def test_backoff_doubles_up_to_a_limit() -> None:
    asked = steps_asked(set(), 120)
    backoff = [later - earlier - 1 for earlier, later in pairwise(asked)]
    assert backoff == [0, 1, 2, 4, 8, 16, 16, 16, 16, 16]


def test_a_row_that_succeeds_has_no_backoff() -> None:
    asked = steps_asked(set(range(40, 60)), 60)
    first = next(step for step in asked if step >= 40)
    assert asked[asked.index(first) :] == list(range(first, 60))


def test_a_method_is_idle_only_while_no_row_may_propose() -> None:
    backoff = ProposalBackoff()
    for row in (0, 1):
        backoff.start(row)
    begin(backoff, 1)
    backoff.record(0, succeeded=False)
    backoff.record(1, succeeded=True)
    backoff.update_idle([0, 1])
    assert begin(backoff, 2) and backoff.needs_hint(0) and backoff.may_propose(0), "once is no habit"
    backoff.record(0, succeeded=False)
    backoff.update_idle([0, 1])
    assert begin(backoff, 3) and not backoff.may_propose(0) and backoff.may_propose(1)
    backoff.record(1, succeeded=False)
    backoff.update_idle([0])
    assert begin(backoff, 4) and backoff.may_propose(0)
    backoff.record(0, succeeded=False)
    backoff.update_idle([0])
    assert not begin(backoff, 5)
    backoff.start(7)
    assert begin(backoff, 6), "a new sequence wakes everybody"


def test_after_many_failures_new_sequences_begin_with_a_backoff() -> None:
    backoff = ProposalBackoff()
    begin(backoff, 1)
    for _ in range(32):
        backoff.record(0, succeeded=False)
    backoff.start(1)
    awake = [begin(backoff, step) and backoff.may_propose(1) for step in range(2, 10)]
    assert awake.index(True) == 4
    backoff.record(1, succeeded=True)
    backoff.start(2)
    assert backoff.may_propose(2)


def test_a_pause_is_for_all_rows() -> None:
    backoff = ProposalBackoff()
    begin(backoff, 1)
    backoff.pause()
    assert [begin(backoff, step) for step in range(2, 11)] == [False] * 7 + [True] * 2
    backoff.pause(is_brief=True)
    assert backoff.idle_until == 10 + 4, "more rows may be awake soon"
    begin(backoff, 14)
    backoff.pause()
    assert next(step for step in range(15, 40) if begin(backoff, step)) == 14 + 16, "longer and longer"
    backoff.record(0, succeeded=True)
    backoff.pause()
    assert backoff.idle_until == 30 + 8


def test_a_row_without_a_hint_backs_off_longer_and_longer() -> None:
    backoff, looked = ProposalBackoff(), []
    backoff.start(0)
    assert not backoff.needs_hint(0), "nothing is known yet"
    backoff.record(1, succeeded=False)
    backoff.start(0)
    assert backoff.needs_hint(0)
    for step in range(60):
        if begin(backoff, step) and backoff.may_propose(0):
            looked.append(step)
            backoff.record_no_hint(0, 64)
        backoff.update_idle([0])
    assert [later - earlier for earlier, later in pairwise(looked)] == [1, 2, 4, 8, 16, 16]
    begin(backoff, looked[-1] + 16)
    backoff.record(0, succeeded=False)
    assert not begin(backoff, looked[-1] + 17) or not backoff.may_propose(0)
    assert begin(backoff, looked[-1] + 18) and backoff.may_propose(0), "dozing makes no rest longer"
    backoff.record(0, succeeded=True)
    assert not backoff.needs_hint(0)


@pytest.mark.parametrize("num_rows", [1, 3, 64])
def test_rows_are_checked_the_less_often_the_more_there_are(num_rows: int) -> None:
    backoff, looked = ProposalBackoff(), []
    backoff.record(0, succeeded=False)
    for step in range(1, 100):
        if begin(backoff, step) and backoff.may_propose(0):
            looked.append(step)
            backoff.record_no_hint(0, num_rows)
        backoff.update_idle([0])
    assert looked[-1] - looked[-2] == min(num_rows, 16)
