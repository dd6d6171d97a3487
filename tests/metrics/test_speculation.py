"""What guessing came to, by hand."""

from dataclasses import replace

import pytest

from archerfish.metrics.speculation import SpeculationTotals, speculation_between, speculation_rows, visible_positions
from archerfish.metrics.state import StepCounts
from archerfish.metrics.timing import RequestTiming

BEFORE = SpeculationTotals(10, 30, 12, (8, 4), 0.5, 1.0, 100, 4.0)
AFTER = SpeculationTotals(20, 50, 27, (15, 9, 1), 0.75, 3.0, 200, 6.0)


def test_figures_are_of_what_came_between() -> None:
    found = speculation_between(BEFORE, AFTER)
    assert found is not None
    assert (found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens) == (10, 20, 15)
    assert (found.acceptance_length, found.acceptance_rate, found.acceptance_per_position) == (
        2.5,
        0.75,
        (0.7, 0.5, 0.1),
    )
    assert (found.drafting_seconds, found.saved_seconds) == (0.25, 2.0)
    # 100 tokens in 2 seconds, that would have taken 4.
    assert found.tokens_per_second_gained == 25.0
    rows = dict(speculation_rows(found))
    assert (
        rows["Tokens/s gained, estimated"] == "25.00" and rows["Acceptance by position, of all drafts"] == "70% 50% 10%"
    )


def test_positions_at_which_nothing_is_accepted_any_more_are_left_out() -> None:
    found = speculation_between(BEFORE, AFTER)
    assert found is not None
    long = replace(found, acceptance_per_position=(0.5, 0.0, 0.005, *[0.004] * 29))
    assert visible_positions(long) == (0.5, 0.0, 0.005)
    assert visible_positions(replace(found, acceptance_per_position=(0.0, 0.0))) == (0.0,)
    assert visible_positions(replace(found, acceptance_per_position=())) == ()
    many = dict(speculation_rows(replace(found, acceptance_per_position=(0.5,) * 32)))
    assert many["Acceptance by position, of all drafts"] == " ".join(["50%"] * 8) + " and 24 more"
    names = [name for name, _ in speculation_rows(found, with_positions=False)]
    assert names[:2] == ["Mean acceptance length", "Draft acceptance rate"]
    assert not any("position" in name for name in names)


def test_nothing_is_reported_where_nothing_was_drafted_or_generated() -> None:
    assert speculation_between(BEFORE, BEFORE._replace(num_generated_tokens=900, busy_seconds=9.0)) is None
    idle = speculation_between(BEFORE, AFTER._replace(busy_seconds=4.0))
    assert idle is not None and idle.tokens_per_second_gained is None
    assert "Tokens/s gained, estimated" not in dict(speculation_rows(idle))


def test_what_is_saved_and_what_is_lost_never_falls() -> None:
    counts = StepCounts()
    counts.record_drafts({0: 3}, [[5, 6]], 0.1, 0.5)
    counts.record_drafts({0: 3}, [[5]], 0.1, -0.25)
    assert (counts.saved_seconds, counts.lost_seconds) == (0.5, 0.25)
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens, counts.accepted_per_position) == (
        2,
        6,
        1,
        [1],
    )


def test_of_a_request() -> None:
    timing = RequestTiming(0.0)
    assert timing.acceptance_length is None
    timing.record_drafts(4, 3)
    timing.record_drafts(2, 0)
    assert (timing.num_drafts, timing.num_draft_tokens, timing.num_accepted_tokens) == (2, 6, 3)
    assert timing.acceptance_length == pytest.approx(2.5)
