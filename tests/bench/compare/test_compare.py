"""Runs side by side: intervals against textbook figures, and what cannot be compared."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archerfish.bench.compare.compare import Comparison, ComparisonRow, compare, group
from archerfish.bench.compare.statistics import bootstrap_interval, student, welch_interval
from archerfish.bench.compare.workloads import differences
from archerfish.bench.serve.records import BenchRun, save_run
from archerfish.bench.serve.summary import summarize
from archerfish.errors import ConfigError
from archerfish.metrics.timing import Objectives
from tests.bench.runs import FEW, SATURATED, make_request, make_run, random_run
from tests.cli.running import archerfish, assert_refused


def quick_run(seed: int = 0, label: str = "base", slowness: float = 1.0, **more: Any) -> BenchRun:
    return random_run(seed, num_requests=80, label=label, slowness=slowness, samples=(), **more)


def rows(comparison: Comparison) -> dict[str, ComparisonRow]:
    return {f"{row.name}, {row.unit}": row for row in comparison.rows}


# Intervals.


def test_students_t_is_that_of_the_tables() -> None:
    for degrees, expected in ((1, 12.706), (2, 4.303), (10, 2.228), (30, 2.042), (40, 2.021), (120, 1.980)):
        assert student(degrees) == pytest.approx(expected, abs=0.001)
    assert student(10.9) == student(10)
    assert student(1e9) == pytest.approx(1.960, abs=0.001)


def test_welch_by_hand() -> None:
    # Means 10 and 13, variances 1 and 4 over three each: error sqrt(5/3), degrees (5/3)^2 / (1/18 + 16/18) = 2.94.
    interval = welch_interval([9.0, 10.0, 11.0], [11.0, 13.0, 15.0])
    reach = 4.303 * (5 / 3) ** 0.5
    assert interval.low == pytest.approx((3 - reach) / 10)
    assert interval.high == pytest.approx((3 + reach) / 10)


def test_repeats_that_do_not_differ_leave_no_doubt() -> None:
    assert welch_interval([2.0, 2.0], [3.0, 3.0]) == (0.5, 0.5)


def test_welch_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(1000):
        low, high = welch_interval(rng.normal(10, 1, 4).tolist(), rng.normal(11, 2, 4).tolist())
        hits += low <= 0.1 <= high
    assert hits > 920


def test_bootstrap_interval_is_of_the_ratio() -> None:
    base, other = np.full(1000, 2.0), np.linspace(2.0, 4.0, 1000)
    low, high = bootstrap_interval(base, other)
    assert low == pytest.approx(0.025) and high == pytest.approx(0.975)
    assert bootstrap_interval(np.zeros(3), np.ones(3)) == (-np.inf, np.inf)


# Runs.


def test_labels_make_sides_in_the_order_they_appear() -> None:
    sides = group([quick_run(0, "b"), quick_run(1, "a"), quick_run(2, "b")])
    assert [(side.label, len(side.runs)) for side in sides] == [("b", 2), ("a", 1)]


def test_a_run_is_no_different_from_itself() -> None:
    comparison = compare(group([quick_run(), quick_run(label="same")]), objectives=Objectives(ttft_ms=150))
    assert comparison.method == "bootstrap"
    assert comparison.has_same_seeds
    for row in comparison.rows:
        change = row.changes[0]
        assert change is not None and change.relative == 0 and change.outcome == "no difference"


def test_a_slower_server_is_worse_by_what_it_is_slower() -> None:
    base, slow = quick_run(), quick_run(label="slow", slowness=1.5)
    found = rows(compare(group([base, slow])))
    for name in ("TTFT p50, ms", "TPOT mean, ms", "ITL p99, ms", "End to end p50, ms"):
        change = found[name].changes[0]
        assert change is not None
        assert change.relative == pytest.approx(0.5)
        assert change.outcome == "perhaps worse"
        assert change.interval.low < 0.5 < change.interval.high
    summary = summarize(base)
    assert summary.latencies.ttft is not None
    assert found["TTFT p99, ms"].values[0] == pytest.approx(summary.latencies.ttft.percentile(99) * 1000)
    # Requests come when they come: how many are served in a second hardly depends on how long each takes.
    throughput = found["Requests, /s"].changes[0]
    assert throughput is not None and throughput.outcome == "no difference"


def test_more_is_better_for_throughput() -> None:
    def closed(gap: float, label: str) -> BenchRun:
        requests = [make_request(index, index * gap, gap / 2, [gap / 40] * 20) for index in range(200)]
        return make_run(requests, label=label)

    change = rows(compare(group([closed(0.2, "base"), closed(0.1, "fast")])))["Output tokens, /s"].changes[0]
    assert change is not None
    assert change.relative == pytest.approx(1.0, rel=0.01)
    assert change.outcome == "perhaps better"


def test_repeats_on_every_side_are_what_intervals_come_from() -> None:
    sides = group([quick_run(seed, label) for label in ("base", "same") for seed in range(4)])
    comparison = compare(sides)
    assert comparison.method == "repeats"
    assert comparison.num_runs == (4, 4)
    assert all(change.outcome == "no difference" for row in comparison.rows for change in row.changes if change)
    uneven = compare(group([quick_run(0), quick_run(1), quick_run(2, "one")]))
    assert uneven.method == "bootstrap" and not uneven.has_same_seeds


def test_the_same_seed_gives_the_same_intervals() -> None:
    sides = group([quick_run(), quick_run(1, "other")])
    assert compare(sides, seed=3) == compare(sides, seed=3)
    assert compare(sides, seed=3) != compare(sides, seed=4)


def test_what_no_answer_has_is_left_blank() -> None:
    single = make_run([make_request(index, index * 1.0, 0.1, []) for index in range(5)], label="single")
    found = rows(compare(group([single, replace(single, label="other")])))
    assert found["TPOT mean, ms"].values == (None, None)
    assert found["TPOT mean, ms"].changes == (None,)
    assert found["TTFT mean, ms"].values[0] == pytest.approx(100.0)


# What cannot be compared.


def test_other_loads_are_refused_by_name_unless_forced() -> None:
    base = quick_run()
    other = replace(base, label="other", workload=replace(base.workload, request_rate=16.0, dataset="sharegpt"))
    with pytest.raises(
        ConfigError, match=r"dataset: random or sharegpt; they differ in request_rate: 8\.0 or 16\.0; measure again"
    ):
        compare(group([base, other]))
    forced = compare(group([base, other]), force=True)
    assert [difference.field for difference in forced.differences] == ["dataset", "request_rate"]


def test_lengths_distinguish_loads_of_the_same_name() -> None:
    def requesting(length: int) -> BenchRun:
        return make_run([make_request(0, 0.0, 0.1, [0.1], num_output_tokens_requested=length)])

    assert differences([requesting(100), requesting(104)]) == ()
    assert differences([quick_run(seed) for seed in range(6)]) == ()  # Their means differ by a tenth, by chance.
    found = differences([requesting(100), requesting(200)])
    assert [(one.field, one.values) for one in found] == [("mean output tokens requested", ("100.0", "200.0"))]


def test_seeds_may_differ_and_validity_may_not_be_lacking() -> None:
    base = quick_run()
    assert differences([base, replace(base, workload=replace(base.workload, seed=7))]) == ()
    invalid = replace(base, findings=(SATURATED,))
    assert [one.values for one in differences([invalid, invalid])] == [("INVALID (client-saturated)",)]


def test_an_invalid_run_is_refused_with_what_would_mend_it() -> None:
    base = quick_run()
    invalid = replace(base, label="used server", findings=(FEW, SATURATED))
    with pytest.raises(ConfigError) as refusal:
        compare(group([base, invalid]))
    said = str(refusal.value)
    assert "a run of 'used server' is INVALID (client-saturated); measure 'used server' again: lower" in said
    assert "the same load" not in said


def test_a_single_label_has_nothing_to_be_compared_with() -> None:
    with pytest.raises(ConfigError, match="LABEL=FILE"):
        compare(group([quick_run(), quick_run(1)]))


# The command.


def test_the_command_prints_a_table_and_json(tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, slowness in zip(files, (1.0, 2.0), strict=True):
        save_run(quick_run(label="", slowness=slowness), file)
    named = [f"old={files[0]}", f"new={files[1]}"]
    done = archerfish("bench", "compare", *named)
    assert done.exit_code == 0, done.stderr
    assert "Against old" in done.stdout and "+100.0%" in done.stdout and "worse" in done.stdout
    assert "One run per label" in done.stderr
    found = json.loads(archerfish("bench", "compare", *named, "--json", "--goodput", "ttft:200").stdout)
    assert found["labels"] == ["old", "new"]
    assert {"Good requests", "TTFT p99"} <= {row["name"] for row in found["rows"]}
    assert_refused(archerfish("bench", "compare", *map(str, files)), "LABEL=FILE")
