"""Decides what each step computes, and records every sequence's progress.

There is one notion of progress: todo = length - computed. Prefill, chunked prefill, decode, cache hits, forks and
preemption are that number growing and shrinking; nothing here asks which of them it is. Both sides count what is in
step: a chunk is computed as soon as it is planned, and a draw adds a token whose value only the executor knows yet.
"""

import random
from dataclasses import dataclass
from typing import NamedTuple

from archerfish.errors import InvalidParameter, PromptTooLong, RequestError
from archerfish.kvcache.tables import KVTables
from archerfish.request import FinishReason, Request, RequestClass, TokenEvent, TokenLogprobs
from archerfish.scheduling.plan import Chunk, Plan, StepResult
from archerfish.scheduling.plan_builder import PlanBuilder, would_preempt
from archerfish.scheduling.policy import BatchingPolicy
from archerfish.scheduling.sequence import Sequence, SequenceFacts, open_sequences
from archerfish.scheduling.sequence_table import InFlightSteps, SequenceTable

_RESERVED_SHARE = 16
"""One row and block of so many are kept free of bulk work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a step and of a sequence."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    eos_token_ids: tuple[int, ...] = ()
    max_drawn: int | None = None
    """Most tokens that a step samples, one after each draft token included; by default one for each sequence."""


@dataclass(slots=True)
class PrefixCounts:
    """How much of the prompts came from the cache."""

    num_queried: int = 0
    num_hit: int = 0


class Scheduler:
    """Every plan is committed, in the order of the plans; requests are added and cancelled between any two calls.

    A step can be planned while others are in flight, if can_plan_ahead(): each draw of theirs will add exactly one
    token. What cannot be foreseen (a stop token, a failure, a cancel) leaves a chunk of an ended sequence in later
    steps: what comes of it is dropped.
    """

    def __init__(
        self,
        limits: Limits,
        tables: KVTables,
        policy: BatchingPolicy,
        seed: int = 0,
        *,
        max_draft_tokens: int | None = None,
    ) -> None:
        """`max_draft_tokens` is how many draft tokens each chunk of the first step may have, as its executor says.

        Later steps may have as many as the result committed last allows.
        """
        self.limits = limits
        self.tables = tables
        self.policy = policy
        self.prefix_counts = PrefixCounts()
        self.expects_more = False
        """Whether more requests may arrive: batches that are not full go on waiting. Changes while a program runs."""
        self._sequences = SequenceTable(limits.max_num_seqs, tables)
        self._requests: dict[str, list[Sequence]] = {}
        """Sequences of each open request that have not ended."""
        self._in_flight = InFlightSteps()
        self._step = 0
        self._max_draft_tokens = max_draft_tokens
        """Draft tokens that each chunk of the next step may have; None if the executor never speculates."""
        self._most_draft_tokens = 0
        """The largest number of draft tokens that any plan had per chunk."""
        self._num_requests = 0
        self._facts = SequenceFacts(tables.block_size, limits.max_model_len, limits.eos_token_ids)
        self._seeds = random.Random(seed)

    @property
    def num_waiting(self) -> int:
        return len(self._sequences.waiting)

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens that waiting sequences have to be computed, less what the cache will turn out to hold."""
        return self._sequences.waiting.num_tokens

    @property
    def num_running(self) -> int:
        return self._sequences.num_running

    @property
    def num_preemptions(self) -> int:
        return self._sequences.num_preemptions

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    # -- requests -------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request, or raise a RequestError that leaves everything as it was."""
        if request.request_id in self._requests:
            raise RequestError(f"a request with id {request.request_id!r} is already open")
        if not request.prompt_token_ids:
            raise InvalidParameter("prompt", "", "it must have at least one token")
        if len(request.prompt_token_ids) >= self.limits.max_model_len:
            raise PromptTooLong(len(request.prompt_token_ids), self.limits.max_model_len)
        seed = request.params.seed if request.params.seed is not None else self._seeds.getrandbits(64)
        self._num_requests += 1
        sequences = open_sequences(request, self._num_requests, seed, self._facts)
        self._requests[request.request_id] = sequences
        # The others fork from the first once its prompt is computed.
        self._sequences.waiting.add(sequences[0])

    def cancel(
        self, request_id: str, index: int | None = None, reason: FinishReason = FinishReason.ABORT
    ) -> list[TokenEvent]:
        """End a request, or one of its sequences. What has already ended is left alone."""
        ended = [s for s in self._requests.get(request_id, []) if index is None or s.index == index]
        for sequence in ended:
            if index == 0:
                self._queue_forks(sequence)  # The others may still be waiting for this one's prompt.
            self._end(sequence)
        return [_end_event(sequence, reason) for sequence in ended]

    def cancel_all(self, error: str) -> list[TokenEvent]:
        """End every open request because of an error. Steps in flight are lost: they will not be committed."""
        self._drop_steps()
        ended = [sequence for sequences in self._requests.values() for sequence in sequences]
        for sequence in ended:
            self._end(sequence)
        return [_end_event(sequence, FinishReason.ERROR, error) for sequence in ended]

    # -- plan -----------------------------------------------------------------------------------------------------

    def can_plan_ahead(self) -> bool:
        """Whether the next step can be planned now, or only when steps in flight have been committed."""
        if not self._in_flight:
            return True
        if self._in_flight.has_draft_tokens:
            return False  # How many of them are accepted is not known yet.
        # Its grammar must have read the token that a step in flight draws before the next can be drawn.
        if any(len(s.tokens) < s.length < s.length_limit for s in self._sequences.drawn_on_host):
            return False
        # A preempted sequence gives up a row and blocks that steps in flight use; and if one of these ends another
        # sequence, no preemption is needed at all.
        return not would_preempt(self._sequences, self.limits.max_num_batched_tokens, self._admits)

    def plan(self, now: float) -> Plan:
        """Return what the next step computes. A plan without chunks is no step: nothing can run."""
        assert self.can_plan_ahead(), "commit what is in flight first"
        self.policy.open_batch(self._sequences.waiting, now, expects_more=self.expects_more)
        builder = PlanBuilder(self._sequences, self.limits.max_num_batched_tokens, now, ahead=bool(self._in_flight))
        for kind in RequestClass:
            builder.continue_running(kind)
            self._count_prefixes(builder, builder.admit(kind, self._admits))
        num_draft_tokens = 0
        if self._max_draft_tokens and builder.chunks and not self._in_flight:
            max_drawn = self.limits.max_drawn or self.limits.max_num_seqs
            num_draft_tokens = builder.reserve_draft_tokens(self._max_draft_tokens, max_drawn)
            self._most_draft_tokens = max(self._most_draft_tokens, num_draft_tokens)
        others_wait = self._max_draft_tokens is not None and not self._in_flight and self._admission_is_waiting()
        self._step += 1
        if builder.chunks:
            self._in_flight.push(self._step, builder.chunks, builder.copies)
        chunks = list(builder.chunks.values())
        return Plan(self._step, builder.starts, builder.copies, chunks, num_draft_tokens, others_wait)

    def _admission_is_waiting(self) -> bool:
        """Whether a waiting sequence starts as soon as a row is free, and not only when all that run have ended."""
        waiting = self._sequences.waiting
        return len(waiting) > 0 and self._admits(next(iter(waiting)))

    def _admits(self, sequence: Sequence) -> bool:
        """Return whether a waiting sequence may be admitted if it fits.

        Where more requests may arrive, bulk work leaves some rows and blocks free: a single request finds them at once.
        """
        if sequence.is_bulk and self.expects_more:
            pool, num_rows = self.tables.pool, self._sequences.num_rows_for(sequence.request.request_class)
            if num_rows <= self.limits.max_num_seqs // _RESERVED_SHARE:
                return False
            if self.num_running and pool.num_available <= pool.num_blocks // _RESERVED_SHARE:
                return False
        return self.policy.admits(sequence)

    def seconds_until_start(self, now: float) -> float | None:
        """Return, after a plan without chunks, when to plan again. None if only an arrival or a cancel can help."""
        return self.policy.seconds_until_start(self._sequences.waiting, now)

    def _count_prefixes(self, builder: PlanBuilder, admitted: list[Sequence]) -> None:
        for sequence in admitted:
            self.prefix_counts.num_queried += len(sequence.tokens)
            self.prefix_counts.num_hit += builder.chunks[sequence].start

    # -- commit ---------------------------------------------------------------------------------------------------

    def commit(self, plan: Plan, result: StepResult) -> list[TokenEvent]:
        """Record what the oldest step in flight computed, and return the events for clients."""
        assert len(result.tokens) == len(plan.chunks), "a result must answer every chunk"
        if not plan.chunks:
            return []
        self._max_draft_tokens = result.max_draft_tokens
        sequences = self._in_flight.pop(plan)
        # Only now: the step was still reading the blocks of sequences that ended meanwhile.
        self._sequences.free_retired(plan.step)
        self.tables.release_sources(plan.copies)
        events: list[TokenEvent] = []
        for index, (sequence, chunk, tokens) in enumerate(zip(sequences, plan.chunks, result.tokens, strict=True)):
            if sequence.ended:
                continue  # By an earlier step or a cancel in flight, or a sibling failed a moment ago.
            if index in result.failures:
                events.extend(self._fail(sequence, result.failures[index]))
                continue
            event = self._grow(sequence, chunk, tokens)
            if sequence.wants_logprobs:
                event = _with_logprobs(
                    event, sequence, chunk, result.logprobs.get(index), result.prompt_logprobs.get(index)
                )
            if event is not None:
                if index in result.embeddings:
                    event = event._replace(prompt_embedding=result.embeddings[index])
                if index in result.states:
                    event = event._replace(prompt_states=result.states[index])
                if index in result.num_draft_tokens:
                    event = event._replace(
                        num_draft_tokens=result.num_draft_tokens[index], num_accepted_tokens=len(tokens) - 1
                    )
                events.append(event)
                if event.finish_reason is not None:
                    self._end(sequence)
        return events

    def abandon(self) -> None:
        """Drop the steps in flight, whose outcome is lost: everything that runs is computed again."""
        self._drop_steps()
        self._sequences.preempt_all()

    def _drop_steps(self) -> None:
        self.tables.release_sources(self._in_flight.copies)
        self._in_flight.clear()
        self._sequences.free_all_retired()

    def _grow(self, sequence: Sequence, chunk: Chunk, tokens: list[int]) -> TokenEvent | None:
        """Append the drawn tokens up to the sequence's end, and publish what the chunk computed."""
        assert sequence.table is not None
        length, ending = len(sequence.tokens) + len(tokens), None
        if length >= sequence.length_limit or not sequence.stop_token_ids.isdisjoint(tokens):
            ending = _ending(sequence, tokens)
            if ending is not None:
                tokens = tokens[: ending.num_tokens]
                length = len(sequence.tokens) + ending.num_tokens
        sequence.tokens.extend(tokens)
        block_size, before, computed = self.tables.block_size, sequence.stored, chunk.start + chunk.length
        if len(tokens) != 1 and chunk.samples:
            assert not self._in_flight, "steps in flight count on exactly one token for each draw"
            # The last token was never an input: its keys and values are not computed yet.
            computed = min(computed + chunk.max_draft_tokens, length - 1)
            sequence.length, sequence.computed = length, computed
        sequence.stored = computed
        if self.tables.slides or computed // block_size != before // block_size:
            self.tables.advance(sequence.table, computed, sequence.block_hashes, sequence.tokens)
        if not tokens:
            return None
        if sequence.index == 0 and sequence.request.params.n > 1:
            self._queue_forks(sequence)
        return TokenEvent(
            request_id=sequence.request.request_id,
            sequence_index=sequence.index,
            token_ids=tokens,
            num_cached_tokens=sequence.num_cached_tokens,
            scheduled_time=sequence.scheduled_time,
            finish_reason=None if ending is None else ending.finish_reason,
            stop_reason=None if ending is None else ending.stop_reason,
        )

    def _queue_forks(self, parent: Sequence) -> None:
        """The parent's prompt is computed, or it ends before that: its siblings can start."""
        for sequence in parent.siblings:
            if sequence is not parent and sequence.parent is None:
                sequence.parent = parent
                self._sequences.waiting.add(sequence)

    def _fail(self, sequence: Sequence, error: str) -> list[TokenEvent]:
        """End the whole request: siblings would fail the same way, or wait for a prompt that never comes."""
        siblings = list(sequence.siblings)
        for sibling in siblings:
            self._end(sibling)
        return [_end_event(sibling, FinishReason.ERROR, error) for sibling in siblings]

    def _end(self, sequence: Sequence) -> None:
        """End a sequence. Its row and blocks are freed when no step in flight uses them any more."""
        request_id = sequence.request.request_id
        sequence.ended = True
        sequence.siblings.remove(sequence)
        if not sequence.siblings:
            del self._requests[request_id]
            self.policy.forget(request_id)
        if sequence.table is None:
            if sequence.index == 0 or sequence.parent is not None:
                self._sequences.waiting.remove(sequence)
        elif (last_step := self._in_flight.last_step(sequence)) is not None:
            self._sequences.retire(sequence, last_step)
        else:
            self._sequences.release(sequence)

    def check(self) -> None:
        """Check that every row, block and sequence is accounted for exactly once, and the steps in flight with them."""
        self._sequences.check(self._most_draft_tokens, self._in_flight.copies)
        running = [sequence for sequences in self._sequences.running.values() for sequence in sequences]
        self._in_flight.check(running, self._sequences.retired)


class _Ending(NamedTuple):
    """Where and why drawn tokens end a sequence."""

    num_tokens: int
    """How many of them still belong to the sequence."""
    finish_reason: FinishReason
    stop_reason: int | None = None


def _ending(sequence: Sequence, drawn: list[int]) -> _Ending | None:
    """Return the end at the first stop token that counts or at the length limit; None if the sequence goes on."""
    for num_tokens, token in enumerate(drawn, start=1):
        length = len(sequence.tokens) + num_tokens
        if token in sequence.stop_token_ids and length > sequence.stops_after:
            named = token in sequence.request.params.stop_token_ids
            return _Ending(num_tokens, FinishReason.STOP, token if named else None)
        if length >= sequence.length_limit:
            return _Ending(num_tokens, FinishReason.LENGTH)
    return None


def _end_event(sequence: Sequence, reason: FinishReason, error: str | None = None) -> TokenEvent:
    return TokenEvent(
        request_id=sequence.request.request_id,
        sequence_index=sequence.index,
        token_ids=[],
        num_cached_tokens=sequence.num_cached_tokens,
        scheduled_time=sequence.scheduled_time,
        finish_reason=reason,
        error=error,
    )


def _with_logprobs(
    event: TokenEvent | None,
    sequence: Sequence,
    chunk: Chunk,
    logprobs: list[TokenLogprobs] | None,
    prompt_logprobs: list[TokenLogprobs] | None,
) -> TokenEvent | None:
    if prompt_logprobs is not None:
        # After a preemption the prompt is computed again; what was reported is not reported twice.
        prompt_logprobs = prompt_logprobs[max(0, sequence.num_prompt_logprobs - chunk.start) :]
        sequence.num_prompt_logprobs += len(prompt_logprobs)
    if not logprobs and not prompt_logprobs:
        return event
    if event is None:
        event = TokenEvent(sequence.request.request_id, sequence.index, [])
    if logprobs is not None:
        logprobs = logprobs[: len(event.token_ids)]  # The sequence may have ended before the last token drawn.
    return event._replace(logprobs=logprobs, prompt_logprobs=prompt_logprobs)
