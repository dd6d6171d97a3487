"""How often somebody who has begun is used is learned from those who ended."""

import pytest

from archerfish.speculation.expected_drafts import FIRST_USES, Uses


def test_sequences_that_end_soon_are_expected_to_end_soon() -> None:
    uses = Uses()
    assert uses.expected(0) == FIRST_USES
    for _ in range(40):
        uses.used(0)
        uses.used(0)
        uses.start(0)
    assert uses.expected(0) == pytest.approx(2.0, abs=0.1)
    uses.used(0)
    assert uses.expected(0) == pytest.approx(1.0, abs=0.1)
    assert uses.expected(1) == pytest.approx(2.0, abs=0.1), "another row has all of them to come"


def test_the_next_use_is_always_expected() -> None:
    uses = Uses()
    for _ in range(100):
        uses.used(0)
    assert uses.expected(0) == 1.0


def test_if_nobody_begins_expectations_return() -> None:
    uses = Uses()
    for _ in range(40):
        uses.used(0)
        uses.start(0)
    for _ in range(400):
        uses.start(0)
    assert uses.expected(0) == pytest.approx(FIRST_USES, rel=0.01)
