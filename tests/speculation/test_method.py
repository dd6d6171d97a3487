"""A method learns how often its draft tokens are accepted, and leaves sequences alone for which it has none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.speculation.constants import CONSTANTS
from archerfish.speculation.method import AcceptanceCounts, MethodRow, SpeculationMethod
from archerfish.speculation.step_latency import StepLatencyModel
from tests.speculation.scripted import ScriptedProposer


def method_of(num_rows: int) -> SpeculationMethod:
    method = SpeculationMethod("suffix", ScriptedProposer(), max_draft_tokens=8)
    for row in range(num_rows):
        method.rows[row] = MethodRow()
    return method


def test_the_rate_is_that_of_the_row_and_of_all_before_it_is_known() -> None:
    method = method_of(3)
    assert method.acceptance_rate(0) == CONSTANTS.acceptance_rate
    for _ in range(300):
        method.record_verified(0, 4, 4)
        method.record_verified(1, 4, 0)
    assert method.acceptance_rate(0) > 0.9 and method.acceptance_rate(1) < 0.25
    assert method.acceptance_rate(1) < method.acceptance_rate(2) < method.acceptance_rate(0)


def test_draft_tokens_after_the_first_wrong_one_were_not_verified() -> None:
    method = method_of(1)
    method.record_verified(0, 8, 2)
    assert method.rows[0].counts == AcceptanceCounts(3, 2)


def test_a_bad_estimate_expires_while_nothing_is_verified() -> None:
    method = method_of(1)
    for _ in range(100):
        method.record_verified(0, 4, 0)
    worst = method.acceptance_rate(0)
    for step in range(1500):
        method.record_unverified(0, step)
    assert worst < 0.1 and method.acceptance_rate(0) == pytest.approx(CONSTANTS.acceptance_rate, abs=0.05)


def test_looks_in_vain_are_repeated_less_and_less_often() -> None:
    method, step, steps = method_of(1), 0, []
    for _ in range(8):
        method.record_unverified(0, step)
        step = method.rows[0].until
        steps.append(step)
    assert steps == [1, 3, 7, 15, 31, 47, 63, 79]
    method.record_verified(0, 2, 1)
    method.record_unverified(0, step)
    assert method.rows[0].until == step + 1, "what was accepted ends the backoff"


def test_a_row_has_gained_if_its_last_draft_did() -> None:
    method = method_of(1)
    method.record_verified(0, 2, 1)
    assert method.rows[0].has_gained
    method.record_verified(0, 2, 0)
    assert not method.rows[0].has_gained
    method.record_verified(0, 2, 2)
    method.record_unverified(0, 5)
    assert not method.rows[0].has_gained


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), max_size=50))
def test_rates_are_probabilities(drafts: list[tuple[int, int]]) -> None:
    method = method_of(1)
    for depth, accepted in drafts:
        method.record_verified(0, depth, min(depth, accepted))
        assert 0 < method.acceptance_rate(0) < 1


def test_a_copy_knows_what_was_learned_but_no_rows() -> None:
    method = method_of(1)
    for _ in range(50):
        method.record_verified(0, 4, 4)
    copy = method.fresh_copy(StepLatencyModel())
    assert copy.counts == method.counts and copy.counts is not method.counts and not copy.rows
