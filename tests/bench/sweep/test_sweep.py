"""The search for the highest load that is met, on servers that exist as formulas; and what a sweep reports of it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from archerfish.bench.cost import dollars_per_million
from archerfish.bench.report.page import render
from archerfish.bench.report.sweep_page import sweep_page
from archerfish.bench.serve import measure as serving
from archerfish.bench.serve.options import LoadOptions
from archerfish.bench.serve.records import BenchRun, Finding, load_run
from archerfish.bench.sweep.options import SweepOptions
from archerfish.bench.sweep.search import Found, LoadPoint, LoadTrial, Outcome, SearchPlan, search
from archerfish.bench.sweep.sweep import Sweep, SweepPlan, sweep, uncounted_reasons, verdict_text
from archerfish.errors import ConfigError
from archerfish.metrics.timing import Objectives
from tests.bench.runs import SATURATED, WORKLOAD, make_request, make_run
from tests.cli.running import archerfish, assert_refused

OVERSATURATED = Finding(name="over-saturated", is_fatal=True, what="TTFT grew", fix="lower --request-rate")


# The search.


def server(limit: float, *, noise: float = 0.0, seed: int = 0) -> Callable[[float], LoadTrial[None]]:
    """Holds loads up to its limit; near it, by chance. Its throughput grows with the load up to twice the limit."""
    rng = np.random.default_rng(seed)

    def measure(load: float) -> LoadTrial[None]:
        held = load * (1 + noise * rng.standard_normal()) <= limit
        return LoadTrial(outcome="held" if held else "missed", throughput=min(load, 2 * limit), detail=None)

    return measure


def found_load(found: Found[None]) -> float:
    assert found.best is not None
    return found.best.load


@pytest.mark.parametrize("limit", [0.013, 0.4, 1.0, 5.3, 97.0, 640.0])
def test_the_limit_is_found_from_below_and_from_above(limit: float) -> None:
    found = search(server(limit), SearchPlan(num_repeats=1, most_points=40))
    assert found_load(found) <= limit <= found_load(found) * 1.05
    assert found.ending == "missed"
    assert len(found.points) <= 18


@pytest.mark.parametrize("limit", [1, 7, 8, 100])
def test_whole_loads_are_found_exactly(limit: int) -> None:
    visited = []

    def measure(load: float) -> LoadTrial[None]:
        visited.append(load)
        return server(limit)(load)

    found = search(measure, SearchPlan(is_whole=True, num_repeats=1, tolerance=0.001, most_points=40))
    assert found_load(found) == limit
    assert all(load == int(load) for load in visited)


@pytest.mark.parametrize("seed", range(20))
def test_noise_moves_the_limit_by_no_more_than_it_is(seed: int) -> None:
    found = search(server(10.0, noise=0.05, seed=seed), SearchPlan(num_repeats=5, most_points=40))
    assert 8.5 <= found_load(found) <= 11.5


def test_trials_end_when_the_majority_is_certain() -> None:
    found = search(server(10.0), SearchPlan(num_repeats=3))
    assert all(len(point.trials) == 2 for point in found.points)


def test_named_loads_are_all_measured_and_then_narrowed() -> None:
    found = search(server(5.0), SearchPlan(loads=(16, 2, 4, 8), num_repeats=1))
    assert {2, 4, 8, 16} <= {point.load for point in found.points}
    assert found_load(found) == pytest.approx(5.0, rel=0.05)
    assert search(server(99.0), SearchPlan(loads=(1, 2))).ending == "all held"


def test_a_search_ends_where_more_load_brings_nothing() -> None:
    def endless(load: float) -> LoadTrial[None]:
        return LoadTrial(outcome="held", throughput=min(load, 6.0), detail=None)

    found = search(endless, SearchPlan(num_repeats=1))
    assert found.ending == "saturated"
    assert [point.load for point in found.points] == [1, 2, 4, 8, 16]


def test_a_search_ends_when_its_measurements_are_used_up() -> None:
    growing = server(1e12)
    assert search(growing, SearchPlan(num_repeats=1, most_points=4)).ending == "budget"
    short = search(server(5.3), SearchPlan(num_repeats=1, most_points=5))
    assert short.ending == "budget" and len(short.points) == 5 and found_load(short) <= 5.3


def test_nothing_holds() -> None:
    found = search(server(0.0), SearchPlan(num_repeats=1, most_points=40))
    assert found.best is None and found.ending == "nothing held"
    assert len(found.points) == 11
    whole = search(server(0.0), SearchPlan(num_repeats=1, is_whole=True, start=4))
    assert [point.load for point in whole.points] == [1, 2, 4]


def test_what_cannot_be_measured_bounds_the_search_and_decides_nothing() -> None:
    def measure(load: float) -> LoadTrial[None]:
        outcome: Outcome = "held" if load <= 5 else "not counted"
        return LoadTrial(outcome=outcome, throughput=load, detail=None)

    found = search(measure, SearchPlan(num_repeats=2))
    assert found.ending == "not counted"
    assert found_load(found) == pytest.approx(5.0, rel=0.05)


def test_a_trial_that_does_not_count_is_outvoted_by_one_that_does() -> None:
    uncounted = LoadTrial(outcome="not counted", throughput=0.0, detail=None)
    held = LoadTrial(outcome="held", throughput=4.0, detail=None)
    missed = LoadTrial(outcome="missed", throughput=8.0, detail=None)
    assert LoadPoint(1.0, (uncounted, held)).outcome == "held"
    assert LoadPoint(1.0, (held, missed)).outcome == "missed"
    assert LoadPoint(1.0, (uncounted,)).outcome == "not counted"
    assert LoadPoint(1.0, (uncounted, held, missed)).throughput == 6.0


# The sweep.


def modelled(load: float, number: int, *, capacity: float = 10.0) -> BenchRun:
    """A queue of one: waiting time grows as 1 / (1 - load / capacity); answers have 20 tokens."""
    rng = np.random.default_rng(number)
    busy = min(load / capacity, 0.99)
    gap, requests = 1 / load, []
    for index in range(100):
        ttft = 0.05 + float(rng.exponential(0.02 * busy / (1 - busy)))
        requests.append(make_request(index, index * gap, ttft, [0.02] * 19))
    findings = (OVERSATURATED,) if load > capacity else (SATURATED,) if load > 40 else ()
    workload = replace(WORKLOAD, num_requests=100, request_rate=load, seed=number)
    return make_run(requests, workload=workload, findings=findings)


PLAN = SweepPlan(
    axis="request rate",
    objectives=Objectives(ttft_ms=200, tpot_ms=50),
    goodput_share=0.95,
    dollars_per_hour=2.0,
    search=SearchPlan(num_repeats=3),
)


@pytest.fixture(scope="module")
def swept() -> Sweep:
    return sweep(modelled, PLAN)


def test_the_sweep_finds_the_highest_rate_that_meets_the_objectives(swept: Sweep) -> None:
    # 95 % within 150 ms of waiting, whose mean is 20 ms * r / (1 - r): 3 * mean = 150 ms at r = 0.714.
    assert swept.best == pytest.approx(7.1, rel=0.12)
    best = swept.best_point
    assert best is not None and best.outcome == "held"
    for point in swept.points:
        shares = [trial.summary.goodput.share for trial in point.trials if trial.summary.goodput is not None]
        if point.outcome == "held":
            assert sorted(shares)[len(shares) // 2] >= 0.95
    assert "holds; a little more does not hold" in verdict_text(swept)


def test_cost_is_priced_where_the_objectives_are_met(swept: Sweep) -> None:
    best = swept.best_point
    assert best is not None and swept.costs is not None
    rates = sorted(trial.summary.throughput.tokens for trial in best.trials if trial.outcome == "held")
    expected = dollars_per_million(rates[len(rates) // 2], 2.0)
    assert swept.costs.per_million_tokens == pytest.approx(expected, rel=0.01)


def test_every_trial_has_a_seed_of_its_own(swept: Sweep) -> None:
    seeds = [trial.seed for point in swept.points for trial in point.trials]
    assert len(seeds) == len(set(seeds))


def test_a_server_that_gave_way_missed_and_a_client_that_did_is_not_counted() -> None:
    def gives_way(_: float, number: int) -> BenchRun:
        return replace(modelled(1.0, number), findings=(OVERSATURATED,))

    def client_gives_way(_: float, number: int) -> BenchRun:
        return replace(modelled(1.0, number), findings=(OVERSATURATED, SATURATED))

    plan = replace(PLAN, search=SearchPlan(loads=(1.0,), num_repeats=1))
    missed = sweep(gives_way, plan)
    assert missed.points[0].outcome == "missed"
    assert missed.points[0].trials[0].reasons == ("over-saturated",)
    uncounted = sweep(client_gives_way, plan)
    assert uncounted.points[0].outcome == "not counted"
    assert uncounted_reasons(uncounted.points) == ["1: not counted (client-saturated)"]
    html = render(sweep_page(uncounted))
    assert html.index("INVALID") < html.index('class="conclusion"')
    assert "client-saturated" in html


def test_without_objectives_a_load_holds_if_the_server_is_fast_enough() -> None:
    found = sweep(modelled, replace(PLAN, objectives=None))
    assert found.best == pytest.approx(10.0, rel=0.05)


def test_the_page_has_the_charts_and_the_answer(swept: Sweep) -> None:
    page = sweep_page(swept)
    assert [chart.name for chart in page.charts] == ["requests", "tokens", "share", "ttft", "tpot"]
    assert page.alarm == ""
    assert page.conclusion.headline == f"{swept.best:,.4g} requests/s"
    assert len(page.tables[0].rows) == len(swept.points)


# Options and the command.


def test_options_say_what_is_wrong() -> None:
    for wrong, says in (
        ({"request_rates": "1,x"}, "--request-rates"),
        ({"request_rates": "0"}, "above 0"),
        ({"request_rates": "1", "concurrencies": "2"}, "leave out one"),
        ({"concurrencies": "1.5"}, "whole number"),
        ({"goodput_share": 1.5}, "--goodput-share"),
        ({"repeats": 0}, "--repeats"),
    ):
        with pytest.raises(ConfigError, match=says):
            SweepOptions(**wrong)  # type: ignore[arg-type]


def test_measurements_are_as_long_as_they_must_be() -> None:
    by_rate = SweepOptions(request_rates="auto", num_prompts=50, seconds=10)
    assert (by_rate.num_requests(2.0), by_rate.num_requests(8.0)) == (50, 80)
    by_concurrency = SweepOptions(concurrencies="1,64,8", num_prompts=50)
    assert by_concurrency.loads == (1, 8, 64)
    assert (by_concurrency.num_requests(8), by_concurrency.num_requests(64)) == (50, 256)


def test_the_command_refuses_before_it_measures(tmp_path: Path) -> None:
    assert_refused(archerfish("bench", "sweep", "--goodput", "speed:3"), "speed:3")
    assert_refused(archerfish("bench", "sweep", "--result-dir", str(tmp_path / "none")), "none")
    assert_refused(archerfish("bench", "sweep", "--request-rates", "fast"), "fast")
    missing = ("--dataset-name", "sharegpt", "--dataset-path", str(tmp_path / "missing.json"))
    assert_refused(archerfish("bench", "sweep", *missing), "missing.json")
    assert_refused(archerfish("bench", "sweep", "--url", "http://x", "--server-args", "-h"), "--server-args")


def test_the_command_measures_with_seeds_and_lengths_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_loads = []

    def measure(_: str, options: LoadOptions, prepared: None, *, is_own: bool) -> BenchRun:
        measured_loads.append(options)
        assert prepared is None and not is_own
        assert options.rate is not None
        return modelled(options.rate, options.seed)

    monkeypatch.setattr(serving, "prepare_load", lambda *_, **__: None)
    monkeypatch.setattr(serving, "measure_load", measure)
    page = tmp_path / "page.html"
    done = archerfish(
        *(
            "bench",
            "sweep",
            "--url",
            "http://127.0.0.1:1",
            "--request-rates",
            "2,4,64",
            "--repeats",
            "1",
            "--seed",
            "5",
        ),
        *("--goodput", "ttft:200", "tpot:50", "--json", "--report", str(page), "--result-dir", str(tmp_path)),
    )
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kind"] == "archerfish-bench-sweep" and 4 <= found["best"] < 10
    assert [(options.rate, options.seed, options.num_prompts) for options in measured_loads[:3]] == [
        (2.0, 5, 30),
        (4.0, 6, 60),
        (64.0, 7, 960),
    ]
    assert load_run(tmp_path / "sweep-002.json").workload.request_rate == 64.0
    assert "Load sweep" in page.read_text(encoding="utf-8")


def test_a_sweep_that_counts_nothing_is_an_invalid_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: object, **__: object) -> BenchRun:
        return replace(modelled(1.0, 0), findings=(SATURATED,))

    monkeypatch.setattr(serving, "prepare_load", lambda *_, **__: None)
    monkeypatch.setattr(serving, "measure_load", measure)
    done = archerfish("bench", "sweep", "--url", "http://127.0.0.1:1", "--concurrencies", "1,2", "--repeats", "1")
    assert done.exit_code == 2
    assert "not counted" in done.stdout and "client-saturated" in done.stderr
