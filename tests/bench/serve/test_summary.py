"""Figures of runs made by hand, against sums worked out by hand, numpy and brute counts."""

import numpy as np
import pytest

from archerfish.bench.serve.summary import summarize
from archerfish.bench.serve.table import layout
from archerfish.metrics.timing import Objectives
from tests.bench.runs import failed_request, make_request, make_run, make_sample, random_run


def test_a_small_run_by_hand() -> None:
    run = make_run(
        [
            make_request(0, 0.0, 0.5, [0.1] * 10, num_prompt_tokens=100, num_cached_tokens=40),
            make_request(1, 1.0, 1.0, [0.2] * 5, num_prompt_tokens=50),
            failed_request(2, 1.5),
        ],
        duration=4.0,
    )
    found = summarize(run, dollars_per_hour=36.0)
    assert (found.num_succeeded, found.num_failed, found.duration) == (2, 1, 4.0)
    assert (found.num_input_tokens, found.num_output_tokens, found.num_cached_tokens) == (150, 17, 40)
    throughput = found.throughput
    assert (throughput.requests, throughput.requests_per_minute) == (0.5, 30)
    assert (throughput.input_tokens, throughput.output_tokens, throughput.tokens) == (37.5, 4.25, 41.75)
    assert throughput.output_tokens_per_user == pytest.approx(1 / 0.15)
    # 0.5 to 0.9 is the first second's; two answers overlap between 1 and 1.5.
    assert (throughput.peak_output_tokens, throughput.peak_concurrency) == (6, 2)
    latencies = found.latencies
    assert latencies.ttft is not None and latencies.ttft.mean == pytest.approx(0.75)
    assert latencies.tpot is not None and latencies.tpot.mean == pytest.approx(0.15)
    assert latencies.itl is not None and latencies.itl.mean == pytest.approx(2.0 / 15) and latencies.itl.count == 15
    assert latencies.e2el is not None and latencies.e2el.mean == pytest.approx((1.5 + 2.0) / 2)
    assert found.costs is not None and found.costs.total == pytest.approx(0.04)
    assert found.costs.per_request == pytest.approx(0.02) and found.costs.per_million_input_tokens is None
    assert (found.goodput, found.engine, latencies.server_ttft) == (None, None, None)


def test_percentiles_are_numpys_and_totals_add_up() -> None:
    run = random_run(3)
    found = summarize(run, percents=(50, 90, 95, 99)).latencies
    ttfts = [record.token_times[0] - record.sent for record in run.requests]
    assert found.ttft is not None
    for percent in (50, 90, 95, 99):
        assert found.ttft.percentile(percent) == pytest.approx(np.percentile(ttfts, percent))
    for record in run.requests:
        timing = record.timing
        assert timing.ttft is not None and timing.tpot is not None
        assert timing.total == pytest.approx(timing.ttft + timing.tpot * (record.num_output_tokens - 1))


def test_goodput_is_a_count() -> None:
    run = random_run(5)
    run = make_run([*run.requests, failed_request(200, 1.0)])
    found = summarize(run, objectives=Objectives(ttft_ms=100, tpot_ms=20)).goodput
    good = 0
    for record in run.requests:
        times = record.token_times
        if record.error is None and times[0] - record.sent <= 0.1:
            good += (times[-1] - times[0]) / (len(times) - 1) <= 0.02
    assert found is not None and 0 < good < 200
    assert (found.num_good, found.share) == (good, pytest.approx(good / 201))
    assert found.requests == pytest.approx(good / run.duration)


def test_thirty_good_requests_a_minute() -> None:
    requests = [make_request(n, n * 0.6, 0.15 if n % 10 < 3 else 0.25, [0.01]) for n in range(100)]
    found = summarize(make_run(requests, duration=60.0), objectives=Objectives(ttft_ms=200)).goodput
    assert found is not None
    assert (found.num_good, found.share, found.requests * 60) == (30, 0.3, pytest.approx(30))


def test_what_our_server_reports() -> None:
    work = {"prefill_flops": 2e12, "decode_flops": 5e11, "prefill_bytes": 1e10, "decode_bytes": 1e11}
    first = make_sample(0.0, num_steps=10, busy_seconds=1.0, num_computed_tokens=100, energy_joules=50.0)
    last = make_sample(
        10.0,
        num_steps=110,
        busy_seconds=6.0,
        num_computed_tokens=2100,
        num_prefix_tokens_queried=400,
        num_prefix_tokens_hit=100,
        num_preemptions=3,
        kv_cache_usage=0.1,
        energy_joules=1050.0,
        **work,
    )
    middle = make_sample(5.0, kv_cache_usage=0.9)
    run = make_run([make_request(0, 0.0, 1.0, [1.0] * 9)], samples=(first, middle, last), duration=3600.0)
    summary = summarize(run, dollars_per_hour=3.0)
    engine = summary.engine
    assert engine is not None
    assert (engine.busy_share, engine.mean_batch, engine.largest_kv_cache_usage) == (0.5, 20.0, 0.9)
    assert (engine.num_preemptions, engine.prefix_hit_share, engine.joules_per_token) == (3, 0.25, 0.5)
    assert engine.speculation is None, "nothing was drafted"
    used = engine.utilization
    assert used is not None
    assert (used.prefill_mfu, used.decode_mfu) == pytest.approx((2 / 5, 0.5 / 5))
    assert (used.prefill_mbu, used.decode_mbu) == pytest.approx((0.02, 0.2))
    # Prefill needs 2 s of the peak's operations, decode 1 s of its bandwidth.
    assert summary.costs is not None
    assert summary.costs.per_million_input_tokens == pytest.approx(2.0 / 100 * 1e6)
    assert summary.costs.per_million_output_tokens == pytest.approx(1.0 / 10 * 1e6)


def test_nothing_came_of_it() -> None:
    found = summarize(make_run([failed_request(0, 0.0)]), objectives=Objectives(ttft_ms=1), dollars_per_hour=1.0)
    assert (found.num_succeeded, found.num_failed, found.latencies.ttft) == (0, 1, None)
    assert found.goodput is not None and found.goodput.share == 0.0
    assert found.costs is not None and found.costs.per_request is None


def test_what_our_server_drafted() -> None:
    first = make_sample(
        0.0, num_drafts=2, num_draft_tokens=9, num_accepted_tokens=4, accepted_per_position=(2, 2), saved_seconds=1.0
    )
    last = make_sample(
        10.0,
        num_drafts=12,
        num_draft_tokens=49,
        num_accepted_tokens=24,
        accepted_per_position=(12, 8, 4),
        saved_seconds=11.0,
        lost_seconds=1.0,
    )
    run = make_run([make_request(0, 0.0, 1.0, [1.0] * 9)], samples=(first, last), duration=10.0)
    summary = summarize(run)
    assert summary.engine is not None and summary.engine.speculation is not None
    found = summary.engine.speculation
    assert (found.acceptance_length, found.acceptance_rate, found.acceptance_per_position) == (
        3.0,
        0.5,
        (1.0, 0.6, 0.4),
    )
    # 2000 tokens in 9 seconds of steps, that would have taken 18.
    assert (found.saved_seconds, found.tokens_per_second_gained) == (9.0, pytest.approx(2000 / 18))
    table = layout(run, summary, ())
    assert "Speculative Decoding" in table and "Mean acceptance length:                  3.00 tokens" in table
