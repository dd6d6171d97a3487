"""The lines that an engine fails with are found among many others, with few failures."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.jobs.bisection import isolate


class Engine:
    """Fails with any group that has a bad line, and has answered some of the others by then."""

    def __init__(self, bad: set[int], answers_before_it_fails: int = 0) -> None:
        self.bad = bad
        self.answered: set[int] = set()
        self.alone: list[int] = []
        self.num_failures = 0
        self.num_trials = 0
        self._head_start = answers_before_it_fails

    async def __call__(self, group: Sequence[int]) -> list[int]:
        self.num_trials += 1
        if not self.bad & set(group):
            self.answered |= set(group)
            return []
        self.num_failures += 1
        if len(group) == 1:
            self.alone.append(group[0])
        self.answered |= set([line for line in group if line not in self.bad][: self._head_start])
        return [line for line in group if line not in self.answered]


def search(count: int, engine: Engine) -> None:
    asyncio.run(isolate(range(count), engine))


@given(st.integers(1, 300), st.sets(st.integers(0, 299), max_size=8), st.integers(0, 5))
def test_every_line_is_answered_or_fails_alone_once(count: int, bad: set[int], head_start: int) -> None:
    bad = {line for line in bad if line < count}
    engine = Engine(bad, head_start)
    search(count, engine)
    assert engine.answered == set(range(count)) - bad
    assert sorted(engine.alone) == sorted(bad)


@pytest.mark.parametrize("bad", range(256))
def test_one_of_256_is_found_with_few_failures(bad: int) -> None:
    engine = Engine({bad})
    search(256, engine)
    assert engine.alone == [bad]
    # One for each half that it was tried in, and one alone.
    assert engine.num_failures == max(1, 8 - bad.bit_count() + bad % 2)
    assert engine.num_trials <= 17


def test_an_engine_that_failed_for_another_reason_costs_a_few_trials() -> None:
    engine = Engine(set())
    search(256, engine)
    assert (engine.num_failures, engine.num_trials) == (0, 9)
