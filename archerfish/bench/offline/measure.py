"""Runs workloads through the engine alone, without HTTP and text, and measures them. Prints nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from archerfish.arch.cost import StepCost
from archerfish.bench.distribution import Distribution, distribution
from archerfish.bench.offline.phases import Phase, StepMeter
from archerfish.bench.offline.workloads import OfflineWorkload
from archerfish.engine.build import Assembly
from archerfish.engine.driver import EngineDriver
from archerfish.engine.engine import Clock, Engine
from archerfish.engine.input_processor import InputProcessor
from archerfish.errors import StepFailed
from archerfish.execution.executor import Executor, LaunchedStep
from archerfish.machine.peak import Peak
from archerfish.metrics.speculation import SpeculationStats, SpeculationTotals, speculation_between
from archerfish.metrics.timing import RequestTiming
from archerfish.request import Request, SamplingParams, TokenEvent
from archerfish.scheduling.plan import Plan, StepResult
from archerfish.scheduling.scheduler import Scheduler

T = TypeVar("T")

Progress = Callable[[float], None]
"""Called with the tokens generated so far."""


class TimedExecutor:
    """Runs plans with another executor, and adds up the time spent launching and waiting."""

    def __init__(self, inner: Executor, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self.seconds = 0.0

    @property
    def max_in_flight(self) -> int:
        return self._inner.max_in_flight

    @property
    def max_draft_tokens(self) -> int | None:
        return self._inner.max_draft_tokens

    def launch(self, plan: Plan) -> "TimedStep":
        return TimedStep(self, self.timed(lambda: self._inner.launch(plan)))

    def timed(self, part: Callable[[], T]) -> T:
        started = self._clock()
        outcome = part()
        self.seconds += self._clock() - started
        return outcome

    def close(self) -> None:
        """Do nothing: the engine that owns the executor closes it."""


@dataclass(frozen=True, slots=True)
class TimedStep:
    executor: TimedExecutor
    inner: LaunchedStep

    def result(self) -> StepResult:
        return self.executor.timed(self.inner.result)


@dataclass(slots=True)
class JobOutput:
    """The output of one job, with its times."""

    timing: RequestTiming
    tokens: list[int]
    gaps: list[float]
    """Seconds between one token and the next."""
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRun:
    """One run of a workload through the engine."""

    seconds: float
    answers: tuple[JobOutput, ...]
    """Outputs in the order of the jobs."""
    num_steps: int
    num_preemptions: int
    most_blocks: int
    """Largest number of blocks of the KV cache in use or cached at once."""


class OfflineBench:
    """An engine to be measured, and the peak to compare with."""

    def __init__(
        self, scheduler: Scheduler, executor: Executor, processor: InputProcessor, clock: Clock, cost: StepCost
    ) -> None:
        self._executor = TimedExecutor(executor, clock)
        self._engine = Engine(scheduler, self._executor, clock, cost=cost)
        self._processor = processor
        self._cost = cost

    @classmethod
    def of(cls, assembly: Assembly) -> Self:
        engine = assembly.engine
        assert engine.cost is not None, "a built engine knows what its steps cost"
        return cls(engine.scheduler, assembly.executor, assembly.processor, engine.clock, engine.cost)

    @property
    def speculation_totals(self) -> SpeculationTotals:
        counts = self._engine.counts
        return SpeculationTotals(
            counts.num_drafts,
            counts.num_draft_tokens,
            counts.num_accepted_tokens,
            tuple(counts.accepted_per_position),
            counts.drafting_time,
            counts.saved_seconds - counts.lost_seconds,
            counts.num_generated_tokens,
            counts.busy_time,
        )

    def meter(self, peak: Peak) -> StepMeter:
        return StepMeter(self._cost, peak)

    def run(
        self,
        workload: OfflineWorkload,
        meter: StepMeter | None = None,
        progress: Progress = lambda _: None,
        *,
        cache_salt: str = "",
    ) -> WorkloadRun:
        """Give the engine all jobs at once, and step until the last is done.

        Runs with different salts share no cache.
        """
        engine = self._engine
        requests = self._requests(workload, cache_salt)
        steps_before, preemptions_before = engine.counts.num_steps, engine.scheduler.num_preemptions
        started = engine.clock()
        answers = {}
        for request in requests:
            engine.add(replace(request, arrival_time=started))
            answers[request.request_id] = JobOutput(RequestTiming(started), [], [])
        num_written = most_blocks = 0

        def take(event: TokenEvent, now: float) -> None:
            nonlocal num_written
            num_written += len(event.token_ids)
            _take_in(event, answers[event.request_id], now)

        driver = EngineDriver(engine, take)
        while engine.has_work:
            self._step(driver, meter)
            pool = engine.scheduler.tables.pool
            most_blocks = max(most_blocks, pool.num_blocks - pool.num_free)
            progress(num_written)
        return WorkloadRun(
            seconds=engine.clock() - started,
            answers=tuple(answers.values()),
            num_steps=engine.counts.num_steps - steps_before,
            num_preemptions=engine.scheduler.num_preemptions - preemptions_before,
            most_blocks=most_blocks,
        )

    def _requests(self, workload: OfflineWorkload, cache_salt: str) -> list[Request]:
        requests = []
        for index, job in enumerate(workload.jobs):
            params = SamplingParams(
                temperature=workload.temperature, max_tokens=job.num_tokens, ignore_eos=True, seed=index
            )
            requests.append(self._processor.request(job.prompt, params, external_id=str(index), cache_salt=cache_salt))
        return requests

    def _step(self, driver: EngineDriver, meter: StepMeter | None) -> None:
        engine = self._engine
        before, seconds_before = engine.last_step, self._executor.seconds
        driver.step()
        step = engine.last_step
        if meter is not None and step is not None and step is not before:
            meter.add(step, step.seconds - (self._executor.seconds - seconds_before))


def _take_in(event: TokenEvent, answer: JobOutput, now: float) -> None:
    if event.error is not None:
        raise StepFailed(f"a request failed: {event.error}")
    timing = answer.timing
    if event.scheduled_time is not None and timing.scheduled_time is None:
        timing.scheduled_time = event.scheduled_time
        answer.num_cached_tokens = event.num_cached_tokens
    if event.token_ids:
        if timing.last_token_time is not None:
            # Tokens that arrive together share their gap.
            gap = (now - timing.last_token_time) / len(event.token_ids)
            answer.gaps += [gap] * len(event.token_ids)
        timing.record_tokens(len(event.token_ids), now)
        answer.tokens += event.token_ids
    if event.finish_reason is not None:
        timing.finished_time = now


# -- the two measurements ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyResult:
    """Results of batches of equal requests, one after another. All times in seconds."""

    input_len: int
    output_len: int
    batch_size: int
    num_iterations: int
    batch: Distribution
    """Time from the start until the last output of a batch is complete."""
    ttft: Distribution
    """Time to first token of every request."""
    tpot: Distribution | None
    """Time per output token after the first, one value per request; None with fewer than two tokens."""
    itl: Distribution | None
    """Gaps between tokens, one value per gap."""
    prefill: Phase
    decode: Phase
    speculation: SpeculationStats | None
    """Statistics of draft tokens; None if nothing was drafted."""


def measure_latency(
    bench: OfflineBench,
    workloads: Sequence[OfflineWorkload],
    num_warmup: int,
    peak: Peak,
    progress: Progress = lambda _: None,
) -> LatencyResult:
    """Run the workloads one after another; the first few only warm up. Progress counts workloads."""
    meter = bench.meter(peak)
    runs, before = [], bench.speculation_totals
    for index, workload in enumerate(workloads):
        before = bench.speculation_totals if index <= num_warmup else before
        run = bench.run(workload, meter if index >= num_warmup else None)
        if index >= num_warmup:
            runs.append(run)
        progress(index + 1)
    assert runs, "a measurement needs more than warm-ups"
    jobs = workloads[0].jobs
    batch, ttft = distribution([run.seconds for run in runs]), _ttft(runs)
    assert batch is not None
    return LatencyResult(
        input_len=len(jobs[0].prompt),
        output_len=jobs[0].num_tokens,
        batch_size=len(jobs),
        num_iterations=len(runs),
        batch=batch,
        ttft=ttft,
        tpot=_tpot(runs),
        itl=distribution([gap for run in runs for answer in run.answers for gap in answer.gaps]),
        prefill=meter.prefill,
        decode=meter.decode,
        speculation=speculation_between(before, bench.speculation_totals),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputResult:
    """Results of a workload that arrives at once. All times in seconds."""

    workload: str
    num_requests: int
    num_input_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    """Input tokens that did not have to be computed."""
    seconds: float
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    """Input and output tokens per second."""
    ttft: Distribution
    tpot: Distribution | None
    num_steps: int
    num_preemptions: int
    prefill: Phase
    decode: Phase
    speculation: SpeculationStats | None
    """Statistics of draft tokens; None if nothing was drafted."""


def measure_throughput(
    bench: OfflineBench, workload: OfflineWorkload, peak: Peak, progress: Progress = lambda _: None
) -> ThroughputResult:
    """Run the workload once."""
    meter, before = bench.meter(peak), bench.speculation_totals
    run = bench.run(workload, meter, progress)
    num_output = sum(len(answer.tokens) for answer in run.answers)
    return ThroughputResult(
        workload=workload.name,
        num_requests=len(run.answers),
        num_input_tokens=workload.num_input_tokens,
        num_output_tokens=num_output,
        num_cached_tokens=sum(answer.num_cached_tokens for answer in run.answers),
        seconds=run.seconds,
        requests_per_second=len(run.answers) / run.seconds,
        output_tokens_per_second=num_output / run.seconds,
        total_tokens_per_second=(workload.num_input_tokens + num_output) / run.seconds,
        ttft=_ttft([run]),
        tpot=_tpot([run]),
        num_steps=run.num_steps,
        num_preemptions=run.num_preemptions,
        prefill=meter.prefill,
        decode=meter.decode,
        speculation=speculation_between(before, bench.speculation_totals),
    )


def _ttft(runs: Sequence[WorkloadRun]) -> Distribution:
    values = [answer.timing.ttft for run in runs for answer in run.answers]
    summary = distribution([value for value in values if value is not None])
    assert summary is not None, "every answer has a first token"
    return summary


def _tpot(runs: Sequence[WorkloadRun]) -> Distribution | None:
    values = [answer.timing.tpot for run in runs for answer in run.answers]
    return distribution([value for value in values if value is not None])
