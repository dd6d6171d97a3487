"""Workloads through the engine alone: what they are, what is counted, and how it is added up."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from archerfish.arch.cost import StepCost, step_cost
from archerfish.bench.offline.conditions import Conditions
from archerfish.bench.offline.measure import OfflineBench, measure_latency, measure_throughput
from archerfish.bench.offline.phases import StepMeter, binding_limit
from archerfish.bench.offline.workloads import (
    OfflineJob,
    OfflineWorkload,
    nano_vllm_workload,
    prompts_workload,
    random_workload,
    shared_prefix_workload,
)
from archerfish.config.settings import EngineConfig
from archerfish.engine.build import build, examine
from archerfish.engine.input_processor import InputProcessor
from archerfish.errors import ConfigError, StepFailed
from archerfish.execution.scripted import ScriptedExecutor, ScriptedStep
from archerfish.kvcache.tables import KVTables
from archerfish.machine.peak import Peak
from archerfish.metrics.state import LastStep
from archerfish.scheduling.plan import Chunk, Plan, StepResult
from archerfish.scheduling.policy import ContinuousBatching
from archerfish.scheduling.scheduler import Limits, Scheduler
from tests.arch.shapes import QWEN_3_06B
from tests.checkpoints import write_checkpoint

STEP = 0.25
PEAK = Peak(flops=1e12, bandwidth=1e11)
COST = step_cost(QWEN_3_06B, 2, 2)
VOCABULARY = QWEN_3_06B.vocab_size


class Clock:
    """Moves only when something is computed."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class SteadyExecutor:
    """Every step takes the same time."""

    max_in_flight = 1

    def __init__(self, clock: Clock, failing_step: int | None = None) -> None:
        self._scripted = ScriptedExecutor()
        self._clock = clock
        self._failing_step = failing_step
        self.num_steps = 0

    def launch(self, plan: Plan) -> ScriptedStep:
        self.num_steps += 1
        if self.num_steps == self._failing_step:
            raise RuntimeError("out of luck")
        self._clock.now += STEP
        return self._scripted.launch(plan)

    def close(self) -> None:
        self._scripted.close()


@dataclass
class DeviceStep:
    clock: Clock
    done_at: float
    scripted: ScriptedStep

    def result(self) -> StepResult:
        self.clock.now = max(self.clock.now, self.done_at)
        return self.scripted.result()


class Device:
    """Takes the same time for every step, one after the other, while the host does something else."""

    max_in_flight = 2

    def __init__(self, clock: Clock) -> None:
        self._scripted = ScriptedExecutor(max_in_flight=2)
        self._clock = clock
        self._done_at = 0.0

    def launch(self, plan: Plan) -> DeviceStep:
        self._done_at = max(self._done_at, self._clock.now) + STEP
        return DeviceStep(self._clock, self._done_at, self._scripted.launch(plan))

    def close(self) -> None:
        self._scripted.close()


def bench(*, max_model_len: int = 2048, step_tokens: int = 16384, failing_step: int | None = None) -> OfflineBench:
    clock = Clock()
    limits = Limits(max_num_seqs=256, max_num_batched_tokens=step_tokens, max_model_len=max_model_len)
    tables = KVTables(256 * 128, 16, (None,), step_tokens=step_tokens, prefix_caching=True)
    return OfflineBench(
        Scheduler(limits, tables, ContinuousBatching()),
        SteadyExecutor(clock, failing_step),
        InputProcessor(None, VOCABULARY, max_model_len, clock),
        clock,
        COST,
    )


# -- workloads --------------------------------------------------------------------------------------------------------


def test_nano_vllms_workload_is_the_published_one() -> None:
    workload = nano_vllm_workload(VOCABULARY)
    assert (len(workload.jobs), workload.temperature) == (256, 0.6)
    assert (workload.num_input_tokens, workload.num_output_tokens) == (142_827, 133_966)
    assert max(max(job.prompt) for job in workload.jobs) == 10_000
    assert all(100 <= len(job.prompt) <= 1024 and 100 <= job.num_tokens <= 1024 for job in workload.jobs)
    small = nano_vllm_workload(300)
    assert (small.num_input_tokens, small.num_output_tokens) == (142_827, 133_966)
    assert max(max(job.prompt) for job in small.jobs) == 299


def test_nano_vllms_workload_runs_to_its_last_token() -> None:
    found = measure_throughput(bench(), nano_vllm_workload(VOCABULARY), PEAK)
    assert (found.num_requests, found.num_input_tokens, found.num_output_tokens) == (256, 142_827, 133_966)
    assert found.seconds == pytest.approx(found.num_steps * STEP)
    assert found.output_tokens_per_second == pytest.approx(133_966 / found.seconds)


def test_random_prompts_are_the_same_for_a_seed_and_share_nothing() -> None:
    first, again, other = (random_workload(4, 32, 8, 1000, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert [(len(job.prompt), job.num_tokens) for job in first.jobs] == [(32, 8)] * 4
    assert len({job.prompt[:16] for job in (*first.jobs, *other.jobs)}) == 8


def test_prompts_that_share_their_beginning() -> None:
    jobs = shared_prefix_workload(3, 20, 5, 7, 1000).jobs
    assert len({job.prompt[:20] for job in jobs}) == 1
    assert len({job.prompt for job in jobs}) == 3
    assert all(len(job.prompt) == 25 and job.num_tokens == 7 for job in jobs)


def test_given_prompts_start_again_where_there_are_too_few() -> None:
    jobs = prompts_workload([(1, 2), (3,)], 3, 5).jobs
    assert jobs == (OfflineJob((1, 2), 5), OfflineJob((3,), 5), OfflineJob((1, 2), 5))


def test_what_the_context_would_cut_short_is_refused() -> None:
    workload = random_workload(2, 30, 10, 1000, 0)
    workload.check_fits(40)
    with pytest.raises(ConfigError, match=r"a request of 40 tokens.*holds 39; make --input-len or --output-len"):
        workload.check_fits(39)


# -- running them -----------------------------------------------------------------------------------------------------


def test_latency_is_worked_out_from_the_steps() -> None:
    # Two requests of 10 tokens: one step for both prompts, then one for each further token.
    workloads = [random_workload(2, 10, 5, 1000, seed) for seed in range(4)]
    done: list[float] = []
    found = measure_latency(bench(), workloads, 1, PEAK, done.append)
    assert (found.num_iterations, found.batch_size, found.input_len, found.output_len) == (3, 2, 10, 5)
    assert done == [1, 2, 3, 4]
    assert found.batch.mean == found.batch.percentile(99) == pytest.approx(5 * STEP)
    assert (found.ttft.count, found.ttft.mean) == (6, pytest.approx(STEP))
    assert found.tpot is not None and found.itl is not None
    assert (found.tpot.count, found.tpot.mean) == (6, pytest.approx(STEP))
    assert (found.itl.count, found.itl.mean) == (24, pytest.approx(STEP))
    # The warm-up is not among the phases.
    assert (found.prefill.num_tokens, found.decode.num_tokens) == (3 * 20, 3 * 8)
    assert found.prefill.seconds == pytest.approx(3 * STEP)
    assert found.decode.seconds == pytest.approx(3 * 4 * STEP)
    assert found.decode.tokens_per_second == pytest.approx(2 / STEP)


def test_one_token_has_no_time_per_further_token() -> None:
    found = measure_latency(bench(), [random_workload(2, 10, 1, 1000, 0)], 0, PEAK)
    assert (found.tpot, found.itl, found.decode.tokens_per_second, found.decode.mfu) == (None, None, None, None)
    assert found.decode.limit == "nothing was computed"


def test_throughput_counts_what_the_cache_gave_and_phases_add_up() -> None:
    # Steps of one prompt: the second prompt finds the first one's blocks.
    workload = shared_prefix_workload(2, 64, 8, 4, 1000)
    found = measure_throughput(bench(step_tokens=72), workload, PEAK)
    assert found.num_cached_tokens == 64
    assert found.prefill.num_tokens + found.decode.num_tokens == 2 * 72 + 2 * 3 - 64
    assert found.prefill.seconds + found.decode.seconds == pytest.approx(found.seconds)
    assert found.total_tokens_per_second == pytest.approx((144 + 8) / found.seconds)


def test_a_salt_hides_the_blocks_of_other_runs() -> None:
    one, workload = bench(step_tokens=72), shared_prefix_workload(1, 64, 8, 4, 1000)
    cached = [one.run(workload, cache_salt=salt).answers[0].num_cached_tokens for salt in ("a", "a", "b")]
    assert cached == [0, 64, 0]
    assert one.run(workload, cache_salt="c").most_blocks >= 5


def test_what_a_failed_measurement_borrowed_can_still_be_closed(tmp_path: Path) -> None:
    assembly = build(EngineConfig(model=str(write_checkpoint(tmp_path)), device="cpu", threads=1, max_num_seqs=2))
    one = OfflineBench.of(assembly)
    assembly.executor.launch = lambda plan: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(StepFailed, match="division by zero"):
        one.run(random_workload(1, 4, 2, 300, 0))
    assembly.engine.close()


def test_an_engine_that_fails_ends_the_measurement() -> None:
    with pytest.raises(StepFailed, match="out of luck"):
        bench(failing_step=2).run(random_workload(2, 10, 5, 1000, 0))


@pytest.mark.parametrize("host_time", [0.0, STEP / 2, 2 * STEP])
def test_steps_that_overlap_take_as_long_as_device_or_host_whichever_is_slower(host_time: float) -> None:
    clock = Clock()
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64)
    scheduler = Scheduler(limits, KVTables(64, 16, (None,), step_tokens=64, prefix_caching=True), ContinuousBatching())
    one = OfflineBench(scheduler, Device(clock), InputProcessor(None, VOCABULARY, 64, clock), clock, COST)

    def pass_on(_: float) -> None:
        clock.now += host_time

    meter = one.meter(PEAK)
    run = one.run(random_workload(1, 8, 9, 1000, 0), meter, pass_on)
    assert run.num_steps == 9
    seconds = STEP + 8 * max(STEP, host_time)
    assert meter.prefill.seconds + meter.decode.seconds == pytest.approx(seconds)
    assert run.seconds == pytest.approx(seconds + host_time)
    assert meter.prefill.host_seconds + meter.decode.host_seconds == pytest.approx(8 * host_time)


# -- what bounds them -------------------------------------------------------------------------------------------------


def meter(cost: StepCost = COST) -> StepMeter:
    return StepMeter(cost, PEAK)


def test_utilization_is_work_over_the_time_of_its_phase() -> None:
    one = meter()
    one.add(LastStep((Chunk(0, 0, 100, True),), 100, 2.0), 0.5)
    one.add(LastStep((Chunk(0, 100, 1, True),), 1, 1.0), 0.0)
    prefill, decode = one.prefill, one.decode
    assert (prefill.seconds, prefill.host_seconds, decode.seconds) == (2.0, 0.5, 1.0)
    assert prefill.mfu == pytest.approx(prefill.flops / 2.0 / PEAK.flops)
    assert decode.mbu == pytest.approx(decode.num_bytes / 1.0 / PEAK.bandwidth)
    keys = 2 * 8 * 128 * 28 * 2
    assert decode.num_bytes == pytest.approx(COST.weight_bytes(1, 1) + 101 * keys)


def test_a_mixed_step_is_shared_by_what_each_phase_would_take_at_the_peak() -> None:
    one = meter()
    one.add(LastStep((Chunk(0, 0, 100, True), Chunk(1, 50, 1, True)), 101, 3.0), 0.3)
    prefill, decode = one.prefill, one.decode
    assert prefill.seconds + decode.seconds == pytest.approx(3.0)
    assert prefill.host_seconds + decode.host_seconds == pytest.approx(0.3)

    def least(flops: float, num_bytes: float) -> float:
        return max(flops / PEAK.flops, num_bytes / PEAK.bandwidth)

    wanted = least(prefill.flops, prefill.num_bytes) / least(decode.flops, decode.num_bytes)
    assert prefill.seconds / decode.seconds == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("host", "computing", "reading", "says"),
    [
        (0.1, 6.0, 1.0, "compute-bound"),
        (0.1, 1.0, 6.0, "bandwidth-bound"),
        (0.1, 1.0, 60.0, "bandwidth-bound"),
        (5.0, 1.0, 2.0, "host-bound: planning takes 50% of the time"),
        (1.0, 2.0, 1.0, "overhead-bound: at the peak it would take 20% of the time and be compute-bound"),
    ],
)
def test_the_limit_is_what_takes_most_of_the_time(host: float, computing: float, reading: float, says: str) -> None:
    assert binding_limit(10.0, host, computing, reading) == says


# -- a real model -----------------------------------------------------------------------------------------------------


def test_a_real_engine_is_measured_like_a_scripted_one(tmp_path: Path) -> None:
    config = EngineConfig(model=str(write_checkpoint(tmp_path)), device="cpu", threads=1, max_num_seqs=2)
    assembly = build(replace(config, speculative_config={"method": "off"}))
    one = OfflineBench.of(assembly)
    workload = OfflineWorkload(name="own", jobs=(OfflineJob((5, 6, 7), 4), OfflineJob((8, 9), 6)))
    run = one.run(workload, one.meter(PEAK))
    assert [len(answer.tokens) for answer in run.answers] == [4, 6]
    assert run.num_steps == 6
    assert one.run(workload).answers[1].tokens == run.answers[1].tokens
    assembly.engine.close()


def test_conditions_name_model_machine_and_settings(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "tiny")
    found = Conditions.of(examine(EngineConfig(model=str(directory), device="cpu", threads=1)))
    assert (found.model, found.settings.dtype, found.settings.threads) == ("tiny", "float32", 1)
    assert found.peak.flops > 0 and found.peak.bandwidth > 0
    assert found.title.startswith("tiny, 0.0M parameters, float32, on ")
    assert found.engine_title.endswith(", speculation auto")
    dummy = Conditions.of(examine(EngineConfig(model=str(directory), load_format="dummy", device="cpu", threads=1)))
    assert dummy.engine_title.startswith("tiny, 0.0M parameters, float32 random weights, on ")
    assert dummy.engine_title.endswith(", speculation off")
