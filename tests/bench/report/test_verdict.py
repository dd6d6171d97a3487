"""What held a run back, case by case, with figures worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from archerfish.bench.report.facts import ServerFacts, read_facts
from archerfish.bench.report.verdict import RunLimit, RunVerdict, judge_run
from archerfish.bench.serve.records import BenchRun, ServerSettings, ServerTimes
from archerfish.bench.serve.summary import summarize
from tests.bench.runs import PEAK_BANDWIDTH, PEAK_FLOPS, WORKLOAD, make_request, make_run, make_sample, random_run


def watched(end: dict[str, Any], *middle: dict[str, Any], seconds: float = 10.0, **more: Any) -> BenchRun:
    """A run whose server was looked at in equal steps: at the start, at `middle`, and at the end."""
    reported = [{}, *middle, end]
    samples = [make_sample(seconds * index / (len(reported) - 1), **one) for index, one in enumerate(reported)]
    return make_run([make_request(0, 0.0, 0.1, [0.1] * 9)], samples=tuple(samples), **more)


def facts(run: BenchRun) -> ServerFacts:
    found = read_facts(run, summarize(run))
    assert found is not None
    return found


def verdict(run: BenchRun) -> RunVerdict:
    found = judge_run(run, summarize(run))
    assert len(found.advice) == 2
    assert found.reason and not found.reason.endswith(".")
    return found


# Nine seconds of steps in ten: what would take five of them at the peak is more than half.
COMPUTING = {"prefill_flops": 5.0 * PEAK_FLOPS, "prefill_bytes": 0.1 * PEAK_BANDWIDTH}
READING = {"decode_bytes": 5.0 * PEAK_BANDWIDTH, "decode_flops": 0.1 * PEAK_FLOPS}


def test_the_roof_adds_up_what_each_phase_needs_most() -> None:
    roof = facts(watched({**COMPUTING, **READING})).roof
    assert roof is not None
    assert roof.busy_seconds == pytest.approx(9.0)
    assert roof.compute_seconds == pytest.approx(5.0)
    assert roof.bandwidth_seconds == pytest.approx(5.0)
    assert roof.share == pytest.approx(10 / 9)


def test_shares_of_time_count_what_came_before_a_sample() -> None:
    waiting = {"num_waiting": 2, "kv_cache_usage": 0.95}
    idle = {"num_running": 0}
    found = facts(watched({}, waiting, idle, waiting))
    assert found.waiting_share == pytest.approx(2 / 4)
    assert found.crowded_share == pytest.approx(2 / 4)
    assert found.active_share == pytest.approx(3 / 4)


def test_the_time_in_the_queue_is_a_share_of_the_time_to_first_token() -> None:
    reported = [ServerTimes(queue=0.1, ttft=0.2, tpot=0.01), ServerTimes(queue=0.2, ttft=0.8, tpot=0.01)]
    requests = [make_request(index, 0.0, 0.5, [0.1], server=server) for index, server in enumerate(reported)]
    found = facts(replace(watched({}), requests=tuple(requests)))
    assert found.queue_share == pytest.approx(0.3 / 1.0)


def test_compute_bound() -> None:
    found = verdict(watched(COMPUTING))
    assert found.limit is RunLimit.COMPUTE
    assert "56%" in found.reason  # 5 of 9 seconds.


def test_bandwidth_bound_suggests_more_sequences() -> None:
    found = verdict(watched(READING))
    assert found.limit is RunLimit.BANDWIDTH
    assert [advice.setting for advice in found.advice] == ["--request-rate", "--dtype"]
    full = verdict(watched({**READING, "batch_occupancy": 0.95}))
    assert full.advice[0].setting == "--max-num-seqs"


GIB = 2**30


def settings(**more: Any) -> ServerSettings:
    given: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16", "quantization": "none", "kv_cache_dtype": "bfloat16"}
    given |= {"speculation": "auto", "weight_bytes": 2.0 * GIB, "kv_bytes_per_token": 1000.0}
    return ServerSettings(**(given | more))


def test_smaller_formats_are_proposed_with_what_they_would_save() -> None:
    """Of five seconds of reading at the peak, weights are as much as all steps read, and KV the rest."""
    read = {**READING, "num_steps": 100}
    weights = settings(weight_bytes=0.04 * PEAK_BANDWIDTH)  # Four of five seconds.
    first, second = verdict(watched(read, server=weights)).advice
    assert (first.setting, first.change) == ("--quantization", "int8 (lossy)")
    assert "up to 22% less time in steps" in first.why  # Two of nine seconds.
    assert (second.setting, second.change) == ("--kv-cache-dtype", "int8 (lossy)")
    assert "50% fewer bytes" in second.why and "up to 6% less time" in second.why
    small = settings(quantization="int4", kv_cache_dtype="int8")
    assert [one.setting for one in verdict(watched(read, server=small)).advice] == ["--request-rate", "--dtype"]
    gpu = settings(device="cuda", quantization="int8", speculation="suffix", weight_bytes=1.0)
    assert verdict(watched(read, server=gpu)).advice[0].change == "fp8 (lossy)"


def test_speculation_is_proposed_where_reading_leaves_time_for_it() -> None:
    off = settings(speculation="off", quantization="int8", kv_cache_dtype="int8")
    first, _ = verdict(watched({**READING, "num_steps": 100}, server=off)).advice
    assert (first.setting, first.change) == ("--speculative-config", '{"method": "auto"}')
    assert "a step of 90.0 ms" in first.why and "about 49 for each token" in first.why
    slow = {"decode_bytes": 0.9 * PEAK_BANDWIDTH, "num_steps": 100, "num_computed_tokens": 200}
    assert verdict(watched(slow, server=off)).advice[0].setting == "--speculative-config"
    many = verdict(watched({**slow, "num_computed_tokens": 9000}, server=off))
    assert many.limit is RunLimit.OVERHEAD and many.advice[0].setting == "--request-rate"


def test_a_full_cache_can_hold_more_in_fewer_bits() -> None:
    full = {"num_preemptions": 3}
    first, second = verdict(watched(full, server=settings())).advice
    assert first.setting == "--gpu-memory-utilization", "lossless settings come first"
    assert (second.setting, second.why) == ("--kv-cache-dtype", "about 2.0 x as many tokens in the KV cache")
    _, second = verdict(watched(full, server=settings(kv_cache_dtype="int8"))).advice
    assert second.setting == "--quantization"
    assert second.why == "1.00 GiB less weights: about 1,073,742 more tokens in the KV cache"


def test_a_gpu_at_its_arithmetic_peak_can_compute_in_fewer_bits() -> None:
    assert verdict(watched(COMPUTING, server=settings(device="cuda"))).advice[0].change == "fp8 (lossy)"
    assert verdict(watched(COMPUTING, server=settings())).advice[0].setting == "--dtype"


@pytest.mark.parametrize(
    ("end", "middle"),
    [
        ({"num_preemptions": 3}, {}),
        ({}, {"num_waiting": 1, "kv_cache_usage": 0.9}),
    ],
    ids=["preemptions", "full while others wait"],
)
def test_capacity_bound_comes_before_all_else(end: dict[str, Any], middle: dict[str, Any]) -> None:
    found = verdict(watched({**COMPUTING, **end}, middle))
    assert found.limit is RunLimit.CAPACITY
    assert found.advice[0].setting == "--gpu-memory-utilization"


def test_a_full_cache_without_waiting_requests_is_no_limit() -> None:
    assert verdict(watched({**COMPUTING, "kv_cache_usage": 0.99})).limit is RunLimit.COMPUTE


def test_host_bound_between_steps() -> None:
    found = verdict(watched({"busy_seconds": 3.0}))
    assert found.limit is RunLimit.HOST
    assert "70%" in found.reason
    assert found.advice[0].setting == "--threads"


def test_overhead_bound_within_steps() -> None:
    found = verdict(watched({"decode_bytes": 0.9 * PEAK_BANDWIDTH}))
    assert found.limit is RunLimit.OVERHEAD
    assert "10%" in found.reason  # 0.9 of 9 seconds.
    assert found.advice[0].setting == "--request-rate"


def test_queue_bound_where_every_row_is_taken() -> None:
    found = verdict(watched({**READING, "num_waiting": 5, "batch_occupancy": 1.0}, {"num_waiting": 5}))
    assert found.limit is RunLimit.QUEUE
    assert "every row" in found.reason
    assert found.advice[0].setting == "--max-num-seqs"


def test_waiting_that_is_a_small_part_of_the_first_token_is_no_queue() -> None:
    quick = make_request(0, 0.0, 0.5, [0.1], server=ServerTimes(queue=0.1, ttft=0.5, tpot=0.1))
    slow = make_request(0, 0.0, 0.5, [0.1], server=ServerTimes(queue=0.4, ttft=0.5, tpot=0.1))
    run = watched({**READING, "num_waiting": 1})
    assert verdict(replace(run, requests=(quick,))).limit is RunLimit.BANDWIDTH
    assert verdict(replace(run, requests=(slow,))).limit is RunLimit.QUEUE


def test_a_queue_in_front_of_a_machine_at_its_peak_is_its_own_fault() -> None:
    assert verdict(watched({**COMPUTING, "num_waiting": 5})).limit is RunLimit.COMPUTE


@pytest.mark.parametrize(
    ("arrivals", "max_concurrency", "setting", "change"),
    [
        ("gamma", None, "--request-rate", "raise it"),
        ("closed", 8, "--max-concurrency", "raise it"),
        ("closed", None, "--num-prompts", "raise it"),
        ("trace", None, "--time-scale", "lower it"),
    ],
)
def test_a_load_is_changed_by_what_it_was_made_with(
    arrivals: str, max_concurrency: int | None, setting: str, change: str
) -> None:
    workload = replace(WORKLOAD, arrivals=arrivals, max_concurrency=max_concurrency)
    advice = verdict(watched(READING, workload=workload)).advice[0]
    assert (advice.setting, advice.change) == (setting, change)


def test_load_bound() -> None:
    idle = {"num_running": 0, "busy_seconds": 1.0}
    found = verdict(watched(idle, idle, idle, {"busy_seconds": 1.0}))
    assert found.limit is RunLimit.LOAD
    assert "75%" in found.reason


def test_unknown_without_a_peak_or_without_samples() -> None:
    found = verdict(watched({"peak_flops": None}))
    assert found.limit is RunLimit.UNKNOWN
    assert [advice.setting for advice in found.advice] == ["--peak-flops", "--peak-bandwidth"]
    silent = verdict(random_run(num_requests=5, samples=()))
    assert silent.limit is RunLimit.UNKNOWN
    assert silent.evidence == ()


def test_evidence_is_given_in_figures() -> None:
    reported = {one.name: one.value for one in verdict(watched({**COMPUTING, "kv_cache_usage": 0.5})).evidence}
    assert reported["Time in steps"] == "90%"
    assert reported["KV cache in use, highest"] == "50%"
    assert reported["MFU in steps"] == "55.6%"
    assert reported["Preemptions"] == "0"
    assert "Prefix cache hits" not in reported
