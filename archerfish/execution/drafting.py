"""Guesses by a network that reads what was written: catches up with the rows, then draws token after token.

Draws are the model's own, with the same noise at the same places: where both think alike they draw alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from archerfish.execution.filled import Filled
from archerfish.execution.inputs import Outline
from archerfish.execution.networks import Network
from archerfish.execution.rows import Rows
from archerfish.ops.arrays import Ints
from archerfish.sampling.grammar import Guessed
from archerfish.sampling.sampler import Sampler
from archerfish.scheduling.plan import Plan
from archerfish.speculation.draft import ROOT, Draft
from archerfish.speculation.proposer import Ask
from archerfish.speculation.times import StepTimes

_TRIED_SIZES = (1, 2, 4)
_NUM_TRIES = 4


class NetworkProposer:
    def __init__(
        self,
        network: Network,
        rows: Rows,
        filled: Filled,
        sampler: Sampler,
        clock: Callable[[], float],
        times: StepTimes,
        *,
        max_tokens: int,
        max_model_len: int,
        branches: int = 1,
        is_judged_by_proposals: Callable[[int], bool] = lambda row: False,
    ) -> None:
        """A pass reads `max_tokens`, of sequences up to `max_model_len`; how long it took is told to `times`.

        With branches, so many tokens are guessed at each place, of which the first goes on. For rows that are judged by
        it, drafts tell what their guesses were drawn from.
        """
        self._network = network
        self._rows = rows
        self._filled = filled
        self._sampler = sampler
        self._clock = clock
        self._max_tokens = max_tokens
        self._max_model_len = max_model_len
        self.branches = branches
        """So many guesses stand side by side at each place."""
        self._is_judged = is_judged_by_proposals
        self._times = times
        self._done: dict[int, int] = {}
        """Of each row, how many places the network has read."""
        self._num_read_guesses: dict[int, int] = {}
        """Of the last draft of each row."""

    def take_in(self, plan: Plan) -> None:
        """What is new since the last step."""
        self._filled.take_in(plan)
        self._network.copy(plan.copies)

    def try_out(self) -> None:
        """Before the first plan: see how long passes take. What they leave behind is never read."""
        for count in _TRIED_SIZES:
            for _ in range(_NUM_TRIES):
                started = self._clock()
                logits = self._network.read(_outline([(0, 0, count, 1)]))
                self._candidates(logits, np.zeros(1, np.int64), np.array([count]), {})
                self._record(count, started)

    def start(self, row: int, tokens: Sequence[int], num_prompt_tokens: int, tenant: str) -> None:
        self._done.pop(row, None)

    def extend(self, row: int, tokens: Sequence[int]) -> None:
        """Rows have what was written."""

    def room(self, end: int) -> int:
        """Guesses that it could make, one after the other, for a sequence of `end` tokens."""
        return max(0, self._max_model_len - end)

    def num_unread(self, row: int, end: int) -> int:
        """Tokens to be read before the first guess for a row that has `end` tokens."""
        return end - self._network.lag - self._first_unread(row, end)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        lines: list[list[list[int]]] = [[] for _ in asks]
        proposals: list[list[Tensor]] = [[] for _ in asks]
        active = [place for place, ask in enumerate(asks) if ask.most]
        if not active:
            return [Draft((), ())] * len(asks)
        rows, ends = (np.array([getattr(ask, name) for ask in asks]) for name in ("row", "end"))
        logits = self._read([asks[place] for place in active])
        started, depth = self._clock(), 0
        while True:
            guessed = {number: tuple(one[0] for one in lines[place]) for number, place in enumerate(active) if depth}
            candidates = self._candidates(logits, rows[active], ends[active] + depth, guessed)
            for number, place in enumerate(active):
                if self._is_judged(asks[place].row):
                    at = (ends[place : place + 1] + depth, torch.from_numpy(self._rows.tokens))
                    own = {0: guessed[number]} if depth else {}
                    of_row = logits[number : number + 1]
                    proposals[place].append(self._sampler.probabilities(of_row, asks[place].row, *at, own))
            for place, tokens in zip(active, candidates, strict=True):
                lines[place].append(tokens)
            depth += 1
            kept = [number for number, place in enumerate(active) if asks[place].most > depth]
            if depth > 1:
                started = self._record(len(active), started)
            if not kept:
                break
            active = [active[number] for number in kept]
            of_active = rows[active]
            last = ends[active] + depth - 1
            self._rows.write_tokens(of_active, last, [lines[place][-1][0] for place in active])
            logits = self._network.go_on(_single(of_active, last - self._network.lag), kept)
        for ask, line in zip(asks, lines, strict=True):
            self._num_read_guesses[ask.row] = max(0, len(line) - 1)
        return [_comb(line, some) for line, some in zip(lines, proposals, strict=True)]

    def saw(self, row: int, draft: Draft, drawn: Sequence[int]) -> None:
        """What was read of guesses that stood need not be read again."""
        if not self._network.trusts_guesses:
            return
        num_stood = 0
        for place in range(min(len(draft), self._num_read_guesses[row])):
            if draft.parents[place] != place - 1 or draft.tokens[place] != drawn[place]:
                break
            num_stood += 1
        self._mark(row, self._done[row] + num_stood)

    # -- reading -----------------------------------------------------------------------------------------------------

    def _first_unread(self, row: int, end: int) -> int:
        last = end - self._network.lag
        if not self._network.keeps:
            return last - 1
        done = self._done.get(row)
        if done is None:
            # The last one is always read: what follows it is the question.
            done = self._done[row] = min(self._filled.upto(row, last), last - 1)
        return min(done, last - 1)

    def _read(self, asks: Sequence[Ask]) -> Tensor:
        """Up to the rows' last tokens, in as many passes as it takes. Logits of what follows them."""
        lag = self._network.lag
        starts = [self._first_unread(ask.row, ask.end) for ask in asks]
        lengths = [ask.end - lag - start for ask, start in zip(asks, starts, strict=True)]
        while sum(lengths) > self._max_tokens:
            longest = int(np.argmax(lengths))
            piece = min(lengths[longest] - 1, self._max_tokens)
            self._network.read(_outline([(asks[longest].row, starts[longest], piece, 0)]))
            starts[longest] += piece
            lengths[longest] -= piece
        started = self._clock()
        table = [(ask.row, start, length, 1) for ask, start, length in zip(asks, starts, lengths, strict=True)]
        logits = self._network.read(_outline(table))
        self._record(sum(lengths), started)
        for ask in asks:
            self._mark(ask.row, ask.end - lag)
        return logits

    def _mark(self, row: int, end: int) -> None:
        if self._network.keeps:
            self._filled.mark(row, self._done[row], end)
            self._done[row] = end

    def _record(self, num_tokens: int, started: float) -> float:
        now = self._clock()
        self._times.record(num_tokens, now - started)
        return now

    # -- drawing -----------------------------------------------------------------------------------------------------

    def _candidates(self, logits: Tensor, rows: Ints, positions: Ints, guessed: Guessed) -> list[list[int]]:
        """Of each row, the token that would be drawn, then those that would be if it were not there."""
        history = torch.from_numpy(self._rows.tokens)
        found = [[token] for token in self._sampler.draw(logits, rows, positions, history, guessed).tokens]
        for _ in range(self.branches - 1):
            taken = torch.tensor([tokens[-1:] for tokens in found], device=logits.device)
            logits = logits.scatter(1, taken, -torch.inf)
            for tokens, token in zip(
                found, self._sampler.draw(logits, rows, positions, history, guessed).tokens, strict=True
            ):
                tokens.append(token)
        return found


def _outline(chunks: list[tuple[int, int, int, int]]) -> Outline:
    """Of chunks (row, start, length, picked: its last token or none)."""
    table = np.array(chunks, np.int64)
    ends = table[:, 2].cumsum()
    sampling = table[:, 3].nonzero()[0]
    return Outline(table, table[:, 1] + table[:, 2], ends, sampling, ends[sampling] - 1)


def _single(rows: Ints, places: Ints) -> Outline:
    """One token of each row."""
    ones, every = np.ones(len(rows), np.int64), np.arange(len(rows))
    return Outline(np.stack([rows, places, ones, ones], 1), places + 1, every + 1, every, every)


def _comb(line: list[list[int]], proposals: list[Tensor]) -> Draft:
    """A chain of the first candidates, and beside each of them the others, on which nothing hangs."""
    if proposals:
        # Later siblings share their noise with the first: they were not drawn from what is left of the distribution.
        return replace(Draft.chain([first for first, *_ in line]), proposals=torch.cat(proposals))
    tokens, parents = [candidates[0] for candidates in line], list(range(ROOT, len(line) - 1))
    for rank in range(1, len(line[0]) if line else 0):
        for depth, candidates in enumerate(line):
            tokens.append(candidates[rank])
            parents.append(depth - 1)
    return Draft(tuple(tokens), tuple(parents))
