"""Sequences whose steps take a simulated time: the controller drafts where that pays, and only there."""

import random
from collections.abc import Callable, Sequence
from math import inf

import pytest

from archerfish.execution.step.rows import Rows
from archerfish.scheduling.plan import Chunk, Plan
from archerfish.speculation.constants import CONSTANTS
from archerfish.speculation.controller import SpeculationController
from archerfish.speculation.draft import ROOT, Draft
from archerfish.speculation.method import SpeculationMethod
from archerfish.speculation.proposer import DraftRequest
from archerfish.speculation.verification.verifier import VerifiedTokens
from tests.speculation.scripted import ScriptedProposer, sequence_start

LOOKUP = 0.05
"""Time that a proposal takes for each row; a plain step takes 1."""


def cheap(num_tokens: int) -> float:
    return 1.0 + 0.05 * (num_tokens - 1)


def dear(num_tokens: int) -> float:
    return float(num_tokens)


class Engine:
    """A controller whose steps take as long as they are said to, and whose rows accept drafts with some probability."""

    def __init__(
        self,
        latency: Callable[[int], float] = cheap,
        num_rows: int = 1,
        num_speculative_tokens: int | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self.latency = latency
        self.acceptance = [1.0] * num_rows
        self.now = 0.0
        self.num_drafts = self.num_lookups = 0
        self.proposer = ScriptedProposer(Draft(tuple(range(8)), tuple(range(ROOT, 7))))
        propose = self.proposer.propose

        def timed(requests: Sequence[DraftRequest]) -> list[Draft]:
            self.now += LOOKUP * len(requests)
            self.num_lookups += len(requests)
            return propose(requests)

        self.proposer.propose = timed  # type: ignore[method-assign]
        rows = Rows(num_rows, 1 << 18, 1, 1 << 18)
        methods = [SpeculationMethod("suffix", self.proposer, max_draft_tokens=8)]
        self.controller = SpeculationController(methods, "auto", rows, lambda: self.now, num_speculative_tokens)
        self._rng = random.Random(0)
        self._rows = rows
        self._max_tokens = max_tokens
        self.lengths = [3] * num_rows
        self.start(range(num_rows))

    @property
    def budget(self) -> float:
        return self.controller.budgets["suffix"]

    def start(self, rows: Sequence[int], method: str | None = None) -> None:
        """Compute the prompts of new sequences."""
        starts = [sequence_start(row, [5, 6, 7], self._max_tokens, method) for row in rows]
        for start in starts:
            self._rows.start(start)
            self.lengths[start.row] = 3
        self._run(starts, [Chunk(row, 0, 3, samples=True) for row in rows])

    def step(self, reads_prompt: bool = False) -> None:
        count = self.controller.max_draft_tokens
        chunks = [
            Chunk(row, length - 1, 1, samples=True, max_draft_tokens=count) for row, length in enumerate(self.lengths)
        ]
        if reads_prompt:
            chunks.append(Chunk(len(self.lengths), 0, 4, samples=False))
        self._run([], chunks, count)

    def _run(self, starts: list, chunks: list[Chunk], count: int = 0) -> None:  # type: ignore[type-arg]
        plan = Plan(0, starts, [], chunks, count)
        drafts = self.controller.propose(plan, lambda chunk: True)
        self.now += self.latency(plan.num_tokens + sum(map(len, drafts or [])))
        verified = [self._verify(chunk, len(drafts[index]) if drafts else 0) for index, chunk in enumerate(chunks)]
        for chunk, result in zip(chunks, verified, strict=True):
            if chunk.samples:
                self.lengths[chunk.row] += len(result.tokens)
        self.num_drafts += sum(map(bool, drafts or []))
        self.controller.record(plan, [result.tokens for result in verified], verified if drafts else None)

    def _verify(self, chunk: Chunk, num_draft_tokens: int) -> VerifiedTokens:
        if not chunk.samples:
            return VerifiedTokens([], [], [])
        accepted = 0
        while accepted < num_draft_tokens and self._rng.random() < self.acceptance[chunk.row]:
            accepted += 1
        return VerifiedTokens(list(range(accepted)), [1] * (accepted + 1), [1] * (num_draft_tokens + 1))

    def run(self, num_steps: int) -> float:
        """Return how many times faster these steps wrote than plain ones."""
        before, num_before = self.now, sum(self.lengths)
        for _ in range(num_steps):
            self.step()
        num_written = (sum(self.lengths) - num_before) / len(self.lengths)
        return num_written * self.latency(len(self.lengths)) / (self.now - before)


def test_drafts_that_are_accepted_are_verified_in_almost_every_step() -> None:
    engine = Engine()
    engine.run(64)
    assert engine.run(500) > 5.0


@pytest.mark.parametrize("num_rows", [1, 4])
def test_drafts_that_never_pay_cost_hardly_anything(num_rows: int) -> None:
    engine = Engine(num_rows=num_rows)
    engine.acceptance = [0.0] * num_rows
    engine.run(400)
    assert engine.run(4000) > 0.99
    assert 0 < engine.num_lookups < 1000 * num_rows, "it is tried now and then"


def test_drafts_that_cost_as_much_as_they_save_are_not_verified() -> None:
    engine = Engine(dear)
    engine.acceptance = [0.8]
    engine.run(400)
    assert engine.run(4000) > 0.985
    assert engine.num_drafts < 200


def test_a_row_that_begins_to_copy_is_drafted_for_soon() -> None:
    engine = Engine()
    engine.acceptance = [0.0]
    engine.run(3000)
    engine.acceptance = [1.0]
    most = int(CONSTANTS.max_debt / CONSTANTS.share_in_vain)
    engine.run(most)
    assert engine.run(200) > 4.0


def test_what_was_lost_at_once_is_forgiven_in_time() -> None:
    """Steps that take long by accident must not stop speculation for ever."""
    engine = Engine(lambda num_tokens: 40.0 * cheap(num_tokens) if num_tokens > 1 else 1.0)
    engine.run(2000)
    engine.latency = cheap
    engine.run(8000)
    assert engine.run(200) > 4.0


def test_a_machine_that_slows_down_for_a_while_changes_nothing() -> None:
    engine = Engine()
    engine.run(300)
    engine.latency = lambda num_tokens: 2.5 * cheap(num_tokens)
    assert engine.run(500) > 4.0
    engine.latency = cheap
    assert engine.run(500) > 4.0


def test_where_one_of_a_batch_cannot_be_sped_up_others_are_not_drafted_for() -> None:
    engine = Engine(num_rows=2, max_tokens=30_000)
    engine.acceptance = [1.0, 0.0]
    engine.run(600)
    before, lookups = engine.num_drafts, engine.num_lookups
    engine.run(1500)
    assert engine.num_drafts - before < 150 and engine.num_lookups - lookups < 400
    engine.acceptance = [1.0, 1.0]
    engine.run(800)
    assert engine.run(200) > 3.0


def test_a_fixed_length_is_verified_in_every_step() -> None:
    engine = Engine(dear, num_speculative_tokens=3)
    engine.acceptance = [0.0]
    engine.run(200)
    assert engine.num_drafts >= 200 and engine.controller.max_draft_tokens == 3


def test_a_new_sequence_may_draft_at_once_if_there_is_budget() -> None:
    engine = Engine()
    engine.proposer.draft = Draft((), ())
    engine.run(200)
    assert engine.budget > 0 and engine.controller.max_draft_tokens == 0, "the row backs off"
    engine.start([0])
    assert engine.controller.max_draft_tokens > 0


def test_where_all_requests_are_without_speculation_nothing_is_drafted() -> None:
    engine = Engine(num_rows=2)
    engine.start([0, 1], "off")
    engine.num_lookups = 0
    assert engine.run(100) == pytest.approx(1.0) and engine.num_lookups == 0
    engine.start([1])
    engine.run(100)
    assert engine.num_lookups > 0


def test_a_request_without_speculation_keeps_no_method_looking() -> None:
    engine = Engine(num_rows=2)
    engine.proposer.draft = Draft((), ())
    engine.start([1], "off")
    published = []
    for _ in range(400):
        engine.step()
        published.append(engine.controller.max_draft_tokens)
    assert published.count(0) > 350, "the other row has backed off"


def test_a_prompt_in_a_step_is_not_charged_to_drafts() -> None:
    """What steps of thousands of tokens take is not known."""
    engine = Engine()
    engine.run(300)
    before = engine.budget
    for length in (900, 500, 1300):
        chunks = [
            Chunk(0, engine.lengths[0] - 1, 1, samples=True, max_draft_tokens=8),
            Chunk(1, 0, length, samples=False),
        ]
        engine._run([], chunks, 8)
        engine.run(1)
    assert engine.budget == pytest.approx(before, abs=2.0)


def test_rows_without_a_hint_are_not_looked_up() -> None:
    engine = Engine()
    engine.acceptance = [0.0]
    engine.run(100)
    engine.proposer.has_hint = lambda row: False  # type: ignore[method-assign]
    engine.num_lookups = 0
    engine.run(2000)
    assert engine.num_lookups == 0
    engine.proposer.has_hint = lambda row: True  # type: ignore[method-assign]
    engine.acceptance = [1.0]
    engine.run(400)
    assert engine.run(100) > 4.0


def test_plain_steps_are_measured_between_those_with_drafts() -> None:
    engine = Engine()
    engine.run(4 * CONSTANTS.plain_interval)
    assert engine.controller.cost_model.plain.seconds(1) == 1.0 < engine.controller.cost_model.speculative.seconds(2)


def test_where_prompts_never_end_drafts_wait_for_no_plain_step() -> None:
    engine = Engine()
    for _ in range(10 * CONSTANTS.plain_interval):
        engine.step(reads_prompt=True)
    assert engine.num_drafts > 9 * CONSTANTS.plain_interval


def test_steps_that_take_no_drafts_cost_no_clock() -> None:
    engine, reads = Engine(), 0

    def clock() -> float:
        nonlocal reads
        reads += 1
        return engine.now

    engine.proposer.draft = Draft((), ())
    engine.run(2000)
    engine.controller._clock = clock
    engine.run(800)
    assert reads < 800


def test_the_budget_stays_within_its_bounds() -> None:
    engine, lowest, highest = Engine(), inf, -inf
    for acceptance in (1.0, 0.0, 0.5) * 2:
        engine.acceptance = [acceptance]
        for _ in range(1000):
            engine.step()
            lowest, highest = min(lowest, engine.budget), max(highest, engine.budget)
    assert -CONSTANTS.max_debt <= lowest < 0 < highest <= CONSTANTS.max_budget


def test_what_batches_take_says_nothing_of_a_single_sequence() -> None:
    """Draft tokens of four sequences are much slower than as many of one."""
    engine = Engine(lambda num_tokens: cheap(num_tokens) if num_tokens <= 9 else 9.0, num_rows=4)
    engine.run(500)
    engine.lengths = engine.lengths[:1]
    engine.start([0])
    engine.run(300)
    assert engine.run(200) > 4.0
