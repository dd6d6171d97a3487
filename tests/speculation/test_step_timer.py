"""Steps that say something of others are learned from, and others are not."""

import pytest

from archerfish.scheduling.plan import Chunk, Plan
from archerfish.speculation.cost_model import Lengths
from archerfish.speculation.exploration_budget import Account
from archerfish.speculation.step_timer import Stopwatch


class Watched:
    """Steps of one row that take as long as they are said to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lengths, self.account = Lengths(), Account()
        self.watch = Stopwatch(self.lengths, self.account, lambda: self.now)

    def step(self, seconds: float, *, num_draft_tokens: int = 0, num_tokens: int = 1, drafting: float = 0.0) -> float:
        """What the one before it saved."""
        saved = self.watch.begin(
            Plan(0, [], [], [Chunk(0, 5, num_tokens, samples=True, max_draft_tokens=num_draft_tokens)])
        )
        if self.watch.is_asked:
            self.watch.came_to(1 + num_draft_tokens, 1 + num_draft_tokens, drafting, is_charged=True)
        self.now += seconds
        return saved

    def plain(self, seconds: float) -> None:
        for _ in range(200):
            self.step(seconds)


def test_a_step_with_guesses_that_follows_a_prompt_is_no_measure() -> None:
    watched = Watched()
    watched.step(5.0, num_tokens=7)
    watched.step(9.0, num_draft_tokens=3)
    watched.step(2.0, num_draft_tokens=3)
    watched.step(2.0, num_draft_tokens=3)
    assert watched.lengths.times.of(4) == 2.0


def test_what_is_done_once_for_a_sequence_is_left_out() -> None:
    watched = Watched()
    watched.step(1.0)
    for _ in range(2):
        watched.step(2.5, num_draft_tokens=1)
        watched.watch.leave_out(0.5)
    assert watched.lengths.times.of(2) == 2.0


def test_what_a_network_took_is_no_part_of_the_step() -> None:
    watched = Watched()
    for _ in range(3):
        watched.step(3.0, num_draft_tokens=1, drafting=1.0)
    assert watched.lengths.drafted.of(2) == 2.0 and not watched.lengths.times


def test_to_look_in_vain_is_paid_for_and_no_part_of_a_plain_step() -> None:
    watched = Watched()
    for _ in range(40):
        watched.step(1.25)
        watched.watch.looked(0.25, 1, in_vain=True)
    assert watched.lengths.plain.of(1) == pytest.approx(1.0)
    assert watched.account.wait() > 0


def test_guesses_are_paid_for_by_what_they_cost_more_and_tell_what_they_saved() -> None:
    watched = Watched()
    watched.plain(1.0)
    watched.step(3.0, num_draft_tokens=4)
    assert watched.step(3.0, num_draft_tokens=4) == pytest.approx(5 * 1.0 - 3.0)
    for _ in range(20):
        watched.step(3.0, num_draft_tokens=4)
    assert watched.account.wait() == pytest.approx((21 * 2.0 - 16.0) / 0.005, rel=0.05)
