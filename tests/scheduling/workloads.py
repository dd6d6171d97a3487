"""Runs a workload through the scheduler, checking every plan and every event against what must hold of any workload."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from archerfish.kvcache.tables import KVTables, blocks_held
from archerfish.request import FinishReason, Request, RequestClass, SamplingParams, TokenEvent
from archerfish.scheduling.plan import Chunk, Plan
from archerfish.scheduling.policy import batching_policy
from archerfish.scheduling.scheduler import Limits, Scheduler
from archerfish.scheduling.sequence import sequence_seed
from tests.scheduling.auditing import AuditedStep, AuditingExecutor, drawn_token

EOS = 3
STEP_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the engine is."""

    block_size: int
    windows: tuple[int | None, ...]
    step_tokens: int
    num_rows: int
    max_model_len: int
    spare_blocks: int
    """Beyond what one sequence of full length holds."""
    prefix_caching: bool
    policy: str = "continuous"
    most_drawn: int = 1
    """Tokens that one chunk draws at most."""
    max_in_flight: int = 1
    num_draft_tokens: int = 0
    """Draft tokens after each draw, at most."""

    @property
    def num_blocks(self) -> int:
        one = blocks_held(self.max_model_len, self.windows, self.block_size, self.step_tokens)
        return one + self.spare_blocks


@dataclass(frozen=True, kw_only=True)
class Arrival:
    step: int
    prompt: tuple[int, ...]
    params: SamplingParams
    request_class: RequestClass = RequestClass.ONLINE
    priority: int = 0
    salt: str = ""
    tenant: str = ""


@dataclass(frozen=True, kw_only=True)
class Cancel:
    step: int
    in_flight: bool
    """Between plan and commit, rather than before the plan."""
    request: int
    """Which arrival."""
    index: int | None = None


@dataclass(frozen=True, kw_only=True)
class Failure:
    step: int
    chunk: int


@dataclass(frozen=True, kw_only=True)
class Workload:
    arrivals: list[Arrival]
    cancels: list[Cancel] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    interrupts: list[int] = field(default_factory=list)
    """Steps whose outcome is lost."""


class SequenceId(NamedTuple):
    request_id: str
    number: int


@dataclass
class Record:
    """What an observer knows of one sequence."""

    request: Request
    index: int
    can_wait: bool
    """It is in the queue, or was: forks only enter it once the prompt is computed."""
    started: bool = False
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None

    @property
    def order(self) -> tuple[object, ...]:
        request = self.request
        return (request.request_class, request.priority, request.arrival_time, request.request_id, self.index)

    @property
    def seed(self) -> int:
        assert self.request.params.seed is not None
        return sequence_seed(self.request.params.seed, self.index)


class InFlight(NamedTuple):
    plan: Plan
    step: AuditedStep
    records: list[Record]
    """Whose chunks they are."""


class Expected(NamedTuple):
    tokens: list[int]
    finish_reason: FinishReason
    stop_reason: int | None


def expected_answer(request: Request, index: int, max_model_len: int) -> Expected:
    """What a sequence writes when it is alone and nothing disturbs it, by the definition of its parameters."""
    params, prompt = request.params, request.prompt_token_ids
    assert params.seed is not None
    tokens: list[int] = []
    while True:
        token = drawn_token(prompt, sequence_seed(params.seed, index), len(prompt) + len(tokens))
        tokens.append(token)
        named = token in params.stop_token_ids
        if len(tokens) > params.min_tokens and (named or (token == EOS and not params.ignore_eos)):
            return Expected(tokens, FinishReason.STOP, token if named else None)
        if len(tokens) == params.max_tokens or len(prompt) + len(tokens) == max_model_len:
            return Expected(tokens, FinishReason.LENGTH, None)


class Run:
    """One run of one workload. `happened` counts what it came across, so that a test can demand that it did."""

    def __init__(self, shape: Shape, workload: Workload) -> None:
        self.shape = shape
        self.happened: Counter[str] = Counter()
        self.num_steps = 0
        self._workload = workload
        self._ids = {number: f"request {number:04}" for number in range(len(workload.arrivals))}
        self._arrivals: dict[int, list[tuple[int, Arrival]]] = defaultdict(list)
        for number, arrival in enumerate(workload.arrivals):
            self._arrivals[arrival.step].append((number, arrival))
        self._cancels: dict[tuple[int, bool], list[Cancel]] = defaultdict(list)
        for cancel in workload.cancels:
            self._cancels[cancel.step, cancel.in_flight].append(cancel)
        self._records: dict[SequenceId, Record] = {}
        self._at_the_door: dict[SequenceId, Record] = {}
        """Waits, and was never let in."""
        self._by_seed: dict[int, SequenceId] = {}
        self._by_row: dict[int, SequenceId] = {}
        """Who was started on each row last."""
        self._in_flight: deque[InFlight] = deque()
        self._tables = KVTables(
            shape.num_blocks,
            shape.block_size,
            shape.windows,
            step_tokens=shape.step_tokens,
            prefix_caching=shape.prefix_caching,
        )
        limits = Limits(
            max_num_seqs=shape.num_rows,
            max_num_batched_tokens=shape.step_tokens,
            max_model_len=shape.max_model_len,
            eos_token_ids=(EOS,),
            max_drawn=shape.num_rows + 2 * shape.num_draft_tokens,
        )
        policy = batching_policy(shape.policy, shape.num_rows, window=4 * STEP_SECONDS)
        self._salts: dict[int, str] = {}
        self._executor = AuditingExecutor(
            shape.block_size, shape.windows, self._salts, shape.most_drawn, shape.max_in_flight, shape.num_draft_tokens
        )
        self.scheduler = Scheduler(limits, self._tables, policy, max_draft_tokens=self._executor.max_draft_tokens)

    def finish(self) -> None:
        """Step until everything has ended, then look at what is left."""
        last_arrival = max((arrival.step for arrival in self._workload.arrivals), default=-1)
        step = 0
        while step <= last_arrival or self.scheduler.has_work or self._in_flight:
            self.scheduler.expects_more = step < last_arrival
            self._step(step)
            step += 1
            assert step < last_arrival + self._most_steps(), "a request starves"
        self.num_steps = step
        self._check_end()
        self.happened["preemptions"] = self.scheduler.num_preemptions
        self.happened["copies"] = self._executor.num_copies

    def _most_steps(self) -> int:
        """Generous, but only linear in the work: every answer may be computed from its start a few times."""
        work = sum(
            a.params.n * (len(a.prompt) + (a.params.max_tokens or self.shape.max_model_len))
            for a in self._workload.arrivals
        )
        return 20 + 2 * work + self.shape.max_model_len * len(self._workload.interrupts)

    # -- one step -------------------------------------------------------------------------------------------------

    def _step(self, step: int) -> None:
        for number, arrival in self._arrivals[step]:
            self._add(number, arrival)
        self._cancel(step, in_flight=False)
        self.scheduler.check()
        had_work = self.scheduler.has_work
        self._launch(step)
        if had_work and (self.shape.policy == "continuous" or not self.scheduler.expects_more):
            assert self._in_flight, "there is work, and nothing is done"
        self._cancel(step, in_flight=True)
        self.scheduler.check()
        if step in self._workload.interrupts:
            self._interrupt()
        elif self._in_flight:
            self._commit()

    def _launch(self, step: int) -> None:
        """As many steps as may be in flight, as the engine does."""
        failing = [failure.chunk for failure in self._workload.failures if failure.step == step]
        while len(self._in_flight) < self.shape.max_in_flight:
            if not self.scheduler.can_plan_ahead():
                self.happened["collected first"] += 1
                break
            plan = self.scheduler.plan(step * STEP_SECONDS)
            self.scheduler.check()
            self._check_plan(plan)
            if not plan.chunks:
                break
            self.happened["planned ahead"] += bool(self._in_flight)
            failures = {place % len(plan.chunks): "made to fail" for place in failing}
            records = [self._records[self._by_row[chunk.row]] for chunk in plan.chunks]
            self._in_flight.append(InFlight(plan, self._executor.launch(plan, failures), records))

    def _commit(self) -> None:
        plan, step, records = self._in_flight.popleft()
        self.happened["dropped"] += sum(record.finish_reason is not None for record in records)
        events = self.scheduler.commit(plan, step.result())
        self.scheduler.check()
        self._take(events)

    def _interrupt(self) -> None:
        """The outcome of the steps in flight is lost."""
        self.happened["interrupted"] += bool(self._in_flight)
        while self._in_flight:
            self._in_flight.popleft().step.result()
        self.scheduler.abandon()
        self.scheduler.check()

    def _add(self, number: int, arrival: Arrival) -> None:
        request = Request(
            request_id=self._ids[number],
            prompt_token_ids=arrival.prompt,
            params=arrival.params,
            arrival_time=arrival.step * STEP_SECONDS,
            request_class=arrival.request_class,
            priority=arrival.priority,
            cache_salt=arrival.salt,
            tenant=arrival.tenant,
        )
        for index in range(arrival.params.n):
            record = Record(request, index, can_wait=index == 0)
            self._records[SequenceId(request.request_id, index)] = record
            assert record.seed not in self._by_seed, "sequences have different seeds"
            self._by_seed[record.seed] = SequenceId(request.request_id, index)
            self._salts[record.seed] = arrival.salt
            if index == 0:
                self._at_the_door[SequenceId(request.request_id, 0)] = record
        self.scheduler.add(request)

    def _cancel(self, step: int, *, in_flight: bool) -> None:
        for cancel in self._cancels[step, in_flight]:
            request_id = self._ids.get(cancel.request, "unknown")
            still_open = [
                sequence
                for sequence in self._sequences(request_id)
                if cancel.index in (None, sequence.number) and self._records[sequence].finish_reason is None
            ]
            events = self.scheduler.cancel(request_id, cancel.index)
            assert sorted((e.request_id, e.sequence_index) for e in events) == sorted(still_open)
            assert all(event.finish_reason is FinishReason.ABORT and not event.token_ids for event in events)
            self.happened["cancelled"] += len(events)
            self.happened["cancelled in flight"] += len(events) if self._in_flight else 0
            self._take(events)
            if cancel.index == 0:
                self._let_siblings_wait(request_id)

    # -- what must hold -------------------------------------------------------------------------------------------

    def _check_plan(self, plan: Plan) -> None:
        num_draft_tokens = [chunk.max_draft_tokens for chunk in plan.chunks]
        assert plan.num_tokens + sum(num_draft_tokens) <= self.shape.step_tokens
        num_drawn = sum(num_draft_tokens) + sum(chunk.samples for chunk in plan.chunks)
        assert num_drawn <= self.shape.num_rows + 2 * self.shape.num_draft_tokens
        self.happened["drafted"] += sum(num_draft_tokens)
        rows = [chunk.row for chunk in plan.chunks]
        assert len(set(rows)) == len(rows) <= self.shape.num_rows
        assert all(chunk.length >= 1 and 0 <= chunk.row < self.shape.num_rows for chunk in plan.chunks)
        assert {start.row for start in plan.starts} <= set(rows), "a sequence is started only to be computed"
        started = [self._records[self._by_seed[start.seed]] for start in plan.starts]
        for start, record in zip(plan.starts, started, strict=True):
            assert record.finish_reason is None and record.can_wait
            assert start.tokens == (*record.request.prompt_token_ids, *record.tokens)
            self.happened["resumed" if record.started else "started"] += 1
            if start.blocks[0] and not record.started:
                self.happened["prefix hits" if record.index == 0 else "shared prompts"] += 1
                self.happened["forks"] += record.index > 0 and not self.shape.prefix_caching
            record.started = True
            self._at_the_door.pop(self._by_seed[start.seed], None)
            self._by_row[start.row] = self._by_seed[start.seed]
        for chunk in plan.chunks:
            self._check_end_of(chunk)
            self._check_form_of(chunk)
        if self.shape.policy == "continuous":
            self._check_order(started)

    def _check_end_of(self, chunk: Chunk) -> None:
        """No sequence known to have ended is computed, nor anything beyond an end that is certain."""
        record = self._records[self._by_row[chunk.row]]
        assert record.finish_reason is None
        params, num_prompt = record.request.params, len(record.request.prompt_token_ids)
        limit = self.shape.max_model_len if params.max_tokens is None else num_prompt + params.max_tokens
        # The last token is drawn and never computed.
        assert chunk.start + chunk.length < min(limit, self.shape.max_model_len)

    def _check_form_of(self, chunk: Chunk) -> None:
        """Nothing is drawn by a grammar that has not read the last token yet."""
        record = self._records[self._by_row[chunk.row]]
        if record.request.params.structured is None or not chunk.samples:
            return
        self.happened["drawn by a grammar"] += 1
        for plan, _, records in self._in_flight:
            drawn = zip(records, plan.chunks, strict=True)
            assert not any(other is record and earlier.samples for other, earlier in drawn)

    def _check_order(self, started: list[Record]) -> None:
        """No request is admitted before one of the same class and tenant that comes before it.

        Nor before one of any tenant, if that is of a higher priority.
        """
        for kind in RequestClass:
            admitted = [record for record in started if record.request.request_class is kind]
            left = [record for record in self._at_the_door.values() if record.request.request_class is kind]
            priorities = [record.request.priority for record in admitted]
            assert priorities == sorted(priorities)
            assert not admitted or all(priorities[-1] <= record.request.priority for record in left)
            for tenant in {record.request.tenant for record in admitted}:
                orders = [record.order for record in admitted if record.request.tenant == tenant]
                assert orders == sorted(orders)
                assert all(orders[-1] < record.order for record in left if record.request.tenant == tenant)

    def _take(self, events: list[TokenEvent]) -> None:
        for event in events:
            record = self._records[SequenceId(event.request_id, event.sequence_index)]
            assert record.finish_reason is None, "news of a sequence that has ended"
            record.tokens += event.token_ids
            self.happened["several tokens at once"] += len(event.token_ids) > 1
            record.finish_reason, record.stop_reason = event.finish_reason, event.stop_reason
            if event.token_ids and event.sequence_index == 0:
                self._let_siblings_wait(event.request_id)
            if event.finish_reason is not None:
                self.happened[event.finish_reason.value] += 1
                self._at_the_door.pop(SequenceId(event.request_id, event.sequence_index), None)
            assert (event.error == "made to fail") == (event.finish_reason is FinishReason.ERROR)

    def _check_end(self) -> None:
        scheduler = self.scheduler
        assert (scheduler.num_waiting, scheduler.num_running) == (0, 0)
        assert self._tables.pool.num_in_use == 0
        scheduler.check()
        for record in self._records.values():
            expected = expected_answer(record.request, record.index, self.shape.max_model_len)
            if record.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert Expected(record.tokens, record.finish_reason, record.stop_reason) == expected
            else:
                assert record.finish_reason is not None, "a sequence was forgotten"
                assert record.tokens == expected.tokens[: len(record.tokens)]
                assert len(record.tokens) < len(expected.tokens), "it had already ended"

    def _sequences(self, request_id: str) -> Iterator[SequenceId]:
        index = 0
        while (sequence := SequenceId(request_id, index)) in self._records:
            yield sequence
            index += 1

    def _let_siblings_wait(self, request_id: str) -> None:
        """The first sequence's prompt is computed, or it has ended: the others are in the queue from now on."""
        for sequence in self._sequences(request_id):
            record = self._records[sequence]
            if not record.can_wait and record.finish_reason is None:
                record.can_wait = True
                self._at_the_door[sequence] = record
