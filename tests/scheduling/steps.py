"""Short ways to make a scheduler and requests, and to see what a step did."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from archerfish.execution.scripted import Script, ScriptedExecutor, count_up
from archerfish.kvcache.tables import KVTables
from archerfish.request import Request, RequestClass, SamplingParams, TokenEvent
from archerfish.scheduling.plan import Plan, StepResult
from archerfish.scheduling.policy import BatchingPolicy, ContinuousBatching
from archerfish.scheduling.scheduler import Limits, Scheduler

ONLINE, BATCH = RequestClass.ONLINE, RequestClass.BATCH


def request(
    request_id: str,
    prompt: int | Sequence[int],
    *,
    arrival: float = 0.0,
    kind: RequestClass = ONLINE,
    priority: int = 0,
    salt: str = "",
    tenant: str = "",
    **params: Any,
) -> Request:
    """A number stands for a prompt of that length that shares nothing with others."""
    if isinstance(prompt, int):
        first = sum(ord(letter) * 31**place for place, letter in enumerate(request_id)) % 2**31
        prompt = [first, *range(1, prompt)]
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(**{"max_tokens": 4, "ignore_eos": True, **params}),
        arrival_time=arrival,
        request_class=kind,
        priority=priority,
        cache_salt=salt,
        tenant=tenant,
    )


@dataclass
class Stepper:
    """A scheduler with a scripted executor, and the events of every request so far."""

    scheduler: Scheduler
    executor: ScriptedExecutor
    events: list[TokenEvent] = field(default_factory=list)
    rows: dict[int, str] = field(default_factory=dict)
    """The request whose prompt each row has, as far as plans say."""
    prompts: dict[tuple[int, ...], str] = field(default_factory=dict)
    now: float = 0.0

    def add(self, *requests: Request) -> None:
        for one in requests:
            self.prompts[one.prompt_token_ids] = one.request_id
            self.scheduler.add(one)

    def plan(self) -> Plan:
        plan = self.scheduler.plan(self.now)
        self.scheduler.check()
        for start in plan.starts:
            self.rows[start.row] = self.prompts[start.tokens[: start.num_prompt_tokens]]
        return plan

    def commit(self, plan: Plan, result: StepResult | None = None) -> list[TokenEvent]:
        events = self.scheduler.commit(plan, self.executor.run(plan) if result is None else result)
        self.scheduler.check()
        self.events += events
        return events

    def step(self) -> dict[str, list[int]]:
        """One step: for each request the lengths of its chunks."""
        plan = self.plan()
        self.commit(plan)
        return self.lengths(plan)

    def lengths(self, plan: Plan) -> dict[str, list[int]]:
        lengths: dict[str, list[int]] = {}
        for chunk in plan.chunks:
            lengths.setdefault(self.rows[chunk.row], []).append(chunk.length)
        return lengths

    def finish(self, most_steps: int = 1000) -> None:
        for _ in range(most_steps):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError("it does not end")

    def tokens(self, request_id: str, index: int = 0) -> list[int]:
        named = [event for event in self.events if (event.request_id, event.sequence_index) == (request_id, index)]
        return [token for event in named for token in event.token_ids]

    def last_event(self, request_id: str, index: int = 0) -> TokenEvent:
        return [event for event in self.events if (event.request_id, event.sequence_index) == (request_id, index)][-1]


def stepper(
    *,
    rows: int = 8,
    step_tokens: int = 64,
    max_model_len: int = 64,
    blocks: int = 64,
    block_size: int = 4,
    windows: tuple[int | None, ...] = (None,),
    caching: bool = False,
    policy: BatchingPolicy | None = None,
    eos: tuple[int, ...] = (),
    script: Script = count_up,
    seed: int = 0,
    max_draft_tokens: int | None = None,
    max_drawn: int | None = None,
) -> Stepper:
    limits = Limits(
        max_num_seqs=rows,
        max_num_batched_tokens=step_tokens,
        max_model_len=max_model_len,
        eos_token_ids=eos,
        max_drawn=max_drawn,
    )
    tables = KVTables(blocks, block_size, windows, step_tokens=step_tokens, prefix_caching=caching)
    executor = ScriptedExecutor(script, block_size, max_draft_tokens=max_draft_tokens or 0)
    policy = policy or ContinuousBatching()
    scheduler = Scheduler(limits, tables, policy, seed, max_draft_tokens=max_draft_tokens)
    return Stepper(scheduler, executor)


def answer(one: Request, count: int) -> list[int]:
    """What the scripted executor writes."""
    length = len(one.prompt_token_ids)
    return [count_up(one.prompt_token_ids, length + place) for place in range(count)]
