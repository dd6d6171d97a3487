"""Requests have their methods, answers end where they must, and draft tokens of a batch are worth what they save."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.scheduling.plan import Chunk, Plan
from archerfish.speculation.method import SpeculationMethod
from archerfish.speculation.sequences import SpeculatedSequences, token_values
from tests.speculation.scripted import ScriptedProposer, sequence_start


class Bench:
    def __init__(self, default_method: str = "auto") -> None:
        self.suffix = SpeculationMethod("suffix", ScriptedProposer(), max_draft_tokens=8)
        self.lookahead = SpeculationMethod("lookahead", ScriptedProposer(), max_draft_tokens=8, all_or_nothing=True)
        self.sequences = SpeculatedSequences([self.suffix, self.lookahead], default_method)

    def start(self, row: int, tokens: list[int], max_tokens: int | None = None, method: str | None = None) -> None:
        self.sequences.start(sequence_start(row, tokens, max_tokens, method))


def test_requests_use_the_method_they_choose() -> None:
    bench = Bench()
    bench.start(0, [1])
    bench.start(1, [1], method="lookahead")
    bench.start(2, [1], method="off")
    sequences = bench.sequences
    assert sequences.methods_in_use([0, 2]) == [bench.suffix], "auto drafts nothing that has other uses"
    assert sequences.methods_in_use([0, 1]) == [bench.suffix, bench.lookahead]
    assert sequences.methods_in_use([2]) == []
    assert [sequences.may_use(bench.suffix, row) for row in range(3)] == [True, False, False]
    assert [sequences.may_use(bench.lookahead, row) for row in range(3)] == [False, True, False]
    assert sequences.has_chosen(bench.lookahead, 1) and not sequences.has_chosen(bench.suffix, 0)


def test_answers_are_expected_to_be_as_long_as_others_were_but_no_longer_than_requested() -> None:
    bench = Bench()
    bench.start(0, [1, 2], max_tokens=10)
    assert bench.sequences.num_left(0, 2) == 10 and bench.sequences.num_left(0, 9) == 3
    bench.start(0, [1, 2])
    before = bench.sequences.num_left(0, 2)
    for _ in range(60):
        bench.suffix.rows[0].num_given = 2 + 20
        bench.start(0, [1, 2])
    assert bench.sequences.num_left(0, 2) == pytest.approx(20.0, rel=0.05) != before


@pytest.mark.parametrize("others_wait", [False, True])
def test_where_requests_wait_for_a_row_all_tokens_count_alike(others_wait: bool) -> None:
    bench = Bench()
    bench.start(0, [1], max_tokens=50)
    bench.start(1, [1], max_tokens=5)
    plan = Plan(0, [], [], [Chunk(row, 1, 1, samples=True) for row in range(2)], 4, others_wait)
    values = bench.sequences.token_values(plan, {0: 3.0, 1: 3.0})
    assert values[0] >= 1.0 and values[1] == (1.0 if others_wait else 0.0), "the short answer ends before the long one"


# -- what tokens are worth --------------------------------------------------------------------------------------------


def test_where_all_can_be_made_faster_all_count_in_full() -> None:
    assert token_values([60.0] * 3, [2.0] * 3) == [1.0] * 3


def test_where_one_of_the_longest_cannot_nothing_is_saved() -> None:
    assert token_values([60.0, 60.0], [9.0, 1.0]) == [0.0, 0.0]
    assert token_values([60.0, 60.0], [9.0, 1.2]) == [0.0, 0.0], "hardly faster is not faster"


def test_only_those_count_that_would_be_the_last() -> None:
    assert token_values([60.0, 10.0, 10.0], [3.0, 1.0, 1.0]) == [3.0, 0.0, 0.0]


def test_one_alone_counts_in_full() -> None:
    assert token_values([7.0], [1.0]) == [1.0] and token_values([], []) == []


@given(st.lists(st.tuples(st.integers(1, 99), st.sampled_from([1.0, 1.5, 2.0, 7.0])), min_size=2, max_size=6))
def test_tokens_that_have_to_be_written_ahead_are_worth_the_steps_that_they_save(rows: list[tuple[int, float]]) -> None:
    left = [float(num_left) for num_left, _ in rows]
    values = token_values(left, [speed for _, speed in rows])
    num_steps = max(num_left / speed for num_left, speed in rows)
    worth = sum(value * max(0.0, num_left - num_steps) for value, num_left in zip(values, left, strict=True))
    assert worth / len(rows) == pytest.approx(max(left) - num_steps)


# -- what was saved ---------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 3), min_size=20, max_size=20), min_size=1, max_size=4))
def test_steps_are_saved_by_which_all_are_ahead(accepted: list[list[int]]) -> None:
    """Rows that begin together and write as much: against the steps that were run in the end."""
    bench, length, total, num_steps = Bench(), 20, 0.0, 0
    for row in range(len(accepted)):
        bench.start(row, [1])
    written = [0] * len(accepted)
    while running := [row for row, number in enumerate(written) if number < length]:
        for row in running:
            written[row] += 1 + accepted[row][num_steps]
            bench.sequences.record_accepted(row, accepted[row][num_steps])
        num_steps += 1
        total += bench.sequences.take_saved_steps(running, others_wait=False)
        assert total >= max(0, min(written[row] for row in running) - num_steps)
    assert length - num_steps <= total <= length - num_steps + 3


def test_a_row_that_begins_later_takes_nothing_back() -> None:
    bench = Bench()
    bench.start(0, [1])
    bench.sequences.record_accepted(0, 6)
    assert bench.sequences.take_saved_steps([0], others_wait=False) == 6
    bench.start(1, [1])
    assert bench.sequences.take_saved_steps([0, 1], others_wait=False) == 0
    bench.sequences.record_accepted(0, 8)
    bench.sequences.record_accepted(1, 2)
    assert bench.sequences.take_saved_steps([0, 1], others_wait=False) == 2, "the new one is two steps ahead"
    assert bench.sequences.take_saved_steps([0], others_wait=False) == 6, "the rest counts when it has ended"


def test_where_requests_wait_each_token_saves_its_share_of_a_step() -> None:
    bench = Bench()
    bench.start(0, [1])
    bench.start(1, [1])
    bench.sequences.record_accepted(0, 3)
    assert bench.sequences.take_saved_steps([0, 1], others_wait=True) == 1.5
