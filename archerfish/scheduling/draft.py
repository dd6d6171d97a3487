"""A plan being made: who gets which chunk, as far as the token budget, the rows and the blocks go."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from archerfish.kvcache.prefix import NO_MATCH, PrefixMatch
from archerfish.kvcache.tables import BlockCopy, Blocks, BlockTable, KVTables
from archerfish.request import RequestClass
from archerfish.scheduling.plan import Chunk, SequenceStart
from archerfish.scheduling.roster import Roster
from archerfish.scheduling.sequence import Sequence

_single: Callable[[tuple[int, int, int, bool, Blocks, int]], Chunk] = partial(tuple.__new__, Chunk)
"""A chunk, made without running any Python: most of a decode step's planning is making as many as sequences run."""


class _Opening(NamedTuple):
    """Where a waiting sequence would start from."""

    table: BlockTable
    computed: int


class Draft:
    """Made afresh for each step. Online work is served before batch work sees the budget.

    While steps are in flight nobody is thrown out: they still use every row and block. Where somebody would have to be,
    foresight.py has the steps in flight committed first; whoever is found wanting only here gets nothing in this step,
    and is seen before the next one.
    """

    def __init__(self, roster: Roster, budget: int, now: float, *, ahead: bool) -> None:
        self.chunks: dict[Sequence, Chunk] = {}
        self.starts: list[SequenceStart] = []
        self.copies: list[BlockCopy] = []
        self._roster = roster
        self._tables = roster.tables
        self._may_preempt = not ahead
        self._budget = budget
        self._now = now

    # -- sequences that run ---------------------------------------------------------------------------------------

    def continue_running(self, kind: RequestClass) -> None:
        """A chunk for every running sequence, as far as the budget goes.

        In the order they were admitted: a prompt gets only budget that was left, so however long it is, it never holds
        up answers that were already being written.
        """
        chunks, budget = self.chunks, self._budget
        for sequence in tuple(self._roster.running[kind]):
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
        """A chunk as long as budget and blocks allow. Without a single block left, whoever is last makes way."""
        assert sequence.table is not None
        while (room := self._tables.room(sequence.table) - sequence.computed) < 1:
            victim = self._roster.last()
            if victim is sequence or not self._may_preempt:
                return  # All others come first, or steps in flight use their blocks: wait for one of them to end.
            self._preempt(victim)
        self._give(sequence, sequence.table, min(sequence.todo, self._budget, room))

    def _give(self, sequence: Sequence, table: BlockTable, length: int) -> None:
        start = sequence.computed
        new_blocks = self._tables.reserve(table, start + length)
        assert new_blocks is not None, "there was room"
        samples = length == sequence.todo
        self.chunks[sequence] = Chunk(sequence.row, start, length, samples, new_blocks)
        sequence.computed += length
        sequence.length += samples
        self._budget -= length

    def reserve_draft_tokens(self, max_draft_tokens: int, max_drawn: int) -> int:
        """Reserve what is left of the budget for draft tokens after chunks that sample, up to `max_drawn` samples in
        all.

        All chunks get the same, except for what some cannot use. Only spare blocks are reserved: nothing is preempted
        for draft tokens. Returns how many each chunk may have: `max_draft_tokens`, or 0 if not all could have one.
        """
        sampling = [(sequence, chunk) for sequence, chunk in self.chunks.items() if chunk.samples]
        if not sampling:
            return 0
        self._budget = min(self._budget, max_drawn - len(sampling))
        if self._budget < len(sampling):
            return 0
        num_groups = len(self._tables.windows)
        ample = self._roster.num_running * num_groups
        for index, (sequence, chunk) in enumerate(sampling):
            table = sequence.table
            assert table is not None, "it runs"
            end = chunk.start + chunk.length
            # The sequence has one more token when its sample is counted; draft tokens beyond its end would be wasted.
            count = min(
                max_draft_tokens, self._budget // (len(sampling) - index), sequence.length_limit - sequence.length
            )
            if sequence.max_draft_tokens is not None:
                count = min(count, sequence.max_draft_tokens)
            if self._tables.pool.num_available <= ample + num_groups * (max_draft_tokens // self._tables.block_size):
                count = min(count, table.capacity - end)
            if count > 0:
                blocks = self._tables.reserve(table, end + count)
                assert blocks is not None, "there was room"
                self.chunks[sequence] = chunk._replace(
                    new_blocks=_joined(chunk.new_blocks, blocks), max_draft_tokens=count
                )
                self._budget -= count
        return max_draft_tokens

    def _preempt(self, victim: Sequence) -> None:
        chunk = self.chunks.pop(victim, None)
        self._budget += chunk.length if chunk is not None else 0
        self._roster.preempt(victim)

    # -- sequences that wait --------------------------------------------------------------------------------------

    def admit(self, kind: RequestClass, admits: Callable[[Sequence], bool]) -> list[Sequence]:
        """Let in whom the policy admits, strictly in order: the first that does not fit holds the line."""
        admitted: list[Sequence] = []
        turns = self._roster.waiting.turns(kind, admits)
        # Whose turn it is need not be asked while there is no row to be had.
        while self._budget and (self._roster.has_free_row or self._running_below(kind)):
            sequence = next(turns, None)
            if sequence is None or not self._admit(sequence):
                break
            admitted.append(sequence)
        return admitted

    def _admit(self, sequence: Sequence) -> bool:
        opened = self._fork(sequence) or self._open(sequence)
        if opened is None:
            return False
        table, sequence.computed = opened
        sequence.stored = sequence.computed
        self._roster.seat(sequence, table)
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
        room = self._tables.room(table) - sequence.computed
        self._give(sequence, table, min(sequence.todo, self._budget, room))
        return True

    def _fork(self, sequence: Sequence) -> _Opening | None:
        """Share the prompt of a sibling that has computed it; only its last token is computed again."""
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
        if not self._roster.has_free_row:
            self._preempt(self._roster.last())
        self.copies.extend(fork.copies)
        return _Opening(fork.table, shared)

    def _open(self, sequence: Sequence) -> _Opening | None:
        """Start from the longest cached prefix, if everything the sequence has so far fits.

        Running sequences of a lower class make way, but only if that is enough: none is thrown out for nothing.
        """
        lower = self._running_below(sequence.request.request_class)
        match, length = cached_prefix(self._tables, sequence), len(sequence.tokens)
        if not self._tables.can_hold(match, length):
            leaving = [other.table for other in lower if other.table is not None]
            if not leaving or not self._tables.can_hold(match, length, leaving):
                return None
        while not self._roster.has_free_row or not self._tables.can_hold(match, length):
            self._preempt(self._roster.last())
        return _Opening(self._tables.open(match), match.num_blocks * self._tables.block_size)

    def _running_below(self, kind: RequestClass) -> list[Sequence]:
        """Whoever could make way for this class."""
        return self._roster.running_below(kind) if self._may_preempt else []


def _joined(first: Blocks, second: Blocks) -> Blocks:
    """For each group, the blocks of both."""
    if not first or not second:
        return first or second
    return tuple((*some, *more) for some, more in zip(first, second, strict=True))


def cached_prefix(tables: KVTables, sequence: Sequence) -> PrefixMatch:
    """What a waiting sequence would start from. Changes nothing."""
    params = sequence.params
    # What is told of every token of the prompt must be computed for every one.
    tells_of_prompt = params.prompt_logprobs is not None or params.prompt_embedding or params.prompt_states
    if not tables.prefix_caching or tells_of_prompt:
        return NO_MATCH
    # The last token is always computed: its logits are what the next one is drawn from.
    num_blocks = (len(sequence.tokens) - 1) // tables.block_size
    return tables.match(sequence.names.upto(sequence.tokens, num_blocks))
