"""The engine's step survives what executors do to it: every open request hears how it ended, and nothing hangs."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from archerfish.engine.engine import Engine
from archerfish.errors import EngineStopped, RequestError
from archerfish.execution.scripted import ScriptedExecutor, ScriptedStep, count_up
from archerfish.kvcache.tables import KVTables
from archerfish.request import FinishReason, Request, SamplingParams, TokenEvent
from archerfish.scheduling.plan import Plan, StepResult
from archerfish.scheduling.policy import ContinuousBatching
from archerfish.scheduling.scheduler import Limits, Scheduler

overlapped = pytest.mark.parametrize("max_in_flight", [1, 2, 3])

Disturbance = Callable[[int, StepResult], StepResult]
"""(step, what would have come back) -> what comes back, or an exception."""


class DisturbedExecutor:
    """Runs like the scripted one until something is done to it, and counts how often it is closed."""

    def __init__(
        self,
        disturb: Disturbance | None = None,
        *,
        close_error: Exception | None = None,
        max_in_flight: int = 1,
    ) -> None:
        self.max_in_flight = max_in_flight
        self.scripted = ScriptedExecutor(block_size=4, max_in_flight=max_in_flight)
        self.disturb = disturb
        self._close_error = close_error
        self.num_runs = 0
        self.num_closed = 0

    def launch(self, plan: Plan) -> "DisturbedStep":
        assert not self.num_closed, "no run after close"
        self.num_runs += 1
        return DisturbedStep(self, self.num_runs, self.scripted.launch(plan))

    def close(self) -> None:
        self.scripted.close()
        self.num_closed += 1
        if self._close_error is not None:
            raise self._close_error


@dataclass
class DisturbedStep:
    """What is done to a step is done to it once, when its result is first asked for."""

    executor: DisturbedExecutor
    number: int
    scripted: ScriptedStep
    is_disturbed: bool = False

    def result(self) -> StepResult:
        result = self.scripted.result()
        if self.executor.disturb is None or self.is_disturbed:
            return result
        self.is_disturbed = True
        return self.executor.disturb(self.number, result)


class Ticks:
    """A clock that moves by one second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def engine(executor: DisturbedExecutor, *, rows: int = 4, check_invariants: bool = True) -> Engine:
    limits = Limits(max_num_seqs=rows, max_num_batched_tokens=32, max_model_len=64)
    tables = KVTables(64, 4, (None,), step_tokens=32, prefix_caching=True)
    scheduler = Scheduler(limits, tables, ContinuousBatching())
    return Engine(scheduler, executor, Ticks(), check_invariants=check_invariants)


def request(request_id: str, length: int = 5, *, max_tokens: int = 4, n: int = 1) -> Request:
    prompt = tuple(range(ord(request_id[0]), ord(request_id[0]) + length))
    params = SamplingParams(max_tokens=max_tokens, n=n)
    return Request(request_id=request_id, prompt_token_ids=prompt, params=params, arrival_time=0.0)


def run_out(serving: Engine, most_steps: int = 50) -> list[TokenEvent]:
    """Step until nothing is left to do, or fail instead of hanging."""
    events: list[TokenEvent] = []
    for _ in range(most_steps):
        if not serving.has_work:
            return events
        events += serving.step()
    raise AssertionError("it hangs")


def ends(events: list[TokenEvent]) -> dict[tuple[str, int], FinishReason]:
    """How each sequence ended; a second end would be an error."""
    found: dict[tuple[str, int], FinishReason] = {}
    for event in events:
        if event.finish_reason is not None:
            assert (event.request_id, event.sequence_index) not in found
            found[event.request_id, event.sequence_index] = event.finish_reason
    return found


def raise_at(step: int, error: BaseException) -> Disturbance:
    def disturb(number: int, result: StepResult) -> StepResult:
        if number == step:
            raise error
        return result

    return disturb


@overlapped
def test_requests_are_served_to_their_ends(max_in_flight: int) -> None:
    serving = engine(DisturbedExecutor(max_in_flight=max_in_flight))
    asked = [request("a"), request("b", 9, max_tokens=7)]
    for one in asked:
        serving.add(one)
    events = run_out(serving)
    for one in asked:
        tokens = [token for event in events if event.request_id == one.request_id for token in event.token_ids]
        length = len(one.prompt_token_ids)
        assert tokens == [count_up(one.prompt_token_ids, length + place) for place in range(len(tokens))]
    assert set(ends(events).values()) == {FinishReason.LENGTH}


# -- an executor that raises ------------------------------------------------------------------------------------------


@overlapped
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_step_that_raises_ends_every_open_request_with_the_reason(step: int, max_in_flight: int) -> None:
    error = RuntimeError("out of memory: 3 GiB needed")
    executor = DisturbedExecutor(raise_at(step, error), max_in_flight=max_in_flight)
    serving = engine(executor, rows=2)
    serving.add(request("a", n=3, max_tokens=20))
    serving.add(request("b", 40, max_tokens=20))
    serving.add(request("c", max_tokens=20))
    events = run_out(serving)
    failed = ends(events)
    assert set(failed) == {("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0)}
    assert set(failed.values()) == {FinishReason.ERROR}
    reasons = {event.error for event in events if event.finish_reason is not None}
    assert len(reasons) == 1
    (reason,) = reasons
    assert reason is not None and "RuntimeError" in reason and "out of memory: 3 GiB needed" in reason
    assert serving.stopped == reason
    assert not serving.has_work
    assert serving.scheduler.tables.pool.num_in_use == 0
    assert executor.num_closed == 1


def test_a_stopped_engine_takes_no_more_work_and_says_why() -> None:
    serving = engine(DisturbedExecutor(raise_at(1, ValueError("broken kernel"))))
    serving.add(request("a"))
    serving.step()
    with pytest.raises(EngineStopped, match="broken kernel"):
        serving.add(request("b"))
    assert serving.cancel("a") == []
    assert not serving.has_work


def test_closing_after_a_failure_does_nothing() -> None:
    executor = DisturbedExecutor(raise_at(1, ValueError("broken kernel")))
    serving = engine(executor)
    serving.add(request("a"))
    serving.step()
    reason = serving.stopped
    serving.close()
    assert (executor.num_closed, serving.stopped) == (1, reason)


@overlapped
@pytest.mark.parametrize("how", ["failed", "closed"])
def test_a_step_of_a_stopped_engine_runs_nothing_and_keeps_the_reason(how: str, max_in_flight: int) -> None:
    executor = DisturbedExecutor(raise_at(2, ValueError("broken kernel")), max_in_flight=max_in_flight)
    serving = engine(executor)
    serving.add(request("a", max_tokens=9))
    serving.step()
    if how == "failed":
        serving.step()
    else:
        serving.close()
    reason, num_runs = serving.stopped, executor.num_runs
    # Refusing is as good as doing nothing; what must not happen is a second failure on top of the first.
    with suppress(EngineStopped):
        assert serving.step() == []
    assert (serving.stopped, executor.num_runs, executor.num_closed) == (reason, num_runs, 1)


def test_requests_hear_of_a_failure_even_if_the_executor_cannot_be_closed() -> None:
    failing = DisturbedExecutor(raise_at(1, RuntimeError("device lost")), close_error=RuntimeError("device is lost"))
    serving = engine(failing)
    serving.add(request("a"))
    assert ends(serving.step()) == {("a", 0): FinishReason.ERROR}
    assert serving.stopped is not None and "device lost" in serving.stopped


def test_an_answer_finished_by_a_result_that_is_too_short_is_still_told_an_end() -> None:
    def drop_last(number: int, result: StepResult) -> StepResult:
        return result if number == 1 else StepResult(result.tokens[:-1])

    serving = engine(DisturbedExecutor(drop_last))
    serving.add(request("a", max_tokens=2))
    serving.add(request("b", max_tokens=9))
    assert set(ends(run_out(serving))) == {("a", 0), ("b", 0)}


@overlapped
@pytest.mark.parametrize("cancels", [False, True])
def test_an_interrupted_step_is_as_if_it_had_not_been(cancels: bool, max_in_flight: int) -> None:
    serving = engine(DisturbedExecutor(raise_at(3, KeyboardInterrupt()), max_in_flight=max_in_flight))
    asked = request("a", max_tokens=9, n=2)
    serving.add(asked)
    events = serving.step() + serving.step()
    with pytest.raises(KeyboardInterrupt):
        serving.step()
    serving.scheduler.check()
    assert serving.scheduler.tables.pool.num_in_use == 0
    if cancels:
        events += serving.cancel("a")
    serving.add(request("b"))
    events += run_out(serving)
    reason = FinishReason.ABORT if cancels else FinishReason.LENGTH
    assert ends(events) == {("a", 0): reason, ("a", 1): reason, ("b", 0): FinishReason.LENGTH}
    for index in range(2):
        tokens = [token for event in events for token in event.token_ids if event[:2] == ("a", index)]
        assert tokens == [count_up(asked.prompt_token_ids, 5 + place) for place in range(len(tokens))]
        assert cancels or len(tokens) == 9
    serving.scheduler.check()
    assert serving.scheduler.tables.pool.num_in_use == 0


# -- a sequence that fails --------------------------------------------------------------------------------------------


@overlapped
def test_a_failing_sequence_ends_alone(max_in_flight: int) -> None:
    def fail_first(number: int, result: StepResult) -> StepResult:
        return StepResult(result.tokens, failures={0: "logits are not finite"} if number == 2 else {})

    serving = engine(DisturbedExecutor(fail_first, max_in_flight=max_in_flight))
    serving.add(request("a", max_tokens=9))
    serving.add(request("b", max_tokens=9))
    events = run_out(serving)
    assert ends(events) == {("a", 0): FinishReason.ERROR, ("b", 0): FinishReason.LENGTH}
    (failed,) = [event for event in events if event.finish_reason is FinishReason.ERROR]
    assert failed.error == "logits are not finite"
    assert serving.stopped is None
    serving.add(request("c"))
    assert ends(run_out(serving)) == {("c", 0): FinishReason.LENGTH}


def test_a_refused_request_leaves_the_engine_as_it_was() -> None:
    serving = engine(DisturbedExecutor())
    serving.add(request("a"))
    with pytest.raises(RequestError):
        serving.add(request("a"))
    with pytest.raises(RequestError):
        serving.add(request("b", 64))
    assert serving.stopped is None
    assert ends(run_out(serving)) == {("a", 0): FinishReason.LENGTH}


# -- closing, checking, counting --------------------------------------------------------------------------------------


@overlapped
def test_closing_twice_closes_once_and_ends_what_is_open(max_in_flight: int) -> None:
    executor = DisturbedExecutor(max_in_flight=max_in_flight)
    serving = engine(executor)
    serving.add(request("a", max_tokens=20, n=2))
    serving.step()
    serving.close()
    serving.close()
    assert executor.num_closed == 1
    assert not serving.has_work
    assert serving.scheduler.tables.pool.num_in_use == 0
    with pytest.raises(EngineStopped, match="closed"):
        serving.add(request("b"))


def leak(serving: Engine) -> None:
    """Take a block that no sequence knows of."""
    assert serving.scheduler.tables.pool.reserve(1) is not None


def test_check_invariants_ends_the_engine_when_the_books_are_wrong() -> None:
    serving = engine(DisturbedExecutor(), check_invariants=True)
    serving.add(request("a", max_tokens=9))
    serving.step()
    leak(serving)
    assert ends(serving.step()) == {("a", 0): FinishReason.ERROR}
    assert serving.stopped is not None and "AssertionError" in serving.stopped


def test_an_answer_finished_by_the_step_whose_check_fails_is_still_told_an_end() -> None:
    serving = engine(DisturbedExecutor(), check_invariants=True)
    serving.add(request("a", max_tokens=2))
    serving.add(request("b", max_tokens=9))
    serving.step()
    leak(serving)
    assert set(ends(serving.step())) == {("a", 0), ("b", 0)}


def test_without_check_invariants_nothing_is_checked() -> None:
    serving = engine(DisturbedExecutor(), check_invariants=False)
    serving.add(request("a", max_tokens=9))
    serving.step()
    leak(serving)
    assert ends(run_out(serving)) == {("a", 0): FinishReason.LENGTH}


def test_counts_add_up_over_steps() -> None:
    serving = engine(DisturbedExecutor())
    serving.add(request("a", 5, max_tokens=4))
    serving.add(request("b", 6, max_tokens=2))
    run_out(serving)
    counts = serving.counts
    assert counts.num_steps == 4
    # Each answer's last token is drawn but never computed.
    assert counts.num_computed_tokens == (5 + 3) + (6 + 1)
    assert counts.num_generated_tokens == 4 + 2
    assert counts.busy_time == 4.0


def test_steps_without_work_are_not_counted() -> None:
    serving = engine(DisturbedExecutor())
    assert serving.step() == []
    assert (serving.counts.num_steps, serving.counts.busy_time) == (0, 0.0)


def test_a_failed_step_is_not_counted() -> None:
    serving = engine(DisturbedExecutor(raise_at(1, RuntimeError("no"))))
    serving.add(request("a"))
    serving.step()
    assert serving.counts.num_steps == 0


@overlapped
def test_a_cancelled_sequence_is_told_once_and_the_others_go_on(max_in_flight: int) -> None:
    serving = engine(DisturbedExecutor(max_in_flight=max_in_flight))
    serving.add(request("a", n=2, max_tokens=6))
    events = serving.step()
    events += serving.cancel("a", 1, FinishReason.STOP)
    events += run_out(serving)
    assert ends(events) == {("a", 0): FinishReason.LENGTH, ("a", 1): FinishReason.STOP}


# -- steps that overlap -----------------------------------------------------------------------------------------------


@dataclass
class Diary:
    """An executor on which a step takes three seconds; it notes what happens, and that nothing is asked too early."""

    max_in_flight: int
    now: float = 0.0
    notes: list[str] = field(default_factory=list)
    _done_at: float = 0.0

    def __post_init__(self) -> None:
        self._scripted = ScriptedExecutor(block_size=4, max_in_flight=self.max_in_flight)

    def clock(self) -> float:
        return self.now

    def launch(self, plan: Plan) -> "DiaryStep":
        self.notes.append(f"launch {plan.step}")
        self._done_at = max(self._done_at, self.now) + 3.0
        return DiaryStep(self, plan.step, self._done_at, self._scripted.launch(plan))

    def close(self) -> None:
        self._scripted.close()


@dataclass
class DiaryStep:
    diary: Diary
    number: int
    done_at: float
    scripted: ScriptedStep

    def result(self) -> StepResult:
        self.diary.notes.append(f"result {self.number}")
        self.diary.now = max(self.diary.now, self.done_at)
        return self.scripted.result()


def overlapping(max_in_flight: int) -> tuple[Engine, Diary]:
    diary = Diary(max_in_flight)
    serving = engine(DisturbedExecutor())
    return Engine(serving.scheduler, diary, diary.clock, check_invariants=True), diary


def test_as_many_steps_as_may_be_are_launched_before_the_oldest_is_waited_for() -> None:
    serving, diary = overlapping(2)
    serving.add(request("a", max_tokens=4))
    told = []
    while serving.has_work:
        told.append([event.token_ids for event in serving.step()])
    assert diary.notes == [
        *("launch 1", "launch 2", "result 1"),
        *("launch 3", "result 2"),
        *("launch 4", "result 3"),
        "result 4",
    ]
    assert [len(tokens) for tokens in told] == [1, 1, 1, 1]


def test_an_executor_that_takes_one_step_is_given_each_when_the_last_is_done() -> None:
    serving, diary = overlapping(1)
    serving.add(request("a", max_tokens=2))
    run_out(serving)
    assert diary.notes == ["launch 1", "result 1", "launch 2", "result 2"]


def test_there_is_work_until_the_last_step_in_flight_is_committed() -> None:
    serving, diary = overlapping(2)
    serving.add(request("a", max_tokens=9))
    serving.step()
    assert len(serving.cancel("a")) == 1
    assert serving.has_work
    assert serving.step() == []
    assert not serving.has_work
    assert diary.notes[-1] == "result 2"
    assert serving.scheduler.tables.pool.num_in_use == 0


def test_settling_commits_what_is_in_flight_and_launches_nothing() -> None:
    serving, diary = overlapping(3)
    serving.add(request("a", max_tokens=9))
    events = serving.step()
    events += serving.settle()
    assert diary.notes == ["launch 1", "launch 2", "launch 3", "result 1", "result 2", "result 3"]
    assert sum(len(event.token_ids) for event in events) == 3
    assert serving.settle() == []
    assert ends(run_out(serving)) == {("a", 0): FinishReason.LENGTH}


@overlapped
def test_no_second_of_overlapping_steps_is_counted_twice(max_in_flight: int) -> None:
    serving, diary = overlapping(max_in_flight)
    serving.add(request("a", max_tokens=5))
    diary.now = diary._done_at = 100.0
    seconds = []
    while serving.has_work:
        serving.step()
        assert serving.last_step is not None
        seconds.append(serving.last_step.seconds)
    assert seconds == [3.0] * 5
    # Nothing ran meanwhile.
    diary.now += 50.0
    serving.add(request("b", max_tokens=1))
    run_out(serving)
    assert serving.last_step is not None and serving.last_step.seconds == 3.0
    assert (serving.counts.num_steps, serving.counts.busy_time) == (6, 18.0)


def test_draws_that_are_dropped_are_not_counted_as_written() -> None:
    serving, _ = overlapping(2)
    one = request("a", max_tokens=20)
    stop = count_up(one.prompt_token_ids, 7)
    serving.add(replace(one, params=SamplingParams(max_tokens=20, stop_token_ids=(stop,))))
    events = run_out(serving)
    assert sum(len(event.token_ids) for event in events) == 3
    assert serving.counts.num_generated_tokens == 3
    # The fourth step computed the third token all the same.
    assert (serving.counts.num_steps, serving.counts.num_computed_tokens) == (4, 5 + 3)


def test_a_launch_that_fails_ends_the_engine_and_leaves_nothing_in_flight() -> None:
    executor = DisturbedExecutor(max_in_flight=3)
    serving = engine(executor)
    serving.add(request("a", max_tokens=9))
    serving.step()
    executor.launch = lambda plan: 1 / 0  # type: ignore[assignment, return-value]
    assert ends(serving.step()) == {("a", 0): FinishReason.ERROR}
    assert serving.stopped is not None and "division by zero" in serving.stopped
    assert (serving.has_work, executor.num_closed) == (False, 1)
