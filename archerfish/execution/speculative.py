"""Guesses for the sequences of a step: has them made, takes as many as pay, and tells which stood.

Knows plans and rows; not how guesses are made, nor how tokens are drawn.
"""

from collections.abc import Callable

import numpy as np

from archerfish.execution.rows import Rows
from archerfish.ops.arrays import Ints
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart
from archerfish.speculation.draft import NO_DRAFT, Draft
from archerfish.speculation.lengths import Lengths, Step
from archerfish.speculation.proposer import Ask, Proposer
from archerfish.speculation.rests import Rests

Clock = Callable[[], float]


class Speculator:
    def __init__(self, proposer: Proposer, rows: Rows, clock: Clock, *, most: int, fixed: int | None = None) -> None:
        """`fixed` guesses are checked wherever there are so many; without it, as many as pay, up to `most`."""
        self._most = most
        self.proposer = proposer
        """May be exchanged between two requests, by whoever measures."""
        self._lengths = Lengths()
        self._rests = Rests()
        self._rows = rows
        self._clock = clock
        self.fixed = fixed
        """Likewise."""
        self._told: dict[int, int] = {}
        """Of each row, how many tokens the proposer knows."""
        self._starts: dict[int, SequenceStart] = {}
        """Of rows that the proposer has not been asked about: it is told of them only then."""
        self.seconds = 0.0
        """That the last guessing took."""

    def most(self, num_drawn: int) -> int:
        """How many guesses each of so many sequences should have room for: none where none could pay."""
        if self.fixed is not None:
            return self.fixed
        return self._most if self._rests.begin() and self._lengths.may_pay(num_drawn) else 0

    def start(self, start: SequenceStart) -> None:
        """A sequence takes up a row."""
        self._starts[start.row] = start
        self._lengths.start(start.row)
        self._rests.start(start.row)

    def is_asked(self, plan: Plan) -> bool:
        """Whether a plan has room for guesses."""
        return any(chunk.num_guesses for chunk in plan.chunks)

    def guess(self, plan: Plan, takes_tree: Callable[[Chunk], bool]) -> list[Draft] | None:
        """For each chunk of a plan; None where nothing is guessed. The guesses are then on the rows."""
        started = self._clock()
        roomy = [place for place, chunk in enumerate(plan.chunks) if chunk.num_guesses]
        places = [place for place in roomy if self._is_awake(plan.chunks[place].row)]
        asks = [self._ask(plan.chunks[place]) for place in places]
        found = self.proposer.propose(asks) if asks else []
        for number, (place, draft) in enumerate(zip(places, found, strict=True)):
            if not draft.is_chain and not takes_tree(plan.chunks[place]):
                found[number] = draft.first_line()
        drafts = [NO_DRAFT] * len(plan.chunks)
        for place, draft, count in zip(places, found, self._counts(plan, asks, found), strict=True):
            drafts[place] = draft.first(count)
        for chunk, draft in zip(plan.chunks, drafts, strict=True):
            if len(draft):
                end = chunk.start + chunk.length
                self._rows.write_tokens(_row(chunk), np.arange(end, end + len(draft)), draft.tokens)
        for ask, place in zip(asks, places, strict=True):
            if not len(drafts[place]):
                self._rests.went(ask.row, gained=False)
        self._rests.settle(plan.chunks[place].row for place in roomy)
        self.seconds = self._clock() - started
        return drafts if any(map(len, drafts)) else None

    def settle(self, plan: Plan, drafts: list[Draft], drawn: list[list[int]], stood: list[int]) -> None:
        """What was drawn after each chunk's last token and after each of its guesses, and how many of these stood."""
        for chunk, draft, tokens, num_stood in zip(plan.chunks, drafts, drawn, stood, strict=True):
            if len(draft):
                self.proposer.saw(chunk.row, draft, tokens)
                self._lengths.checked(chunk.row, len(draft), num_stood)
                self._rests.went(chunk.row, gained=num_stood > 0)
        self._rests.settle(chunk.row for chunk in plan.chunks if chunk.num_guesses)

    def took(self, num_tokens: int, seconds: float) -> None:
        """A step of so many tokens was made, guessing aside."""
        self._lengths.times.record(num_tokens, seconds)

    def _is_awake(self, row: int) -> bool:
        return self.fixed is not None or self._rests.is_awake(row)

    def _ask(self, chunk: Chunk) -> Ask:
        row, end = chunk.row, chunk.start + chunk.length
        if (start := self._starts.pop(row, None)) is not None:
            self.proposer.start(row, start.tokens, start.num_prompt_tokens, start.tenant)
            self._told[row] = len(start.tokens)
        if self._told[row] < end:
            self.proposer.extend(row, self._rows.tokens[row, self._told[row] : end].tolist())
            self._told[row] = end
        return Ask(row, chunk.num_guesses if self.fixed is None else min(self.fixed, chunk.num_guesses))

    def _counts(self, plan: Plan, asks: list[Ask], found: list[Draft]) -> list[int]:
        most = [len(draft) for draft in found]
        if self.fixed is not None or not any(most):
            return most
        step = Step(plan.num_tokens, sum(chunk.samples for chunk in plan.chunks))
        rows = [ask.row for ask in asks]
        chosen = self._lengths.choose(step, rows, most)
        self._lengths.pass_by([row for row, count in zip(rows, chosen, strict=True) if not count])
        return chosen


def _row(chunk: Chunk) -> Ints:
    return np.array([chunk.row])
