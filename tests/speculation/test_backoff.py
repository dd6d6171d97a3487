"""Rows that are asked in vain rest longer and longer, and wake at once when it pays."""

from itertools import pairwise

import pytest

from archerfish.speculation.backoff import Rests


def steps_asked(gains: set[int], num_steps: int) -> list[int]:
    """In which steps a single row is asked, where asking in some of them brings something."""
    rests, asked = Rests(), []
    rests.start(0)
    for step in range(num_steps):
        if rests.begin(step) and rests.is_awake(0):
            asked.append(step)
            rests.went(0, gained=step in gains)
        rests.settle([0])
    return asked


def test_rests_double_up_to_a_limit() -> None:
    asked = steps_asked(set(), 120)
    rests = [later - earlier - 1 for earlier, later in pairwise(asked)]
    assert rests == [0, 1, 2, 4, 8, 16, 16, 16, 16, 16]


def test_who_gains_is_asked_again_at_once() -> None:
    asked = steps_asked(set(range(40, 60)), 60)
    first = next(step for step in asked if step >= 40)
    assert asked[asked.index(first) :] == list(range(first, 60))


def test_all_rest_only_while_nobody_is_awake() -> None:
    rests = Rests()
    for row in (0, 1):
        rests.start(row)
    rests.begin(1)
    rests.went(0, gained=False)
    rests.went(1, gained=True)
    rests.settle([0, 1])
    assert rests.begin(2) and rests.is_cold(0) and rests.is_awake(0), "once is no habit"
    rests.went(0, gained=False)
    rests.settle([0, 1])
    assert rests.begin(3) and not rests.is_awake(0) and rests.is_awake(1)
    rests.went(1, gained=False)
    rests.settle([0])
    assert rests.begin(4) and rests.is_awake(0)
    rests.went(0, gained=False)
    rests.settle([0])
    assert not rests.begin(5)
    rests.start(7)
    assert rests.begin(6), "a new sequence wakes everybody"


def test_who_comes_when_nobody_has_gained_for_long_begins_late() -> None:
    rests = Rests()
    rests.begin(1)
    for _ in range(32):
        rests.went(0, gained=False)
    rests.start(1)
    awake = [rests.begin(step) and rests.is_awake(1) for step in range(2, 10)]
    assert awake.index(True) == 4
    rests.went(1, gained=True)
    rests.start(2)
    assert rests.is_awake(2)


def test_a_pause_is_for_everybody() -> None:
    rests = Rests()
    rests.begin(1)
    rests.pause()
    assert [rests.begin(step) for step in range(2, 11)] == [False] * 7 + [True] * 2
    rests.pause(is_brief=True)
    assert rests.quiet_until == 10 + 4, "more rows may be awake soon"
    rests.begin(14)
    rests.pause()
    assert next(step for step in range(15, 40) if rests.begin(step)) == 14 + 16, "longer and longer"
    rests.went(0, gained=True)
    rests.pause()
    assert rests.quiet_until == 30 + 8


def test_a_cold_row_without_a_hint_dozes_longer_and_longer() -> None:
    rests, looked = Rests(), []
    rests.start(0)
    assert not rests.is_cold(0), "nothing is known yet"
    rests.went(1, gained=False)
    rests.start(0)
    assert rests.is_cold(0)
    for step in range(60):
        if rests.begin(step) and rests.is_awake(0):
            looked.append(step)
            rests.doze(0, 64)
        rests.settle([0])
    assert [later - earlier for earlier, later in pairwise(looked)] == [1, 2, 4, 8, 16, 16]
    rests.begin(looked[-1] + 16)
    rests.went(0, gained=False)
    assert not rests.begin(looked[-1] + 17) or not rests.is_awake(0)
    assert rests.begin(looked[-1] + 18) and rests.is_awake(0), "dozing makes no rest longer"
    rests.went(0, gained=True)
    assert not rests.is_cold(0)


@pytest.mark.parametrize("num_rows", [1, 3, 64])
def test_rows_are_looked_at_the_seldomer_the_more_there_are(num_rows: int) -> None:
    rests, looked = Rests(), []
    rests.went(0, gained=False)
    for step in range(1, 100):
        if rests.begin(step) and rests.is_awake(0):
            looked.append(step)
            rests.doze(0, num_rows)
        rests.settle([0])
    assert looked[-1] - looked[-2] == min(num_rows, 16)
