"""Guesses by a network that reads what was written: catches up with the rows, then draws token after token.

Draws are the model's own, with the same noise at the same places: where both think alike they draw alike.
"""

import itertools
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step.rows import Rows
from archerfish.ops.arrays import Ints
from archerfish.ops.signatures import CHUNK
from archerfish.sampling.grammar import Guessed
from archerfish.sampling.sampler import Sampler
from archerfish.scheduling.plan import Plan
from archerfish.speculation.draft import NO_DRAFT, Draft
from archerfish.speculation.drafters.cache_progress import Filled
from archerfish.speculation.drafters.drafter import Network
from archerfish.speculation.proposer import Ask
from archerfish.speculation.step_latency import StepTimes

_TRIED_SIZES = (1, 2, 4)
_NUM_TRIES = 4


@dataclass(slots=True)
class _Line:
    """Guesses for one row."""

    candidates: list[list[int]] = field(default_factory=list)
    """For each place the tokens guessed there, of which the first goes on."""
    proposals: list[Tensor] = field(default_factory=list)
    """What they were drawn from, if the row is judged by it."""

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(first for first, *_ in self.candidates)


class NetworkProposer:
    surest = None

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

    def anew(self, times: StepTimes) -> "NetworkProposer":
        """The same network for somebody else, who keeps times for itself. The two guess by turns, for other rows."""
        other = copy(self)
        other._times, other._done, other._num_read_guesses = times, {}, {}
        return other

    def take_in(self, plan: Plan) -> None:
        """What is new since the last step."""
        self._filled.take_in(plan)
        if plan.copies:
            self._network.copy(plan.copies)

    def try_out(self) -> None:
        """Before the first plan: see how long passes take, of those sizes that drafts can have. What they leave behind
        is never read."""
        for count in _TRIED_SIZES:
            end = count + self._network.lag
            if count > self._max_tokens or not self.room(end):
                break
            for _ in range(_NUM_TRIES):
                self._lines(_step_batch([(0, 0, count, 1)]), [Ask(0, 1, end)])

    def start(self, row: int, tokens: Sequence[int], num_prompt_tokens: int, tenant: str) -> None:
        self._done.pop(row, None)

    def extend(self, row: int, tokens: Sequence[int]) -> None:
        """Rows have what was written."""

    def hints(self, row: int) -> bool:
        return True

    def room(self, end: int) -> int:
        """Guesses that it could make, one after the other, for a sequence of `end` tokens."""
        return max(0, self._max_model_len - end)

    def num_unread(self, row: int, end: int) -> int:
        """Tokens to be read before the first guess for a row that has `end` tokens."""
        return end - self._network.lag - self._first_unread(row, end)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        wanted = [ask for ask in asks if ask.most]
        if not wanted:
            return [NO_DRAFT] * len(asks)
        lines = dict(zip((ask.row for ask in wanted), self._lines(self._unread(wanted), wanted), strict=True))
        for ask in wanted:
            self._mark(ask.row, ask.end - self._network.lag)
            self._num_read_guesses[ask.row] = ask.most - 1
        return [_comb(lines[ask.row]) if ask.most else NO_DRAFT for ask in asks]

    def saw(self, row: int, draft: Draft, drawn: Sequence[int]) -> None:
        """What was read of guesses that stood need not be read again."""
        if not self._network.trusts_guesses:
            return
        num_accepted_tokens = 0
        for place in range(min(len(draft), self._num_read_guesses[row])):
            if draft.parents[place] != place - 1 or draft.tokens[place] != drawn[place]:
                break
            num_accepted_tokens += 1
        self._mark(row, self._done[row] + num_accepted_tokens)

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

    def _unread(self, asks: Sequence[Ask]) -> StepBatch:
        """What a pass has to read for the first guesses. What is too much for one is read now."""
        lag = self._network.lag
        starts = [self._first_unread(ask.row, ask.end) for ask in asks]
        lengths = [ask.end - lag - start for ask, start in zip(asks, starts, strict=True)]
        while sum(lengths) > self._max_tokens:
            longest = int(np.argmax(lengths))
            piece = min(lengths[longest] - 1, self._max_tokens)
            self._network.read(_step_batch([(asks[longest].row, starts[longest], piece, 0)]))
            starts[longest] += piece
            lengths[longest] -= piece
        return _step_batch(
            [(ask.row, start, length, 1) for ask, start, length in zip(asks, starts, lengths, strict=True)]
        )

    def _mark(self, row: int, end: int) -> None:
        if self._network.keeps:
            self._filled.mark(row, self._done[row], end)
            self._done[row] = end

    def _record(self, num_tokens: int, started: float) -> float:
        now = self._clock()
        self._times.record(num_tokens, now - started)
        return now

    # -- drawing -----------------------------------------------------------------------------------------------------

    def _lines(self, batch: StepBatch, asks: Sequence[Ask]) -> list[_Line]:
        """Read what the batch says, whose last tokens are picked, and guess on from there."""
        return self._lines_at_once(batch, asks) or self._lines_in_turn(batch, asks)

    def _lines_at_once(self, batch: StepBatch, asks: Sequence[Ask]) -> list[_Line] | None:
        """In one call, where the network can and nothing but the draw is wanted of any row."""
        if self.branches > 1 or any(self._is_judged(ask.row) for ask in asks):
            return None
        started = self._clock()
        asked = self._sampler.asked_of_guesses(batch.rows, np.array([ask.end for ask in asks]))
        if asked is None:
            return None
        drafted = self._network.draft(batch, asked, np.array([ask.most for ask in asks]))
        if drafted is None:
            return None
        tokens = drafted.tokens.T.tolist()
        lines = [_Line([[token] for token in of_row[: ask.most]]) for of_row, ask in zip(tokens, asks, strict=True)]
        further = drafted.seconds[1:]
        for depth, seconds in enumerate(further, 1):
            self._times.record(sum(ask.most > depth for ask in asks), seconds)
        # What it takes to ask at all is part of the first pass: nobody else would pay for it.
        self._record(int(batch.query_ends[-1]), started + sum(further))
        return lines

    def _lines_in_turn(self, batch: StepBatch, asks: Sequence[Ask]) -> list[_Line]:
        lines = [_Line() for _ in asks]
        active = list(range(len(asks)))
        rows, ends = (np.array([getattr(ask, name) for ask in asks]) for name in ("row", "end"))
        started, num_tokens = self._clock(), int(batch.query_ends[-1])
        logits = self._network.read(batch)
        for depth in itertools.count():
            self._draw(logits, rows[active], ends[active] + depth, [lines[place] for place in active])
            started = self._record(num_tokens, started)
            kept = [number for number, place in enumerate(active) if asks[place].most > depth + 1]
            if not kept:
                break
            active = [active[number] for number in kept]
            of_active, last, num_tokens = rows[active], ends[active] + depth, len(active)
            self._rows.write_tokens(of_active, last, [lines[place].tokens[-1] for place in active])
            logits = self._network.go_on(_single(of_active, last - self._network.lag), kept)
        return lines

    def _draw(self, logits: Tensor, rows: Ints, positions: Ints, lines: list[_Line]) -> None:
        """One place more of each line."""
        guessed = {number: line.tokens for number, line in enumerate(lines) if line.candidates}
        for number, (row, line) in enumerate(zip(rows.tolist(), lines, strict=True)):
            if self._is_judged(row):
                at = (positions[number : number + 1], torch.from_numpy(self._rows.tokens))
                own = {0: line.tokens} if line.candidates else {}
                line.proposals.append(self._sampler.probabilities(logits[number : number + 1], row, *at, own))
        for line, tokens in zip(lines, self._candidates(logits, rows, positions, guessed), strict=True):
            line.candidates.append(tokens)

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


def _step_batch(chunks: list[tuple[int, int, int, int]]) -> StepBatch:
    """Of chunks (row, start, length, picked: its last token or none)."""
    table = np.array(chunks, CHUNK)
    ends = table["length"].cumsum()
    sampling = table["num_logits"].nonzero()[0]
    return StepBatch(table, table["start"] + table["length"], ends, sampling, ends[sampling] - 1)


def _single(rows: Ints, places: Ints) -> StepBatch:
    """One token of each row."""
    table, every = np.ones(len(rows), CHUNK), np.arange(len(rows))
    table["row"], table["start"] = rows, places
    return StepBatch(table, places + 1, every + 1, every, every)


def _comb(line: _Line) -> Draft:
    """A chain of the first candidates, and beside each of them the others, on which nothing hangs."""
    chain = Draft.chain(line.tokens)
    if line.proposals:
        # Later siblings share their noise with the first: they were not drawn from what is left of the distribution.
        return replace(chain, proposals=torch.cat(line.proposals))
    tokens, parents = [*chain.tokens], [*chain.parents]
    for rank in range(1, len(line.candidates[0])):
        for depth, candidates in enumerate(line.candidates):
            tokens.append(candidates[rank])
            parents.append(depth - 1)
    return Draft(tuple(tokens), tuple(parents))
