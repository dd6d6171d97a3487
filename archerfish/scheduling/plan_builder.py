"""Builds a plan: chunks for sequences, as far as the token budget, the rows and the blocks go. Foresees preemptions."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from archerfish.kvcache.prefix_cache import NO_MATCH, PrefixMatch
from archerfish.kvcache.tables import BlockCopy, Blocks, BlockTable, KVTables
from archerfish.request import RequestClass
from archerfish.scheduling.plan import Chunk, SequenceStart
from archerfish.scheduling.sequence import Sequence
from archerfish.scheduling.sequence_table import SequenceTable

_single: Callable[[tuple[int, int, int, bool, Blocks, int]], Chunk] = partial(tuple.__new__, Chunk)
"""Makes a chunk without running any Python: most of a decode step's planning is one such call for each sequence."""


class _Start(NamedTuple):
    """The blocks and the progress that a waiting sequence starts with."""

    table: BlockTable
    computed: int


class PlanBuilder:
    """Builds the plan of one step. Online work is served before batch work sees the budget.

    While steps are in flight nothing is preempted: they still use every row and block. Where a preemption would be
    needed, would_preempt has the steps in flight committed first; a sequence that turns out to need one only here
    gets nothing in this step, and is seen before the next.
    """

    def __init__(self, sequences: SequenceTable, budget: int, now: float, *, ahead: bool) -> None:
        self.chunks: dict[Sequence, Chunk] = {}
        self.starts: list[SequenceStart] = []
        self.copies: list[BlockCopy] = []
        self._sequences = sequences
        self._tables = sequences.tables
        self._may_preempt = not ahead
        self._budget = budget
        self._now = now

    # -- sequences that run ---------------------------------------------------------------------------------------

    def continue_running(self, kind: RequestClass) -> None:
        """Give every running sequence of a class a chunk, in the order of their admission, as far as the budget goes.

        A prompt gets only budget that was left, so however long it is, it never delays answers that have begun.
        """
        chunks, budget = self.chunks, self._budget
        for sequence in tuple(self._sequences.running[kind]):
            table, computed, length = sequence.table, sequence.computed, sequence.length
            if table is None or not budget or length == sequence.length_limit:
                continue  # Preempted a moment ago, or no budget left, or a step in flight draws its last token.
            if computed < table.capacity and length - computed == 1:
                # The usual case, kept short: most sequences of most steps come this way.
                chunks[sequence] = _single((sequence.row, computed, 1, True, (), 0))
                sequence.computed = length
                sequence.length = length + 1
                budget -= 1
            else:
                self._budget = budget
                self._extend(sequence)
                budget = self._budget
        self._budget = budget

    def _extend(self, sequence: Sequence) -> None:
        """Give a sequence the longest chunk that budget and blocks allow, preempting the last one if none is left."""
        assert sequence.table is not None
        while (capacity := self._tables.max_capacity(sequence.table) - sequence.computed) < 1:
            victim = self._sequences.last()
            if victim is sequence or not self._may_preempt:
                return  # All others come first, or steps in flight use their blocks: wait until one of them ends.
            self._preempt(victim)
        self._assign_chunk(sequence, sequence.table, min(sequence.todo, self._budget, capacity))

    def _assign_chunk(self, sequence: Sequence, table: BlockTable, length: int) -> None:
        start = sequence.computed
        new_blocks = self._tables.reserve(table, start + length)
        assert new_blocks is not None, "the blocks were available"
        samples = length == sequence.todo
        self.chunks[sequence] = Chunk(sequence.row, start, length, samples, new_blocks)
        sequence.computed += length
        sequence.length += samples
        self._budget -= length

    def reserve_draft_tokens(self, max_draft_tokens: int, max_drawn: int) -> int:
        """Reserve the budget left for draft tokens after chunks that sample, up to `max_drawn` samples in all.

        Chunks share it equally; one that can use less than its share leaves the rest to those after it. If there is
        less than one token for each, the first chunks get one each: acceptance falls with depth, so short drafts for
        many pay more than long ones for few. Only spare blocks are reserved: nothing is preempted for draft tokens.
        Returns how many each chunk may have: `max_draft_tokens`, or 0 if none has any.
        """
        sampling = [(sequence, chunk) for sequence, chunk in self.chunks.items() if chunk.samples]
        budget = min(self._budget, max_drawn - len(sampling))
        if budget <= 0:
            return 0
        limits = [_max_draft_tokens(sequence, max_draft_tokens) for sequence, _ in sampling]
        num_left = sum(limit > 0 for limit in limits)
        num_groups = len(self._tables.windows)
        ample = self._sequences.num_running * num_groups
        num_reserved = 0
        for (sequence, chunk), limit in zip(sampling, limits, strict=True):
            if limit <= 0 or num_reserved == budget:
                continue
            table, end = sequence.table, chunk.start + chunk.length
            assert table is not None, "it runs"
            count = min(limit, max(1, (budget - num_reserved) // num_left))
            num_left -= 1
            if self._tables.pool.num_available <= ample + num_groups * (max_draft_tokens // self._tables.block_size):
                count = min(count, table.capacity - end)
            if count > 0:
                blocks = self._tables.reserve(table, end + count)
                assert blocks is not None, "the blocks were available"
                self.chunks[sequence] = chunk._replace(
                    new_blocks=_joined(chunk.new_blocks, blocks), max_draft_tokens=count
                )
                num_reserved += count
        self._budget -= num_reserved
        return max_draft_tokens if num_reserved else 0

    def _preempt(self, victim: Sequence) -> None:
        chunk = self.chunks.pop(victim, None)
        self._budget += chunk.length if chunk is not None else 0
        self._sequences.preempt(victim)

    # -- sequences that wait --------------------------------------------------------------------------------------

    def admit(self, kind: RequestClass, admits: Callable[[Sequence], bool]) -> list[Sequence]:
        """Admit waiting sequences in order, as the policy allows: the first that does not fit holds up the rest."""
        admitted: list[Sequence] = []
        turns = self._sequences.waiting.turns(kind, admits)
        # Finding out whose turn it is costs time, and is in vain while no row can be had.
        while self._budget and (self._sequences.has_free_row or self._running_below(kind)):
            sequence = next(turns, None)
            if sequence is None or not self._admit(sequence):
                break
            admitted.append(sequence)
        return admitted

    def _admit(self, sequence: Sequence) -> bool:
        start = self._fork(sequence) or self._open(sequence)
        if start is None:
            return False
        table, sequence.computed = start
        sequence.stored = sequence.computed
        self._sequences.admit(sequence, table)
        self.starts.append(
            SequenceStart(
                row=sequence.row,
                tokens=tuple(sequence.tokens),
                num_prompt_tokens=sequence.num_prompt_tokens,
                blocks=tuple(tuple(blocks) for blocks in table.groups),
                params=sequence.params,
                seed=sequence.seed,
                stop_token_ids=tuple(sequence.stop_token_ids),
                tenant=sequence.request.tenant,
            )
        )
        if sequence.scheduled_time is None:
            sequence.scheduled_time = self._now
            sequence.num_cached_tokens = sequence.computed
        capacity = self._tables.max_capacity(table) - sequence.computed
        self._assign_chunk(sequence, table, min(sequence.todo, self._budget, capacity))
        return True

    def _fork(self, sequence: Sequence) -> _Start | None:
        """Share the prompt of a sibling that has computed it; only its last token is computed again.

        None where that is not possible.
        """
        parent, shared = sequence.parent, sequence.num_prompt_tokens - 1
        if parent is None or parent.ended or parent.table is None or sequence.scheduled_time is not None:
            return None
        if parent.stored < shared:
            return None
        # One column more than the fork itself takes: its first token may open a new block.
        if self._tables.pool.num_available < 2 * len(self._tables.windows):
            return None
        fork = self._tables.fork(parent.table, shared)
        if fork is None:
            return None
        if not self._sequences.has_free_row:
            self._preempt(self._sequences.last())
        self.copies.extend(fork.copies)
        return _Start(fork.table, shared)

    def _open(self, sequence: Sequence) -> _Start | None:
        """Start from the longest cached prefix, if everything the sequence has so far fits.

        Running sequences of a lower class are preempted, but only if that frees enough.
        """
        lower = self._running_below(sequence.request.request_class)
        match, length = cached_prefix(self._tables, sequence), len(sequence.tokens)
        if not self._tables.can_hold(match, length):
            preemptible = [other.table for other in lower if other.table is not None]
            if not preemptible or not self._tables.can_hold(match, length, preemptible):
                return None
        while not self._sequences.has_free_row or not self._tables.can_hold(match, length):
            self._preempt(self._sequences.last())
        return _Start(self._tables.open(match), match.num_blocks * self._tables.block_size)

    def _running_below(self, kind: RequestClass) -> list[Sequence]:
        """Return the running sequences that may be preempted for this class."""
        return self._sequences.running_below(kind) if self._may_preempt else []


def _max_draft_tokens(sequence: Sequence, max_draft_tokens: int) -> int:
    """Return how many draft tokens a chunk of the sequence that samples can use; its sample is counted in its length.

    Draft tokens beyond the sequence's end would be wasted.
    """
    limit = min(max_draft_tokens, sequence.length_limit - sequence.length)
    return limit if sequence.max_draft_tokens is None else min(limit, sequence.max_draft_tokens)


def _joined(first: Blocks, second: Blocks) -> Blocks:
    """Return the blocks of both, for each group."""
    if not first or not second:
        return first or second
    return tuple((*some, *more) for some, more in zip(first, second, strict=True))


def cached_prefix(tables: KVTables, sequence: Sequence) -> PrefixMatch:
    """Return the cached blocks that a waiting sequence would start from."""
    params = sequence.params
    # Outputs for every token of the prompt take computing every one.
    needs_whole_prompt = params.prompt_logprobs is not None or params.prompt_embedding or params.prompt_states
    if not tables.prefix_caching or needs_whole_prompt:
        return NO_MATCH
    # The last token is always computed: its logits are what the next one is drawn from.
    num_blocks = (len(sequence.tokens) - 1) // tables.block_size
    return tables.match(sequence.block_hashes.prefix(sequence.tokens, num_blocks))


# -- whether the next plan would preempt a sequence: what a plan builder does is repeated, and nothing is taken --------


def would_preempt(sequences: SequenceTable, budget: int, admits: Callable[[Sequence], bool]) -> bool:
    """Return whether a running sequence lacks a block, or a waiting one a row or blocks, unless another is preempted.

    Of the waiting sequences only the first is looked at. If the one after it lacks blocks, it is the first next time.
    """
    rest = _StepBudget(sequences, budget)
    return any(
        rest.runs_out(kind) or (rest.num_tokens > 0 and _admission_preempts(sequences, kind, admits))
        for kind in RequestClass
    )


class _StepBudget:
    """The next step's tokens and blocks, spent on running sequences."""

    def __init__(self, sequences: SequenceTable, num_tokens: int) -> None:
        tables = sequences.tables
        self.num_tokens = num_tokens
        self._sequences = sequences
        self._block_size = tables.block_size
        self._columns = tables.pool.num_available // len(tables.windows)
        # A sequence begins at most one block that it does not fill: with so many there is nothing to count.
        self._is_ample = self._columns > sequences.num_running + num_tokens // tables.block_size

    def runs_out(self, kind: RequestClass) -> bool:
        """Spend on the running sequences of a class; return whether one lacks a block and another is preempted."""
        if self._is_ample:
            return False
        for sequence in self._sequences.running[kind]:
            table, computed = sequence.table, sequence.computed
            assert table is not None
            if not self.num_tokens:
                return False
            if sequence.length == sequence.length_limit:
                continue
            capacity = table.capacity + self._columns * self._block_size - computed
            if capacity >= 1:
                length = min(sequence.todo, self.num_tokens, capacity)
                self._columns -= max(0, -(-(computed + length - table.capacity) // self._block_size))
                self.num_tokens -= length
            elif sequence is not self._sequences.last():
                return True
        return False


def _admission_preempts(sequences: SequenceTable, kind: RequestClass, admits: Callable[[Sequence], bool]) -> bool:
    """Return whether the first to be admitted needs the row or the blocks of a lower class, and would get enough."""
    lower = sequences.running_below(kind)
    sequence = next(sequences.waiting.turns(kind, admits), None) if lower else None
    if sequence is None:
        return False
    if sequence.parent is not None and not sequences.has_free_row:
        return True  # A fork may need less than what all of its tokens take: leave that to the plan builder.
    tables, match, length = sequences.tables, cached_prefix(sequences.tables, sequence), len(sequence.tokens)
    if tables.can_hold(match, length):
        return not sequences.has_free_row
    return tables.can_hold(match, length, [other.table for other in lower if other.table is not None])
