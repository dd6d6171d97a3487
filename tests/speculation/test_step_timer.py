"""Steps that say something of others are learned from, and others are not."""

import pytest

from archerfish.scheduling.plan import Chunk, Plan
from archerfish.speculation.cost_model import SpeculationCostModel
from archerfish.speculation.exploration_budget import ExplorationBudget
from archerfish.speculation.step_timer import StepTimer


class Watched:
    """Steps of one row that take as long as they are said to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cost_model, self.budget = SpeculationCostModel(), ExplorationBudget()
        self.watch = StepTimer(self.cost_model, self.budget, lambda: self.now)

    def step(self, seconds: float, *, num_draft_tokens: int = 0, num_tokens: int = 1, drafting: float = 0.0) -> float:
        """What the one before it saved."""
        saved = self.watch.begin_step(
            Plan(0, [], [], [Chunk(0, 5, num_tokens, samples=True, max_draft_tokens=num_draft_tokens)])
        )
        if self.watch.is_speculative:
            self.watch.record_drafts(1 + num_draft_tokens, 1 + num_draft_tokens, drafting, is_charged=True)
        self.now += seconds
        return saved

    def plain(self, seconds: float) -> None:
        for _ in range(200):
            self.step(seconds)


def test_a_speculative_step_after_a_prompt_is_not_representative() -> None:
    watched = Watched()
    watched.step(5.0, num_tokens=7)
    watched.step(9.0, num_draft_tokens=3)
    watched.step(2.0, num_draft_tokens=3)
    watched.step(2.0, num_draft_tokens=3)
    assert watched.cost_model.speculative.seconds(4) == 2.0


def test_what_is_done_once_for_a_sequence_is_left_out() -> None:
    watched = Watched()
    watched.step(1.0)
    for _ in range(2):
        watched.step(2.5, num_draft_tokens=1)
        watched.watch.exclude(0.5)
    assert watched.cost_model.speculative.seconds(2) == 2.0


def test_drafter_passes_are_no_part_of_the_step() -> None:
    watched = Watched()
    for _ in range(3):
        watched.step(3.0, num_draft_tokens=1, drafting=1.0)
    assert watched.cost_model.drafter_steps.seconds(2) == 2.0 and not watched.cost_model.speculative


def test_to_look_in_vain_is_paid_for_and_no_part_of_a_plain_step() -> None:
    watched = Watched()
    for _ in range(40):
        watched.step(1.25)
        watched.watch.record_lookup(0.25, 1, in_vain=True)
    assert watched.cost_model.plain.seconds(1) == pytest.approx(1.0)
    assert watched.budget.steps_to_wait() > 0


def test_drafts_are_debited_what_they_cost_and_report_what_they_saved() -> None:
    watched = Watched()
    watched.plain(1.0)
    watched.step(3.0, num_draft_tokens=4)
    assert watched.step(3.0, num_draft_tokens=4) == pytest.approx(5 * 1.0 - 3.0)
    for _ in range(20):
        watched.step(3.0, num_draft_tokens=4)
    assert watched.budget.steps_to_wait() == pytest.approx((21 * 2.0 - 16.0) / 0.005, rel=0.05)
