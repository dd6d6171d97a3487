"""Proposers are given what they use, requests have their methods, and answers end where they must."""

import pytest

from archerfish.execution.step.rows import Rows
from archerfish.speculation.method import SpeculationMethod
from archerfish.speculation.speculated_rows import SpeculatedRows
from tests.speculation.scripted import ScriptedProposer, sequence_start


class Bench:
    def __init__(self, default_method: str = "auto") -> None:
        self.rows = Rows(4, 64, 1, 16)
        self.copies, self.windows = ScriptedProposer(), ScriptedProposer()
        self.suffix = SpeculationMethod("suffix", self.copies, max_draft_tokens=8)
        self.lookahead = SpeculationMethod("lookahead", self.windows, max_draft_tokens=8, all_or_nothing=True)
        self.excluded = 0.0
        methods = [self.suffix, self.lookahead]
        self.sequences = SpeculatedRows(methods, default_method, self.rows, lambda: 0.0, self._exclude)

    def _exclude(self, seconds: float) -> None:
        self.excluded += seconds

    def start(self, row: int, tokens: list[int], max_tokens: int | None = None, method: str | None = None) -> None:
        start = sequence_start(row, tokens, max_tokens, method)
        self.rows.start(start)
        self.sequences.start(start)


def test_a_proposer_is_given_each_token_once_when_it_is_first_used() -> None:
    bench = Bench()
    bench.start(1, [5, 6, 7])
    assert not bench.copies.given
    bench.rows.write(1, 3, [8, 9])
    bench.sequences.feed(bench.suffix, 1, 4)
    bench.sequences.feed(bench.suffix, 1, 4)
    assert bench.copies.given == {1: [5, 6, 7, 8]} and not bench.windows.given
    bench.sequences.feed(bench.suffix, 1, 5)
    assert bench.copies.given == {1: [5, 6, 7, 8, 9]}


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


def test_answers_are_expected_to_be_as_long_as_others_were_but_no_longer_than_requested() -> None:
    bench = Bench()
    bench.start(0, [1, 2], max_tokens=10)
    assert bench.sequences.num_left(0, 2) == 10 and bench.sequences.num_left(0, 9) == 3
    bench.start(0, [1, 2])
    before = bench.sequences.num_left(0, 2)
    for _ in range(60):
        bench.sequences.feed(bench.suffix, 0, 2 + 20)
        bench.start(0, [1, 2])
    assert bench.sequences.num_left(0, 2) == pytest.approx(20.0, rel=0.05) != before


@pytest.mark.parametrize("others_wait", [False, True])
def test_where_requests_wait_for_a_row_all_tokens_count_alike(others_wait: bool) -> None:
    bench = Bench()
    bench.start(0, [1], max_tokens=50)
    bench.start(1, [1], max_tokens=5)
    values = bench.sequences.token_values({0: 2, 1: 2}, {0: 3.0, 1: 3.0}, 2, others_wait=others_wait)
    assert values[0] >= 1.0 and values[1] == (1.0 if others_wait else 0.0), "the short answer ends before the long one"
