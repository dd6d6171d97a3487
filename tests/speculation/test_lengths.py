"""Guesses are checked where they pay: against every other choice, by the same estimates."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archerfish.speculation.lengths import Lengths, Step


def lengths_of(seconds: list[float], trusts: list[float]) -> Lengths:
    """That has seen steps of 1, 2, ... tokens, and guesses of rows 0, 1, ... that stood so often."""
    lengths = Lengths()
    for num_tokens, one in enumerate(seconds, 1):
        lengths.times.record(num_tokens, one)
    for row, trust in enumerate(trusts):
        for turn in range(40):
            lengths.checked(row, 1, int((turn + 1) * trust) - int(turn * trust))
    return lengths


def saved(lengths: Lengths, step: Step, chosen: tuple[int, ...]) -> float:
    """Seconds that a choice saves, with what estimates are trusted by."""
    expected = sum(lengths.trust(row) ** depth for row, count in enumerate(chosen) for depth in range(1, count + 1))
    worth = lengths.times.of(step.num_drawn) / step.num_drawn
    added = lengths.times.of(step.num_tokens + sum(chosen)) - lengths.times.of(step.num_tokens)
    return expected * worth - 1.1 * added


@settings(deadline=None, max_examples=60)
@given(
    trusts=st.lists(st.sampled_from([0.05, 0.3, 0.6, 0.9, 1.0]), min_size=1, max_size=3),
    slope=st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]),
    knee=st.integers(1, 8),
    most=st.lists(st.integers(0, 4), min_size=3, max_size=3),
)
def test_no_other_choice_saves_more(trusts: list[float], slope: float, knee: int, most: list[int]) -> None:
    seconds = [1.0 + slope * max(0, num_tokens - knee) for num_tokens in range(1, 17)]
    lengths = lengths_of(seconds, trusts)
    step = Step(len(trusts), len(trusts))
    rows = list(range(len(trusts)))
    chosen = lengths.choose(step, rows, most[: len(trusts)])
    best = max(saved(lengths, step, one) for one in product(*(range(count + 1) for count in most[: len(trusts)])))
    assert saved(lengths, step, tuple(chosen)) == pytest.approx(max(best, 0.0), abs=1e-9)


def test_where_tokens_cost_as_much_as_steps_nothing_is_checked() -> None:
    lengths = lengths_of([0.1 * num_tokens for num_tokens in range(1, 17)], [0.9])
    assert lengths.choose(Step(1, 1), [0], [8]) == [0]
    assert not lengths.may_pay(1)


def test_where_tokens_cost_nothing_all_are() -> None:
    lengths = lengths_of([1.0] * 16, [0.5])
    assert lengths.choose(Step(1, 1), [0], [8]) == [8]
    assert lengths.may_pay(1)


def test_a_row_is_trusted_by_how_its_own_guesses_went() -> None:
    lengths = lengths_of([1.0], [0.9, 0.1])
    assert lengths.trust(0) > 0.8 and lengths.trust(1) < 0.3
    assert lengths.trust(1) < lengths.trust(7) < lengths.trust(0), "of others nothing but the mean is known"
    lengths.start(0)
    assert lengths.trust(0) == lengths.trust(7), "another sequence has the row"


def test_nobody_is_mistrusted_for_ever() -> None:
    lengths = lengths_of([1.0, 1.3], [0.0])
    assert lengths.choose(Step(1, 1), [0], [1]) == [0]
    before = lengths.trust(0)
    for _ in range(2000):
        lengths.pass_by([0])
    assert lengths.trust(0) > before
    assert lengths.choose(Step(1, 1), [0], [1]) == [1]


def test_before_anything_was_measured_one_guess_is_tried() -> None:
    assert Lengths().choose(Step(2, 2), [0, 1], [5, 0]) == [1, 0]


def test_what_never_paid_is_tried_again_now_and_then() -> None:
    lengths = lengths_of([1.0, 2.5], [1.0])
    answers = [lengths.may_pay(1) for _ in range(300)]
    assert answers.index(True) == 256, "what was measured is forgotten"
    lengths.times.record(2, 2.5)
    assert not lengths.may_pay(1)
    for _ in range(300):
        lengths.times.record(2, 1.1)
    assert lengths.may_pay(1)
