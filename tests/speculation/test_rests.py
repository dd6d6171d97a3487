"""Rows that are asked in vain rest longer and longer, and wake at once when it pays."""

from itertools import pairwise

from archerfish.speculation.rests import Rests


def steps_asked(gains: set[int], num_steps: int) -> list[int]:
    """In which steps a single row is asked, where asking in some of them brings something."""
    rests, asked = Rests(), []
    rests.start(0)
    for step in range(num_steps):
        if rests.begin() and rests.is_awake(0):
            asked.append(step)
            rests.went(0, gained=step in gains)
        rests.settle([0])
    return asked


def test_rests_double_up_to_a_limit() -> None:
    asked = steps_asked(set(), 120)
    rests = [later - earlier - 1 for earlier, later in pairwise(asked)]
    assert rests == [1, 2, 4, 8, 16, 16, 16, 16, 16]


def test_who_gains_is_asked_again_at_once() -> None:
    asked = steps_asked(set(range(40, 60)), 60)
    first = next(step for step in asked if step >= 40)
    assert asked[asked.index(first) :] == list(range(first, 60))


def test_all_rest_only_while_nobody_is_awake() -> None:
    rests = Rests()
    for row in (0, 1):
        rests.start(row)
    rests.begin()
    rests.went(0, gained=False)
    rests.went(1, gained=True)
    rests.settle([0, 1])
    assert rests.begin() and not rests.is_awake(0) and rests.is_awake(1)
    rests.went(1, gained=False)
    rests.settle([0, 1])
    assert rests.begin() and rests.is_awake(0), "its rest is over first"
    rests.went(0, gained=False)
    rests.settle([0])
    assert not rests.begin()
    rests.start(7)
    assert rests.begin(), "a new sequence wakes everybody"


def test_who_comes_when_nobody_has_gained_for_long_begins_late() -> None:
    rests = Rests()
    rests.begin()
    for _ in range(32):
        rests.went(0, gained=False)
    rests.start(1)
    awake = [rests.begin() and rests.is_awake(1) for _ in range(8)]
    assert awake.index(True) == 4
    rests.went(1, gained=True)
    rests.start(2)
    assert rests.is_awake(2)


def test_a_pause_is_for_everybody() -> None:
    rests = Rests()
    rests.begin()
    rests.pause()
    assert [rests.begin() for _ in range(9)] == [False] * 7 + [True] * 2
