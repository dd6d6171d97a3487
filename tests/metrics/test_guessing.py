"""What guessing came to, by hand."""

from dataclasses import replace

import pytest

from archerfish.metrics.guessing import GuessTotals, guessing_between, guessing_rows, positions_that_matter
from archerfish.metrics.steps import StepCounts
from archerfish.metrics.timing import RequestTiming

BEFORE = GuessTotals(10, 30, 12, (8, 4), 0.5, 1.0, 100, 4.0)
AFTER = GuessTotals(20, 50, 27, (15, 9, 1), 0.75, 3.0, 200, 6.0)


def test_figures_are_of_what_came_between() -> None:
    found = guessing_between(BEFORE, AFTER)
    assert found is not None
    assert (found.num_drafts, found.num_guesses, found.num_stood) == (10, 20, 15)
    assert (found.acceptance_length, found.acceptance, found.acceptance_at) == (2.5, 0.75, (0.7, 0.5, 0.1))
    assert (found.guess_seconds, found.saved_seconds) == (0.25, 2.0)
    # 100 tokens in 2 seconds, that would have taken 4.
    assert found.tokens_per_second_gained == 25.0
    rows = dict(guessing_rows(found))
    assert (
        rows["Tokens/s gained, estimated"] == "25.00" and rows["Acceptance by position, of all drafts"] == "70% 50% 10%"
    )


def test_positions_at_which_nothing_is_accepted_any_more_are_left_out() -> None:
    found = guessing_between(BEFORE, AFTER)
    assert found is not None
    long = replace(found, acceptance_at=(0.5, 0.0, 0.005, *[0.004] * 29))
    assert positions_that_matter(long) == (0.5, 0.0, 0.005)
    assert positions_that_matter(replace(found, acceptance_at=(0.0, 0.0))) == (0.0,)
    assert positions_that_matter(replace(found, acceptance_at=())) == ()
    many = dict(guessing_rows(replace(found, acceptance_at=(0.5,) * 32)))
    assert many["Acceptance by position, of all drafts"] == " ".join(["50%"] * 8) + " and 24 more"
    names = [name for name, _ in guessing_rows(found, with_positions=False)]
    assert names[:2] == ["Mean acceptance length", "Draft acceptance rate"]
    assert not any("position" in name for name in names)


def test_where_nothing_was_guessed_or_written_nothing_is_told() -> None:
    assert guessing_between(BEFORE, BEFORE._replace(num_generated_tokens=900, busy_seconds=9.0)) is None
    idle = guessing_between(BEFORE, AFTER._replace(busy_seconds=4.0))
    assert idle is not None and idle.tokens_per_second_gained is None
    assert "Tokens/s gained, estimated" not in dict(guessing_rows(idle))


def test_what_is_saved_and_what_is_lost_never_falls() -> None:
    counts = StepCounts()
    counts.record_guesses({0: 3}, [[5, 6]], 0.1, 0.5)
    counts.record_guesses({0: 3}, [[5]], 0.1, -0.25)
    assert (counts.saved_seconds, counts.lost_seconds) == (0.5, 0.25)
    assert (counts.num_drafts, counts.num_guesses, counts.num_stood, counts.stood_at) == (2, 6, 1, [1])


def test_of_a_request() -> None:
    timing = RequestTiming(0.0)
    assert timing.acceptance_length is None
    timing.record_guesses(4, 3)
    timing.record_guesses(2, 0)
    assert (timing.num_drafts, timing.num_draft_tokens, timing.num_accepted_tokens) == (2, 6, 3)
    assert timing.acceptance_length == pytest.approx(2.5)
