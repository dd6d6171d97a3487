"""When steps are timed, when methods look for hints, and how many draft tokens are published."""

import pytest

from archerfish.execution.step.rows import Rows
from archerfish.request import SamplingParams
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart
from archerfish.speculation.controller import SpeculationController
from archerfish.speculation.method import SpeculationMethod
from archerfish.speculation.proposers.lookahead import LookaheadProposer

PROMPT = (3, 4, 5)
NUM_SPECULATIVE = 64
"""Consecutive steps with drafts, after which plain ones are timed."""


class Bench:
    """A controller with one row, whose steps take as long as they are said to."""

    def __init__(self, method: str) -> None:
        rows = Rows(1, 512, 1, 512)
        self.now = 0.0
        methods = [SpeculationMethod("lookahead", LookaheadProposer(), max_draft_tokens=4)]
        self.controller = SpeculationController(methods, method, rows, lambda: self.now)
        self._length = len(PROMPT)
        start = SequenceStart(
            row=0,
            tokens=PROMPT,
            num_prompt_tokens=len(PROMPT),
            blocks=((0,),),
            params=SamplingParams(max_tokens=None),
            seed=1,
            stop_token_ids=(),
        )
        prompt = Plan(0, [start], [], [Chunk(0, 0, 3, samples=True)])
        self.controller.begin_step(prompt)
        self.controller.end_step(prompt, [[1]])

    def step(self, seconds: float, *, reads_prompt: bool = False, has_budget: bool = True) -> int:
        """Run a step, and return how many draft tokens its chunk may have."""
        count = self.controller.max_draft_tokens if has_budget and not reads_prompt else 0
        chunks = [Chunk(0, self._length, 1, samples=True, max_draft_tokens=count)]
        if reads_prompt:
            chunks.insert(0, Chunk(0, 0, 3, samples=False))
        plan = Plan(0, [], [], chunks, count)
        self.controller.begin_step(plan)
        self.now += seconds
        self.controller.end_step(plan, [[], [1]] if reads_prompt else [[1]])
        self._length += 1
        return count


def test_plain_steps_are_timed_that_follow_plain_ones() -> None:
    bench = Bench("off")
    bench.step(5.0)
    for _ in range(40):
        assert bench.step(1.0) == 0
    assert bench.controller.cost_model.plain.seconds(1) == 1.0
    bench.step(7.0, reads_prompt=True)
    bench.step(5.0)
    for _ in range(400):
        bench.step(1.0)
    assert bench.controller.cost_model.plain.seconds(1) == pytest.approx(1.0, rel=0.01)


def test_plain_steps_are_timed_now_and_then() -> None:
    bench = Bench("lookahead")
    room = [bench.step(2.0) for _ in range(NUM_SPECULATIVE)]
    assert all(room) and not bench.controller.cost_model.plain
    assert [bench.step(1.0) for _ in range(3)] == [0, 0, room[0]]
    assert bench.controller.cost_model.plain.seconds(1) == 1.0 < bench.controller.cost_model.speculative.seconds(1)


def test_a_step_without_budget_for_drafts_is_idle() -> None:
    bench = Bench("lookahead")
    assert [bench.step(1.0, has_budget=has_budget) for has_budget in (True, False, False, True)] == [4, 0, 0, 4]
    bench.step(1.0, has_budget=False)
    assert not bench.controller.is_idle, "the latency of the last one is yet to be recorded"
    bench.step(1.0, has_budget=False)
    assert bench.controller.is_idle


def test_where_prompts_never_end_no_plain_step_is_awaited() -> None:
    bench = Bench("lookahead")
    for _ in range(NUM_SPECULATIVE):
        bench.step(2.0)
    assert bench.step(9.0, reads_prompt=True) == 0
    assert bench.step(2.0) > 0
