"""Which steps are timed, and when somebody is asked for guesses."""

import pytest

from archerfish.execution.step.rows import Rows
from archerfish.request import SamplingParams
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart
from archerfish.speculation.controller import Speculator
from archerfish.speculation.method import Way
from archerfish.speculation.proposers.lookahead import LookaheadProposer

PROMPT = (3, 4, 5)
MANY = 64
"""Steps on end in which somebody is asked, after which it is seen what steps take without."""


class Bench:
    """A speculator with one row, told of steps that take as long as they are said to."""

    def __init__(self, method: str) -> None:
        rows = Rows(1, 512, 1, 512)
        self.now = 0.0
        self.speculator = Speculator([Way("lookahead", LookaheadProposer(), most=4)], method, rows, lambda: self.now)
        self._end = len(PROMPT)
        start = SequenceStart(
            row=0,
            tokens=PROMPT,
            num_prompt_tokens=len(PROMPT),
            blocks=((0,),),
            params=SamplingParams(),
            seed=1,
            stop_token_ids=(),
        )
        assert not self.speculator.skips()
        self.speculator.most([Chunk(0, 0, 3, samples=True)], [start], 64, False)
        self.speculator.take_in(Plan(0, [start], [], [Chunk(0, 0, 3, samples=True)]))

    def step(self, seconds: float, *, reads_prompt: bool = False, room: int = 64) -> int:
        """How many guesses it has room for."""
        chunk = Chunk(0, self._end, 1, samples=True)
        most = 0 if self.speculator.skips() else self.speculator.most([chunk], [], room, False)
        prompt = [Chunk(0, 0, 3, samples=False)] if reads_prompt else []
        if not self.speculator.is_quiet:
            guesses = 0 if reads_prompt else most
            self.speculator.take_in(Plan(0, [], [], [*prompt, chunk._replace(max_draft_tokens=guesses)]))
        self._end += 1
        self.now += seconds
        return most


def test_plain_steps_are_timed_that_follow_plain_ones() -> None:
    bench = Bench("off")
    bench.step(5.0)
    for _ in range(40):
        assert bench.step(1.0) == 0
    assert bench.speculator.lengths.plain.of(1) == 1.0
    bench.step(7.0, reads_prompt=True)
    bench.step(5.0)
    for _ in range(400):
        bench.step(1.0)
    assert bench.speculator.lengths.plain.of(1) == pytest.approx(1.0, rel=0.01)


def test_now_and_then_it_is_seen_what_steps_take_without_guesses() -> None:
    bench = Bench("lookahead")
    room = [bench.step(2.0) for _ in range(MANY)]
    assert all(room) and not bench.speculator.lengths.plain
    assert [bench.step(1.0) for _ in range(3)] == [0, 0, room[0]]
    assert bench.speculator.lengths.plain.of(1) == 1.0 < bench.speculator.lengths.times.of(1)


def test_nobody_is_looked_for_where_there_is_no_room() -> None:
    bench = Bench("lookahead")
    assert [bench.step(1.0, room=room) for room in (64, 0, 0, 64)] == [4, 0, 0, 4]
    bench.step(1.0, room=0)
    assert not bench.speculator.is_quiet, "it is yet to hear how long the last one took"
    bench.step(1.0, room=0)
    assert bench.speculator.is_quiet


def test_where_prompts_never_end_nobody_waits_for_that() -> None:
    bench = Bench("lookahead")
    for _ in range(MANY):
        bench.step(2.0)
    assert bench.step(9.0, reads_prompt=True) == 0
    assert bench.step(2.0) > 0
