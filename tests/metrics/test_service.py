"""The service's metrics on timelines made by hand, read back from what Prometheus and the page are told."""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from archerfish.machine.energy import EnergyMeter
from archerfish.machine.peak import Peak
from archerfish.metrics.service import EngineState, RequestTiming, ServiceMetrics, StepRecord, TenantUsage, Usage
from archerfish.metrics.state import EngineInfo
from archerfish.request import SLO, FinishReason, Request, SamplingParams, TokenEvent
from tests.lanes import examples

STOP, LENGTH, ABORT, ERROR = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Timeline:
    """Drives the metrics as a service would."""

    def __init__(self, **more: Any) -> None:
        self.clock = Clock()
        self.metrics = ServiceMetrics(self.clock, wall_clock=lambda: 1.7e9, model="perch", version="1.2", **more)
        self.state = state()

    def at(self, now: float) -> "Timeline":
        self.clock.now = now
        return self

    def step(self, prefill: int = 0, decode: int = 0, *, seconds: float = 0.1, generated: int = 0, **more: Any) -> None:
        """The engine tells of one step more."""
        known = self.state
        self.state = replace(
            known,
            num_steps=known.num_steps + 1,
            num_computed_tokens=known.num_computed_tokens + prefill + decode,
            num_generated_tokens=known.num_generated_tokens + generated,
            busy_time=known.busy_time + seconds,
            last_step=StepRecord(prefill, decode, 0, more.pop("num_sequences", 1), seconds, *more.pop("costs", ())),
            **more,
        )
        self.metrics.state(self.state)

    def serve(
        self,
        name: str,
        *,
        arrival: float,
        scheduled: float,
        tokens: list[float],
        finished: float,
        reason: FinishReason = LENGTH,
        live: bool = True,
        **more: Any,
    ) -> None:
        """A whole request; the clock is left at its end."""
        one = request(name, arrival, **more)
        timing = RequestTiming(arrival, scheduled_time=scheduled)
        self.at(arrival).metrics.request_started(one, "/v1/completions")
        for now in tokens:
            timing.record_tokens(1, now)
            if live:
                self.at(now).metrics.tokens([event(name, num_cached=2)])
        timing.finished_time = finished
        gaps = [] if live else [after - before for before, after in pairwise(tokens)]
        usage = Usage(len(one.prompt_token_ids), len(tokens), 2)
        self.at(finished).metrics.request_finished(one, timing, usage, reason, gaps)

    def samples(self) -> dict[str, float]:
        return samples(self.metrics)


def request(
    name: str, arrival: float, *, length: int = 5, n: int = 1, slo: SLO | None = None, tenant: str = ""
) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=tuple(range(length)),
        params=SamplingParams(n=n),
        arrival_time=arrival,
        slo=slo,
        tenant=tenant,
    )


def event(name: str, index: int = 0, count: int = 1, *, num_cached: int = 0) -> TokenEvent:
    return TokenEvent(name, index, list(range(count)), num_cached_tokens=num_cached)


def state(**more: Any) -> EngineState:
    numbers = dict.fromkeys(EngineState.__dataclass_fields__, 0) | {"last_step": None, "accepted_per_position": ()}
    sizes = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_blocks": 10, "num_free_blocks": 10}
    return EngineState(**{**numbers, **sizes, **more})


def samples(metrics: ServiceMetrics) -> dict[str, float]:
    """Everything Prometheus is told, as it reads it: by name and labels, the model's left out."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.prometheus().decode()):
        assert family.name.startswith("archerfish:")
        assert family.documentation
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "perch"
            name = sample.name.removeprefix("archerfish:") + _written(labels)
            assert name not in found, "told twice"
            found[name] = sample.value
    return found


def _written(labels: Mapping[str, str]) -> str:
    inside = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    return f"{{{inside}}}" if inside else ""


# -- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("live", [True, False])
def test_a_timeline_gives_exactly_its_latencies(live: bool) -> None:
    line = Timeline()
    line.serve("a", arrival=1000, scheduled=1000.5, tokens=[1001, 1001.5, 1003], finished=1003.25, live=live)
    found = line.samples()
    for name, seconds in {
        "time_to_first_token_seconds": 1.0,
        "request_time_per_output_token_seconds": 1.0,
        "e2e_request_latency_seconds": 3.25,
        "request_queue_time_seconds": 0.5,
        "request_prefill_time_seconds": 0.5,
        "request_decode_time_seconds": 2.0,
        "request_inference_time_seconds": 2.5,
        "request_prompt_tokens": 5,
        "request_generation_tokens": 3,
    }.items():
        assert (found[f"{name}_sum"], found[f"{name}_count"]) == (seconds, 1), name
        assert found[f"{name}_bucket{{le=+Inf}}"] == 1
    assert (found["inter_token_latency_seconds_sum"], found["inter_token_latency_seconds_count"]) == (2.0, 2)
    assert found["inter_token_latency_seconds_bucket{le=0.4}"] == 0
    assert found["inter_token_latency_seconds_bucket{le=0.5}"] == 1
    assert found["inter_token_latency_seconds_bucket{le=2.5}"] == 2
    assert (found["prompt_tokens_total"], found["prompt_tokens_cached_total"]) == (5, 2)
    assert found["request_success_total{finished_reason=length}"] == 1
    assert found["request_success_total{finished_reason=stop}"] == 0
    assert found["requests_started_total{endpoint=/v1/completions}"] == 1
    latency = line.metrics.snapshot()["latency"]
    assert latency["ttft_ms"] == {"p50": 1000.0, "p90": 1000.0, "p99": 1000.0}
    assert latency["tpot_ms"] == {"p50": 1000.0, "p90": 1000.0, "p99": 1000.0}
    assert latency["itl_ms"] == pytest.approx({"p50": 1000.0, "p90": 1400.0, "p99": 1490.0})
    assert latency["e2e_ms"] == {"p50": 3250.0, "p90": 3250.0, "p99": 3250.0}


def test_first_tokens_and_gaps_show_before_the_end() -> None:
    line = Timeline()
    line.metrics.request_started(request("a", 999.0))
    line.at(1002).metrics.tokens([event("a")])
    line.at(1002.5).metrics.tokens([event("a")])
    found = line.samples()
    assert (found["time_to_first_token_seconds_sum"], found["inter_token_latency_seconds_sum"]) == (3.0, 0.5)
    assert found["prompt_tokens_total"] == 5
    assert found["e2e_request_latency_seconds_count"] == 0


def test_each_answer_has_its_own_gaps_and_the_request_one_first_token() -> None:
    line = Timeline()
    line.metrics.request_started(request("a", 1000.0, n=2))
    for now, events in (
        (1001.0, [event("a", 0)]),
        (1002.0, [event("a", 0), event("a", 1)]),
        (1004.0, [event("a", 0), event("a", 1)]),
    ):
        line.metrics.tokens(events, now)
    found = line.samples()
    assert (found["inter_token_latency_seconds_sum"], found["inter_token_latency_seconds_count"]) == (5.0, 3)
    assert (found["time_to_first_token_seconds_sum"], found["time_to_first_token_seconds_count"]) == (1.0, 1)


def test_tokens_that_come_together_share_their_gap() -> None:
    line = Timeline()
    line.metrics.request_started(request("a", 1000.0))
    line.metrics.tokens([event("a", count=1)], 1001.0)
    line.metrics.tokens([event("a", count=4)], 1002.0)
    found = line.samples()
    assert (found["inter_token_latency_seconds_sum"], found["inter_token_latency_seconds_count"]) == (1.0, 4)
    assert found["inter_token_latency_seconds_bucket{le=0.2}"] == 0
    assert found["inter_token_latency_seconds_bucket{le=0.3}"] == 4


def test_what_is_not_open_is_ignored() -> None:
    line = Timeline()
    line.metrics.tokens([event("nobody"), event("nobody")], 1001.0)
    line.serve("a", arrival=1000, scheduled=1001, tokens=[1002, 1003], finished=1003)
    timing = RequestTiming(1000.0, finished_time=1009.0)
    line.metrics.request_finished(request("a", 1000.0), timing, Usage(5, 2), "error")
    line.metrics.tokens([event("a")], 1010.0)
    found = line.samples()
    assert found["inter_token_latency_seconds_count"] == found["e2e_request_latency_seconds_count"] == 1
    assert found["request_success_total{finished_reason=error}"] == 0


def test_latencies_of_the_last_minute_only() -> None:
    line = Timeline()
    for number in range(10):
        arrival = 1000.0 + 10 * number
        line.serve(str(number), arrival=arrival, scheduled=arrival, tokens=[arrival + number], finished=arrival + 9.5)
    # First tokens of the requests from 5 on: of what came before second 1040 nothing is left.
    ttft = line.at(1099.5).metrics.snapshot()["latency"]["ttft_ms"]
    assert ttft["p50"] == pytest.approx(6500)
    nothing = {"p50": None, "p90": None, "p99": None}
    assert line.at(1200).metrics.snapshot()["latency"] == dict.fromkeys(
        ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"), nothing
    )


def test_without_an_objective_no_share_is_in_time() -> None:
    line = Timeline()
    served: dict[str, Any] = {"arrival": 1000, "scheduled": 1000, "tokens": [1001.0, 1001.5], "finished": 1004}
    line.serve("a", **served)
    assert line.metrics.snapshot()["goodput"] == {"per_s": 0.25, "share": None}
    line.serve("b", slo=SLO(ttft_ms=1), **served)
    assert line.metrics.snapshot()["goodput"] == {"per_s": 0.25, "share": 0.5}


def test_goodput_by_objective_and_in_all() -> None:
    line = Timeline()
    early, late = [1001.0, 1001.5], [1003.0, 1003.5]
    served: dict[str, Any] = {"arrival": 1000, "scheduled": 1000, "finished": 1004}
    line.serve("a", tokens=early, slo=SLO(ttft_ms=2000, tpot_ms=600), **served)
    line.serve("b", tokens=late, slo=SLO(ttft_ms=2000, tpot_ms=600), **served)
    line.serve("c", tokens=early, slo=SLO(tpot_ms=400), **served)
    line.serve("d", tokens=late, **served)
    line.serve("e", tokens=early, slo=SLO(ttft_ms=2000), reason=ERROR, **served)
    line.serve("f", tokens=late, slo=SLO(ttft_ms=1), reason=ABORT, **served)
    found = line.samples()
    assert (found["request_slo_total{met=true,slo=ttft}"], found["request_slo_total{met=false,slo=ttft}"]) == (2, 1)
    assert (found["request_slo_total{met=true,slo=tpot}"], found["request_slo_total{met=false,slo=tpot}"]) == (2, 1)
    assert (found["request_slo_total{met=true,slo=all}"], found["request_slo_total{met=false,slo=all}"]) == (2, 3)
    snapshot = line.metrics.snapshot()
    assert snapshot["goodput"] == {"per_s": 0.5, "share": 0.4}
    assert snapshot["requests"] == {"running": 0, "waiting": 0, "finished": 4, "failed": 1}
    assert line.at(1100).metrics.snapshot()["goodput"] == {"per_s": 0.0, "share": None}


def test_usage_is_kept_by_tenant() -> None:
    line = Timeline()
    served: dict[str, Any] = {"arrival": 1000, "scheduled": 1000, "finished": 1004}
    line.serve("a", tokens=[1001, 1002], tenant="one", length=7, **served)
    line.serve("b", tokens=[1001], tenant="two", **served)
    line.serve("c", tokens=[1001, 1002, 1003], tenant="one", reason=ABORT, **served)
    assert line.metrics.usage == {"one": TenantUsage(2, 12, 5, 4), "two": TenantUsage(1, 5, 1, 2)}
    found = line.samples()
    assert found["tenant_requests_total{tenant=one}"] == 2
    assert found["tenant_prompt_tokens_total{tenant=one}"] == 12
    assert found["tenant_generation_tokens_total{tenant=two}"] == 1


def test_tenants_and_paths_without_end_do_not_make_series_without_end() -> None:
    line = Timeline()
    served: dict[str, Any] = {"arrival": 1000, "scheduled": 1000, "finished": 1004, "tokens": [1001]}
    for number in range(1500):
        line.serve(str(number), tenant=f"tenant {number}", **served)
        line.metrics.http_response(f"/{number}", 404)
    assert len(line.metrics.usage) == 1500, "each can ask for its own"
    found = line.samples()
    tenants = {name: count for name, count in found.items() if name.startswith("tenant_requests")}
    assert (len(tenants), tenants["tenant_requests_total{tenant=(others)}"]) == (1001, 500)
    responses = {name: count for name, count in found.items() if name.startswith("http_responses")}
    assert (len(responses), sum(responses.values())) == (101, 1500)
    assert responses["http_responses_total{endpoint=(others),status=404}"] == 1400


def test_responses_are_counted_by_endpoint_and_status() -> None:
    line = Timeline()
    for endpoint, status in (("/v1/models", 200), ("/v1/models", 200), ("/v1/models", 401), ("/health", 503)):
        line.metrics.http_response(endpoint, status)
    found = line.samples()
    assert found["http_responses_total{endpoint=/v1/models,status=200}"] == 2
    assert found["http_responses_total{endpoint=/v1/models,status=401}"] == 1
    assert found["http_responses_total{endpoint=/health,status=503}"] == 1


# -- the engine -------------------------------------------------------------------------------------------------------


def test_the_engines_state_is_told_as_it_is() -> None:
    line = Timeline()
    line.at(1001).step(
        prefill=10,
        decode=2,
        generated=3,
        num_sequences=4,
        num_running=3,
        num_waiting=2,
        num_waiting_tokens=77,
        num_free_blocks=5,
        num_cached_blocks=3,
        num_blocks_in_use=2,
        num_preemptions=1,
        num_prefix_tokens_queried=40,
        num_prefix_tokens_hit=16,
    )
    found = line.samples()
    for name, value in {
        "num_requests_running": 3,
        "num_requests_waiting": 2,
        "num_open_answers": 0,
        "num_waiting_tokens": 77,
        "kv_cache_usage_perc": 0.2,
        "kv_cache_blocks{state=free}": 5,
        "kv_cache_blocks{state=cached}": 3,
        "kv_cache_blocks{state=in_use}": 2,
        "generation_tokens_total": 3,
        "computed_tokens_total": 12,
        "num_preemptions_total": 1,
        "prefix_cache_queries_total": 40,
        "prefix_cache_hits_total": 16,
        "engine_steps_total": 1,
        "engine_busy_seconds_total": 0.1,
        "engine_restarts_total": 0,
        "iteration_tokens_total_sum": 12,
        "iteration_tokens_total_count": 1,
        "batch_occupancy": 0.5,
        "build_info{version=1.2}": 1,
        "uptime_seconds": 1,
    }.items():
        assert found[name] == value, name
    assert line.metrics.last_state == line.state
    assert line.metrics.snapshot()["kv"] == {"num_blocks": 10, "free": 5, "cached": 3, "in_use": 2}


def test_the_settings_of_the_engine_are_labels_once_they_are_known() -> None:
    line = Timeline()
    assert not [name for name in line.samples() if name.startswith(("engine_info", "weight_bytes", "kv_cache_bytes"))]
    line.metrics.engine_info = EngineInfo(
        device="cpu",
        dtype="bfloat16",
        quantization="int8",
        kv_cache_dtype="bfloat16",
        speculation="auto",
        weight_bytes=100,
        kv_bytes_per_token=8.5,
    )
    found = line.samples()
    [info] = [name for name in found if name.startswith("engine_info")]
    assert all(f"{name}={value}" in info for name, value in (("quantization", "int8"), ("speculation", "auto")))
    assert (found[info], found["weight_bytes"], found["kv_cache_bytes_per_token"]) == (1, 100, 8.5)


def test_a_step_that_is_told_twice_counts_once() -> None:
    line = Timeline()
    line.at(1001).step(decode=4, generated=4)
    line.metrics.state(replace(line.state, num_running=0, time=5.0))
    found = line.samples()
    assert (found["iteration_tokens_total_count"], found["generation_tokens_total"]) == (1, 4)
    assert len(line.metrics.snapshot()["steps"]) == 1


def test_rates_of_tokens_are_those_of_the_last_seconds() -> None:
    line = Timeline()
    line.at(1000.5).step(prefill=30, generated=2)
    line.at(1001.5).step(decode=2, generated=2)
    assert line.at(1002).metrics.snapshot()["tokens"] == {"prompt_per_s": 15.0, "generated_per_s": 2.0}
    assert line.at(1009.5).metrics.snapshot()["tokens"]["prompt_per_s"] == 30 / 9.5
    assert line.at(1010.5).metrics.snapshot()["tokens"] == {"prompt_per_s": 0.0, "generated_per_s": 2 / 9.5}


def test_utilization_is_split_into_prefill_and_decode() -> None:
    line = Timeline()
    assert not [name for name in line.samples() if name.startswith(("mfu", "mbu", "peak"))]
    line.metrics.peak = Peak(flops=1000.0, bandwidth=200.0)
    assert line.metrics.snapshot()["roofline"]["mfu"] is None
    line.at(1001).step(prefill=6, decode=2, seconds=0.5, costs=(300.0, 50.0, 30.0, 20.0))
    line.at(1002).step(decode=2, seconds=1.5, costs=(0.0, 150.0, 0.0, 80.0))
    found = line.samples()
    assert (found["mfu{phase=prefill}"], found["mfu{phase=decode}"]) == (300 / 2000, 200 / 2000)
    assert (found["mbu{phase=prefill}"], found["mbu{phase=decode}"]) == (30 / 400, 100 / 400)
    assert (found["estimated_flops_total{phase=prefill}"], found["estimated_flops_total{phase=decode}"]) == (300, 200)
    assert found["estimated_read_bytes_total{phase=decode}"] == 100
    assert (found["peak_flops"], found["peak_bandwidth_bytes"]) == (1000, 200)
    assert line.metrics.snapshot()["roofline"] == {
        "peak_flops": 1000.0,
        "peak_bandwidth": 200.0,
        "points": [
            {"phase": "prefill", "intensity": 10.0, "flops": 600.0},
            {"phase": "decode", "intensity": 2.5, "flops": 100.0},
            {"phase": "decode", "intensity": 1.875, "flops": 100.0},
        ],
        "mfu": 0.25,
        "mbu": 0.325,
    }
    assert line.at(1100).metrics.snapshot()["roofline"]["mfu"] is None


def test_the_last_sixty_steps_are_shown() -> None:
    line = Timeline()
    for number in range(70):
        line.at(1000 + number / 10).step(prefill=number, decode=1, seconds=0.25)
    steps = line.metrics.snapshot()["steps"]
    assert len(steps) == 60
    assert steps[0] == {"prefill": 10, "decode": 1, "draft": 0, "ms": 250.0}
    assert steps[-1]["prefill"] == 69


def test_when_to_come_back_follows_from_how_fast_steps_are() -> None:
    line = Timeline()
    assert line.metrics.retry_after(10_000) == 1
    line.at(1001).step(prefill=60, seconds=0.5)
    line.at(1002).step(prefill=40, seconds=0.5)
    assert [line.metrics.retry_after(tokens) for tokens in (0, 50, 100, 250, 10**9)] == [1, 1, 1, 3, 600]
    # Long idle, then slower: only what is recent counts.
    line.at(1500).step(prefill=10, seconds=1.0)
    assert line.metrics.retry_after(250) == 25
    # Idle again: what was measured since the start is better than a guess.
    assert line.at(2000).metrics.retry_after(110) == 2


# -- engines that come and go -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [True, False])
def test_totals_go_on_when_a_new_engine_counts_from_zero(told: bool) -> None:
    line = Timeline()
    for _ in range(3):
        line.at(1001).step(decode=10, generated=10, num_running=4, num_preemptions=2, num_prefix_tokens_queried=9)
    if told:
        line.metrics.engine_restarted()
        found = line.samples()
        assert (found["num_requests_running"], found["kv_cache_usage_perc"]) == (0, 0)
        assert found["generation_tokens_total"] == 30
    line.state = state()
    line.at(1011).step(decode=5, generated=5, num_prefix_tokens_queried=1)
    found = line.samples()
    assert (found["generation_tokens_total"], found["computed_tokens_total"]) == (35, 35)
    assert (found["num_preemptions_total"], found["prefix_cache_queries_total"]) == (2, 10)
    assert found["engine_steps_total"] == 4
    assert found["engine_busy_seconds_total"] == pytest.approx(0.4)
    assert found["iteration_tokens_total_count"] == 4
    assert found["engine_restarts_total"] == 1
    assert line.metrics.snapshot()["tokens"]["generated_per_s"] == 5 / 9


@examples(40)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("step"), st.integers(0, 20), st.integers(0, 3)),
            st.tuples(st.sampled_from(["told restart", "silent restart", "idle"]), st.just(0), st.just(0)),
        ),
        max_size=12,
    )
)
def test_counters_never_decrease(course: list[tuple[str, int, int]]) -> None:
    line = Timeline()
    before = line.samples()
    for number, (what, tokens, preemptions) in enumerate(course):
        line.at(1001.0 + number)
        if what == "step":
            line.step(
                decode=tokens,
                generated=tokens,
                num_preemptions=line.state.num_preemptions + preemptions,
                costs=(0.0, 5.0, 0.0, 2.0),
            )
        elif what == "idle":
            line.metrics.state(line.state)
        else:
            if what == "told restart":
                line.metrics.engine_restarted()
            line.state = state()
            line.metrics.state(line.state)
        after = line.samples()
        for name, value in before.items():
            if "_total" in name or "_count" in name or "_bucket" in name:
                assert after[name] >= value, name
        before = after


# -- what is told -----------------------------------------------------------------------------------------------------


def test_a_service_that_has_not_begun_can_be_asked() -> None:
    line = Timeline()
    nothing = {"p50": None, "p90": None, "p99": None}
    assert line.metrics.snapshot() == {
        "time": 1.7e9,
        "model": "perch",
        "status": "loading",
        "uptime_s": 0.0,
        "requests": {"running": 0, "waiting": 0, "finished": 0, "failed": 0},
        "tokens": {"prompt_per_s": 0.0, "generated_per_s": 0.0},
        "latency": {"ttft_ms": nothing, "tpot_ms": nothing, "itl_ms": nothing, "e2e_ms": nothing},
        "goodput": {"per_s": 0.0, "share": None},
        "kv": {"num_blocks": 0, "free": 0, "cached": 0, "in_use": 0},
        "steps": [],
        "roofline": {"peak_flops": None, "peak_bandwidth": None, "points": [], "mfu": None, "mbu": None},
    }
    assert line.samples()["num_requests_running"] == 0


def test_a_snapshot_becomes_json() -> None:
    line = Timeline()
    line.metrics.status, line.metrics.peak = "ready", Peak(1e12, 1e11)
    line.serve("a", arrival=1000, scheduled=1000.5, tokens=[1001, 1001.5, 1003], finished=1003.25)
    line.at(1004).step(prefill=6, decode=2, costs=(300.0, 50.0, 30.0, 20.0))
    snapshot = line.metrics.snapshot()
    assert json.loads(json.dumps(snapshot, allow_nan=False)) == snapshot
    assert (snapshot["status"], snapshot["uptime_s"]) == ("ready", 4.0)


def test_nothing_goes_to_the_registry_that_all_share() -> None:
    before = {metric.name for metric in REGISTRY.collect()}
    one, other = Timeline(), Timeline()
    one.step(decode=3, generated=3)
    assert one.samples()["generation_tokens_total"] == 3
    assert other.samples()["generation_tokens_total"] == 0
    assert {metric.name for metric in REGISTRY.collect()} == before


def test_energy_is_told_where_it_can_be_read(tmp_path: Path) -> None:
    assert "energy_joules_total" not in Timeline(energy=EnergyMeter(tmp_path / "none")).samples()
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    for name, text in (("name", "package-0"), ("max_energy_range_uj", "1000000"), ("energy_uj", "0")):
        (zone / name).write_text(text)
    line = Timeline(energy=EnergyMeter(tmp_path))
    (zone / "energy_uj").write_text("800000")
    line.at(1061).step(decode=1)  # Read with the step: nobody may have scraped for so long that it is full twice.
    (zone / "energy_uj").write_text("200000")
    assert line.samples()["energy_joules_total"] == pytest.approx(1.2)


def test_every_metric_is_defined_in_the_documentation(tmp_path: Path) -> None:
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    for name, text in (("name", "package-0"), ("max_energy_range_uj", "1000000"), ("energy_uj", "0")):
        (zone / name).write_text(text)
    line = Timeline(energy=EnergyMeter(tmp_path))
    line.metrics.peak = Peak(1e12, 1e11)
    line.step(decode=1)
    families = list(text_string_to_metric_families(line.metrics.prometheus().decode()))
    documentation = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    for family in families:
        stem = family.name.removeprefix("archerfish:") + ("_total" if family.type == "counter" else "")
        assert f"`{stem}`" in documentation or f"`{stem}{{" in documentation, stem
    assert len(families) > 40


def test_guesses_are_told_by_what_became_of_them() -> None:
    timeline = Timeline()
    timeline.step(decode=2, num_drafts=2, num_draft_tokens=9, num_accepted_tokens=5,
                  accepted_per_position=(2, 2, 1), drafting_time=0.25,
                  saved_seconds=1.5, lost_seconds=0.5)  # fmt: skip
    found = samples(timeline.metrics)
    assert found["spec_decode_num_drafts_total"] == 2
    assert found["spec_decode_num_draft_tokens_total"] == 9
    assert found["spec_decode_num_accepted_tokens_total"] == 5
    assert found["spec_decode_seconds_total"] == 0.25
    assert (found["spec_decode_seconds_saved_total"], found["spec_decode_seconds_lost_total"]) == (1.5, 0.5)
    places = [found[f"spec_decode_num_accepted_tokens_per_pos_total{{position={place}}}"] for place in range(3)]
    assert places == [2, 2, 1]
    timeline.metrics.engine_restarted()
    timeline.state = state()
    timeline.step(decode=1, num_drafts=1, num_draft_tokens=1, num_accepted_tokens=1, accepted_per_position=(1,))
    assert accepted_per_position(timeline) == [3, 2, 1], "no count is lost with an engine"


def accepted_per_position(timeline: Timeline) -> list[float]:
    found = samples(timeline.metrics)
    return [found[f"spec_decode_num_accepted_tokens_per_pos_total{{position={place}}}"] for place in range(3)]
