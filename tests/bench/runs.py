"""Runs made by hand, for tests of whatever reads them. Deterministic by seed; nothing is measured."""

from dataclasses import replace
from typing import Any

import numpy as np

from archerfish.bench.serve.records import (
    BenchRun,
    BenchTarget,
    ClientHealth,
    Finding,
    RequestRecord,
    ServerSample,
    ServerTimes,
    Workload,
)

PEAK_FLOPS, PEAK_BANDWIDTH = 1e12, 1e11

WORKLOAD = Workload(
    dataset="random",
    arrivals="gamma",
    num_requests=0,
    request_rate=5.0,
    burstiness=1.0,
    max_concurrency=None,
    seed=0,
    ignore_eos=True,
)
TARGET = BenchTarget(
    url="http://127.0.0.1:8000", endpoint="/v1/completions", model="perch", is_archerfish=True, is_own=True
)
HEALTHY = ClientHealth(cpu_share=0.2, median_lag=0.0001, p99_lag=0.001, largest_lag=0.004)
SATURATED = Finding(
    name="client-saturated", is_fatal=True, what="the client used 99% of a core", fix="lower --request-rate"
)
FEW = Finding(name="few-requests", is_fatal=False, what="8 requests", fix="give --num-prompts 100 or more")


def make_request(index: int, sent: float, ttft: float, gaps: list[float], **more: Any) -> RequestRecord:
    """One that succeeded, unless `more` says otherwise."""
    times = tuple(np.cumsum([sent + ttft, *gaps]).tolist())
    given: dict[str, Any] = {
        "planned": sent,
        "token_times": times,
        "first_visible": times[0],
        "ended": times[-1],
        "num_prompt_tokens_requested": 100,
        "num_prompt_tokens": 100,
        "num_cached_tokens": 0,
        "num_output_tokens": len(times),
        "counted_by_server": True,
        "finish_reason": "length",
        "status": 200,
    }
    return RequestRecord(index=index, sent=sent, **(given | more))


def failed_request(index: int, sent: float) -> RequestRecord:
    return RequestRecord(index=index, planned=sent, sent=sent, ended=sent + 0.1, status=500, error="it broke")


def make_run(requests: list[RequestRecord], **more: Any) -> BenchRun:
    given: dict[str, Any] = {
        "version": "0.0",
        "label": "",
        "started_at": "2026-01-02 03:04:05",
        "target": TARGET,
        "workload": replace(WORKLOAD, num_requests=len(requests)),
        "duration": max((request.ended for request in requests), default=1.0),
        "client": HEALTHY,
        "findings": (),
    }
    return BenchRun(requests=tuple(requests), **(given | more))


def random_run(
    seed: int = 0, *, num_requests: int = 200, rate: float = 8.0, slowness: float = 1.0, **more: Any
) -> BenchRun:
    """A server with a TTFT that grows with the prompt, and now and then a long wait."""
    rng = np.random.default_rng(seed)
    requests, sent = [], 0.0
    for index in range(num_requests):
        sent += float(rng.exponential(1 / rate))
        length = int(rng.integers(50, 1500))
        queue = float(rng.exponential(0.02)) + (0.4 if rng.random() < 0.04 else 0.0)
        ttft = slowness * (0.01 + length * 1e-4 + queue)
        gaps = (slowness * rng.gamma(20, 0.02 / 20, int(rng.integers(10, 60)))).tolist()
        tpot = sum(gaps) / len(gaps)
        server = ServerTimes(queue=slowness * queue, ttft=ttft - 0.001, tpot=tpot)
        requests.append(
            make_request(
                index, sent, ttft, gaps, num_prompt_tokens=length, num_prompt_tokens_requested=length, server=server
            )
        )
    workload = replace(WORKLOAD, num_requests=num_requests, request_rate=rate)
    run = make_run(requests, **({"workload": workload} | more))
    return replace(run, samples=_watched(run)) if "samples" not in more else run


def make_sample(time: float, **more: Any) -> ServerSample:
    given: dict[str, Any] = {
        "num_running": 4,
        "num_waiting": 0,
        "batch_occupancy": 0.5,
        "kv_cache_usage": 0.3,
        "num_steps": int(time * 50),
        "busy_seconds": time * 0.9,
        "num_computed_tokens": int(time * 1000),
        "num_generated_tokens": int(time * 200),
        "num_prefix_tokens_queried": 0,
        "num_prefix_tokens_hit": 0,
        "num_preemptions": 0,
        "prefill_flops": 0.0,
        "decode_flops": 0.0,
        "prefill_bytes": 0.0,
        "decode_bytes": 0.0,
        "peak_flops": PEAK_FLOPS,
        "peak_bandwidth": PEAK_BANDWIDTH,
    }
    return ServerSample(time=time, **(given | more))


def _watched(run: BenchRun) -> tuple[ServerSample, ...]:
    """What a server would have reported of itself while it answered these."""
    samples = []
    for time in np.linspace(0.0, run.duration, 80).tolist():
        begun = [request for request in run.requests if request.token_times[0] <= time]
        num_written = sum(sum(moment <= time for moment in request.token_times) for request in begun)
        num_read = sum(request.num_input_tokens for request in begun)
        running = sum(request.sent <= time < request.ended for request in run.requests)
        waiting = sum(request.sent <= time < request.token_times[0] for request in run.requests)
        samples.append(
            make_sample(
                time,
                num_running=running - waiting,
                num_waiting=waiting,
                batch_occupancy=min(1.0, running / 32),
                kv_cache_usage=min(1.0, running / 24),
                prefill_flops=num_read * 5e7,
                decode_flops=num_written * 5e7,
                prefill_bytes=num_read * 5e5,
                decode_bytes=num_written * 5e7,
            )
        )
    return tuple(samples)
