"""How often somebody who has begun is used is learned from those who ended."""

import pytest

from archerfish.speculation.expected_drafts import INITIAL_DRAFTS, ExpectedDrafts


def test_sequences_that_end_soon_are_expected_to_end_soon() -> None:
    uses = ExpectedDrafts()
    assert uses.expected(0) == INITIAL_DRAFTS
    for _ in range(40):
        uses.record(0)
        uses.record(0)
        uses.start(0)
    assert uses.expected(0) == pytest.approx(2.0, abs=0.1)
    uses.record(0)
    assert uses.expected(0) == pytest.approx(1.0, abs=0.1)
    assert uses.expected(1) == pytest.approx(2.0, abs=0.1), "another row has all of them to come"


def test_the_next_use_is_always_expected() -> None:
    uses = ExpectedDrafts()
    for _ in range(100):
        uses.record(0)
    assert uses.expected(0) == 1.0


def test_if_no_sequence_begins_expectations_return() -> None:
    uses = ExpectedDrafts()
    for _ in range(40):
        uses.record(0)
        uses.start(0)
    for _ in range(400):
        uses.start(0)
    assert uses.expected(0) == pytest.approx(INITIAL_DRAFTS, rel=0.01)
