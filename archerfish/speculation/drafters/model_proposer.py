"""The proposer that runs a drafter: it catches up with the rows, then drafts token after token.

Tokens are sampled with the model's own noise at their positions: where both models agree, they sample the same tokens.
"""

import itertools
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step.rows import Rows
from archerfish.ops.arrays import Ints
from archerfish.ops.signatures import CHUNK
from archerfish.sampling.row_grammars import DraftContext
from archerfish.sampling.sampler import Sampler
from archerfish.scheduling.plan import Plan
from archerfish.speculation.draft import NO_DRAFT, Draft
from archerfish.speculation.drafters.cache_progress import DraftCacheProgress
from archerfish.speculation.drafters.drafter import RunnableDrafter
from archerfish.speculation.proposer import DraftRequest
from archerfish.speculation.step_latency import StepLatencyModel

_PROFILED_SIZES = (1, 2, 4)
"""Tokens of the passes that are timed at the start."""
_NUM_TRIALS = 4


class DrafterLimits(NamedTuple):
    """How much a drafter computes and proposes."""

    max_tokens: int
    """Tokens of one pass."""
    max_model_len: int
    """Tokens of a sequence, draft tokens included."""
    branches: int = 1
    """Tokens drafted at each depth, the first of which is continued."""


@dataclass(slots=True)
class _DraftInProgress:
    """Draft tokens of one row so far."""

    candidates: list[list[int]] = field(default_factory=list)
    """Drafted tokens by depth, the first of which the draft continues with."""
    proposals: list[Tensor] = field(default_factory=list)
    """The distributions they were sampled from, if verification needs them."""

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(first for first, *_ in self.candidates)


class ModelProposer:
    """Proposes what a drafter generates."""

    def __init__(
        self,
        drafter: RunnableDrafter,
        rows: Rows,
        progress: DraftCacheProgress,
        sampler: Sampler,
        clock: Callable[[], float],
        latency: StepLatencyModel,
        limits: DrafterLimits,
        needs_proposals: Callable[[int], bool] = lambda row: False,
    ) -> None:
        """`latency` learns how long passes take, by `clock`.

        Drafts of rows that `needs_proposals` come with the distributions they were sampled from.
        """
        self._drafter = drafter
        self._rows = rows
        self._progress = progress
        self._sampler = sampler
        self._clock = clock
        self._max_tokens = limits.max_tokens
        self._max_model_len = limits.max_model_len
        self.branches = limits.branches
        """Draft tokens per depth."""
        self._needs_proposals = needs_proposals
        self._latency = latency
        self._num_computed: dict[int, int] = {}
        """Tokens of each row that the drafter has computed."""
        self._num_computed_drafts: dict[int, int] = {}
        """Tokens of each row's last draft that it has computed."""

    def fresh_copy(self, latency: StepLatencyModel) -> "ModelProposer":
        """Return another proposer of the same drafter, with a latency model of its own. They serve different rows."""
        other = copy(self)
        other._latency, other._num_computed, other._num_computed_drafts = latency, {}, {}
        return other

    def begin_step(self, plan: Plan) -> None:
        """Follow a step's new blocks, copies and starts."""
        self._progress.apply(plan)
        if plan.copies:
            self._drafter.copy(plan.copies)

    def profile(self) -> None:
        """Time passes of the sizes that drafts have, before the first plan. What they write is never read."""
        for count in _PROFILED_SIZES:
            length = count + self._drafter.token_lag
            if count > self._max_tokens or not self.max_depth(length):
                break
            for _ in range(_NUM_TRIALS):
                self._draft(_step_batch([(0, 0, count, 1)]), [DraftRequest(0, 1, length)])

    def start(self, row: int, tokens: Sequence[int], num_prompt_tokens: int, tenant: str) -> None:
        self._num_computed.pop(row, None)

    def extend(self, row: int, tokens: Sequence[int]) -> None:
        """Do nothing: the rows have the tokens."""

    def has_hint(self, row: int) -> bool:
        return True

    def max_depth(self, length: int) -> int:
        """Return the draft length that fits after a sequence of `length` tokens."""
        return max(0, self._max_model_len - length)

    def num_uncomputed(self, row: int, length: int) -> int:
        """Return the tokens to be computed before the first draft token of a row that has `length` tokens."""
        return length - self._drafter.token_lag - self._first_uncomputed(row, length)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        wanted = [request for request in requests if request.max_tokens]
        if not wanted:
            return [NO_DRAFT] * len(requests)
        drafts = dict(
            zip((request.row for request in wanted), self._draft(self._catch_up(wanted), wanted), strict=True)
        )
        for request in wanted:
            self._advance(request.row, request.length - self._drafter.token_lag)
            self._num_computed_drafts[request.row] = request.max_tokens - 1
        return [_tree_with_siblings(drafts[request.row]) if request.max_tokens else NO_DRAFT for request in requests]

    def observe(self, row: int, draft: Draft, sampled: Sequence[int]) -> None:
        """Reuse what was computed of accepted draft tokens."""
        if not self._drafter.reuses_accepted_kv:
            return
        num_accepted = 0
        for node in range(min(len(draft), self._num_computed_drafts[row])):
            if draft.parents[node] != node - 1 or draft.tokens[node] != sampled[node]:
                break
            num_accepted += 1
        self._advance(row, self._num_computed[row] + num_accepted)

    # -- catching up --------------------------------------------------------------------------------------------------

    def _first_uncomputed(self, row: int, length: int) -> int:
        end = length - self._drafter.token_lag
        if not self._drafter.has_kv_cache:
            return end - 1
        num_computed = self._num_computed.get(row)
        if num_computed is None:
            # The last token is always computed: the draft follows it.
            num_computed = self._num_computed[row] = min(self._progress.num_computed(row, end), end - 1)
        return min(num_computed, end - 1)

    def _catch_up(self, requests: Sequence[DraftRequest]) -> StepBatch:
        """Return the batch of the first pass of drafts. What exceeds one pass is computed now."""
        lag = self._drafter.token_lag
        starts = [self._first_uncomputed(request.row, request.length) for request in requests]
        lengths = [request.length - lag - start for request, start in zip(requests, starts, strict=True)]
        while sum(lengths) > self._max_tokens:
            longest = int(np.argmax(lengths))
            piece = min(lengths[longest] - 1, self._max_tokens)
            self._drafter.forward(_step_batch([(requests[longest].row, starts[longest], piece, 0)]))
            starts[longest] += piece
            lengths[longest] -= piece
        chunks = zip(requests, starts, lengths, strict=True)
        return _step_batch([(request.row, start, length, 1) for request, start, length in chunks])

    def _advance(self, row: int, end: int) -> None:
        if self._drafter.has_kv_cache:
            self._progress.advance(row, self._num_computed[row], end)
            self._num_computed[row] = end

    def _record(self, num_tokens: int, started: float) -> float:
        now = self._clock()
        self._latency.record(num_tokens, now - started)
        return now

    # -- drafting -----------------------------------------------------------------------------------------------------

    def _draft(self, batch: StepBatch, requests: Sequence[DraftRequest]) -> list[_DraftInProgress]:
        """Compute a batch, whose chunks' last tokens have logits, and draft on from there."""
        return self._draft_natively(batch, requests) or self._draft_autoregressively(batch, requests)

    def _draft_natively(self, batch: StepBatch, requests: Sequence[DraftRequest]) -> list[_DraftInProgress] | None:
        """Draft in one native call; None if the drafter cannot, or if sampling of a row needs more than its logits."""
        if self.branches > 1 or any(self._needs_proposals(request.row) for request in requests):
            return None
        started = self._clock()
        draw_rows = self._sampler.plain_draws_of_drafts(batch.rows, np.array([request.length for request in requests]))
        if draw_rows is None:
            return None
        drafted = self._drafter.draft(batch, draw_rows, np.array([request.max_tokens for request in requests]))
        if drafted is None:
            return None
        tokens = drafted.tokens.T.tolist()
        drafts = [
            _DraftInProgress([[token] for token in row_tokens[: request.max_tokens]])
            for row_tokens, request in zip(tokens, requests, strict=True)
        ]
        further = drafted.seconds[1:]
        for depth, seconds in enumerate(further, 1):
            self._latency.record(sum(request.max_tokens > depth for request in requests), seconds)
        # The overhead of the call is part of the first pass.
        self._record(batch.num_tokens, started + sum(further))
        return drafts

    def _draft_autoregressively(self, batch: StepBatch, requests: Sequence[DraftRequest]) -> list[_DraftInProgress]:
        drafts = [_DraftInProgress() for _ in requests]
        active = list(range(len(requests)))
        rows, lengths = (np.array([getattr(request, name) for request in requests]) for name in ("row", "length"))
        started, num_tokens = self._clock(), batch.num_tokens
        logits = self._drafter.forward(batch)
        for depth in itertools.count():
            self._sample(logits, rows[active], lengths[active] + depth, [drafts[index] for index in active])
            started = self._record(num_tokens, started)
            remaining = [number for number, index in enumerate(active) if requests[index].max_tokens > depth + 1]
            if not remaining:
                break
            active = [active[number] for number in remaining]
            active_rows, last, num_tokens = rows[active], lengths[active] + depth, len(active)
            self._rows.write_tokens(active_rows, last, [drafts[index].tokens[-1] for index in active])
            logits = self._drafter.forward_next(_single(active_rows, last - self._drafter.token_lag), remaining)
        return drafts

    def _sample(self, logits: Tensor, rows: Ints, positions: Ints, drafts: list[_DraftInProgress]) -> None:
        """Add one depth to each draft."""
        prefixes = {index: draft.tokens for index, draft in enumerate(drafts) if draft.candidates}
        for index, (row, draft) in enumerate(zip(rows.tolist(), drafts, strict=True)):
            if self._needs_proposals(row):
                history = torch.from_numpy(self._rows.tokens)
                own = {0: draft.tokens} if draft.candidates else {}
                draft.proposals.append(
                    self._sampler.probabilities(
                        logits[index : index + 1], row, positions[index : index + 1], history, own
                    )
                )
        for draft, tokens in zip(drafts, self._candidates(logits, rows, positions, prefixes), strict=True):
            draft.candidates.append(tokens)

    def _candidates(self, logits: Tensor, rows: Ints, positions: Ints, prefixes: DraftContext) -> list[list[int]]:
        """Return for each row the token that is sampled, then those that would be sampled without the ones before."""
        history = torch.from_numpy(self._rows.tokens)
        candidates = [[token] for token in self._sampler.draw(logits, rows, positions, history, prefixes).tokens]
        for _ in range(self.branches - 1):
            taken = torch.tensor([tokens[-1:] for tokens in candidates], device=logits.device)
            logits = logits.scatter(1, taken, -torch.inf)
            draw = self._sampler.draw(logits, rows, positions, history, prefixes)
            for tokens, token in zip(candidates, draw.tokens, strict=True):
                tokens.append(token)
        return candidates


def _step_batch(chunks: list[tuple[int, int, int, int]]) -> StepBatch:
    """Return the batch of chunks (row, start, length, whether its last token has logits)."""
    table = np.array(chunks, CHUNK)
    ends = table["length"].cumsum()
    sampled_chunks = table["num_logits"].nonzero()[0]
    return StepBatch(table, table["start"] + table["length"], ends, sampled_chunks, ends[sampled_chunks] - 1)


def _single(rows: Ints, positions: Ints) -> StepBatch:
    """Return the batch of one token of each row."""
    table, every = np.ones(len(rows), CHUNK), np.arange(len(rows))
    table["row"], table["start"] = rows, positions
    return StepBatch(table, positions + 1, every + 1, every, every)


def _tree_with_siblings(draft: _DraftInProgress) -> Draft:
    """Return a chain of the first candidates, with the others as childless siblings of each."""
    chain = Draft.chain(draft.tokens)
    if draft.proposals:
        # Later siblings share their noise with the first: they were not sampled from what is left of the distribution.
        return replace(chain, proposals=torch.cat(draft.proposals))
    tokens, parents = [*chain.tokens], [*chain.parents]
    for rank in range(1, len(draft.candidates[0])):
        for depth, candidates in enumerate(draft.candidates):
            tokens.append(candidates[rank])
            parents.append(depth - 1)
    return Draft(tuple(tokens), tuple(parents))
