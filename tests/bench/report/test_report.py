"""The page of a run: what it says, and that a browser draws it without asking anybody for anything."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from archerfish.bench.report.page import ReportPage, render, save_page
from archerfish.bench.report.run_page import run_page, save_report
from archerfish.bench.report.series import bars, flow, roofline_points, thinned
from archerfish.bench.report.style import DARK
from archerfish.bench.serve.records import BenchRun, load_run, save_run
from archerfish.bench.serve.summary import summarize
from archerfish.errors import ConfigError
from archerfish.metrics.timing import Objectives
from tests.bench.runs import (
    FEW,
    PEAK_BANDWIDTH,
    PEAK_FLOPS,
    SATURATED,
    failed_request,
    make_request,
    make_run,
    make_sample,
    random_run,
)
from tests.cli.running import archerfish
from tests.server.browser import CHROMIUM, NAMES, Chromium, Tab

OBJECTIVES = Objectives(ttft_ms=200, tpot_ms=25)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def words(page: ReportPage) -> str:
    """What a reader sees: without scripts and styles."""
    html = re.sub(r"<(script|style).*?</\1>", "", render(page), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def speculated_run() -> BenchRun:
    """Its drafts have four tokens, and now and then as many as fit."""
    run = random_run(num_requests=60, findings=(FEW,))
    first, *others = run.samples
    totals = {
        "num_drafts": 1000,
        "num_draft_tokens": 4000,
        "num_accepted_tokens": 1400,
        "accepted_per_position": (800, 400, 200, *[0] * 28),
    }
    return replace(run, samples=(first, *(replace(sample, **totals) for sample in others)))


# Numbers of charts.


def test_every_value_is_in_one_bar() -> None:
    rng = np.random.default_rng(0)
    for values in (rng.normal(5, 1, 1000), rng.lognormal(0, 3, 1000), np.array([3.0]), np.zeros(4)):
        found = bars(values.tolist())
        assert found.shares.sum() == pytest.approx(1.0)
        assert len(found.edges) == len(found.shares) + 1
    assert bars(rng.lognormal(0, 3, 1000).tolist()).is_logarithmic
    assert not bars(rng.normal(5, 1, 1000).tolist()).is_logarithmic


def test_flow_adds_up_to_the_throughput_of_the_run() -> None:
    run = random_run(3)
    run = replace(run, requests=(*run.requests, failed_request(999, 1.0)))
    found, summary = flow(run, OBJECTIVES), summarize(run, objectives=OBJECTIVES)
    assert summary.goodput is not None
    assert found.output_tokens.mean() == pytest.approx(summary.throughput.output_tokens)
    assert found.input_tokens.mean() == pytest.approx(summary.throughput.input_tokens)
    assert found.ended_requests.mean() == pytest.approx(summary.throughput.requests)
    assert found.good_requests.mean() == pytest.approx(summary.goodput.requests)


def test_phases_lie_on_the_roofline_where_their_share_of_the_time_puts_them() -> None:
    # A second of prefill's operations and two of decode's bytes at the peak, in six seconds of steps.
    end = {
        "busy_seconds": 6.0,
        "prefill_flops": PEAK_FLOPS,
        "prefill_bytes": 0.01 * PEAK_BANDWIDTH,
        "decode_flops": 0.2 * PEAK_FLOPS,
        "decode_bytes": 2 * PEAK_BANDWIDTH,
    }
    found = roofline_points([make_sample(0.0), make_sample(10.0, **end)])
    assert found is not None and found.prefill is not None and found.decode is not None
    assert found.prefill.flops == pytest.approx(PEAK_FLOPS / 2)  # Two of the six seconds were prefill's.
    assert found.decode.flops == pytest.approx(0.2 * PEAK_FLOPS / 4)
    assert found.decode.intensity == pytest.approx(0.2 * PEAK_FLOPS / (2 * PEAK_BANDWIDTH))
    assert roofline_points([make_sample(0.0)]) is None


def test_a_browser_gets_no_more_points_than_it_can_draw() -> None:
    assert range(100)[thinned(100)] == range(100)
    for length in (4001, 123_456):
        assert len(range(length)[thinned(length)]) <= 4000


# What the page says.


def test_figures_verdict_and_charts_are_on_the_page() -> None:
    run = random_run()
    page = run_page(run, objectives=OBJECTIVES, dollars_per_hour=2.0)
    summary = summarize(run, objectives=OBJECTIVES, dollars_per_hour=2.0)
    text = words(page)
    assert summary.latencies.ttft is not None and summary.goodput is not None
    for percent in (50, 90, 95, 99):
        assert f"{summary.latencies.ttft.percentile(percent) * 1000:,.2f}" in text
    assert f"{summary.goodput.share:.1%}" in text
    assert "Worth trying" in text
    assert "INVALID" not in text
    names = [chart.name for chart in page.charts]
    assert names == ["latencies", "first-tokens", "roofline", "flow", "state", "fullness"]
    assert [table.heading for table in page.tables] == ["Latency, ms", "Throughput", "Engine", "Cost"]


def test_acceptance_by_position_is_drawn_and_no_cell_is_wider_than_a_phone() -> None:
    page = run_page(speculated_run())
    [acceptance] = [chart for chart in page.charts if chart.name == "acceptance"]
    [bars_drawn] = acceptance.figure.data
    assert list(bars_drawn.x) == [1, 2, 3] and list(bars_drawn.y) == [0.8, 0.4, 0.2]
    assert "Draft acceptance rate 35.0%, mean acceptance length 2.40 tokens" in acceptance.caption
    [engine] = [table for table in page.tables if table.heading == "Engine"]
    assert dict(engine.rows)["Draft acceptance rate"] == "35.0%"
    assert max(len(cell) for row in engine.rows for cell in row[1:]) < 24


def test_an_invalid_run_says_so_before_any_number() -> None:
    html = render(run_page(random_run(num_requests=20, findings=(SATURATED, FEW))))
    assert html.index("INVALID") < html.index("client-saturated") < html.index('class="conclusion"')
    assert html.index("few-requests") < html.index('class="conclusion"')


def test_a_server_without_metrics_gets_the_charts_that_remain() -> None:
    page = run_page(random_run(num_requests=20, samples=()))
    assert [chart.name for chart in page.charts] == ["latencies", "first-tokens", "flow"]


def test_a_run_in_which_nothing_succeeded_has_a_page() -> None:
    page = run_page(make_run([failed_request(0, 0.0)]), objectives=OBJECTIVES)
    assert [chart.name for chart in page.charts] == ["flow"]
    assert "1 of 1" in words(page)


def test_answers_of_one_token_have_no_gaps_to_draw() -> None:
    assert run_page(make_run([make_request(0, 0.0, 0.1, [])])).charts


def test_texts_of_the_run_cannot_become_markup() -> None:
    run = random_run(num_requests=5, label=HOSTILE)
    html = render(run_page(replace(run, target=replace(run.target, model=HOSTILE, url=HOSTILE))))
    assert HOSTILE not in html
    assert "&lt;img src=x" in html
    data = re.search(r'id="data">(.*?)</script>', html, re.DOTALL)
    assert data is not None
    assert set(json.loads(data[1])) == {"figures", "dark"}


def test_every_colour_of_a_chart_has_a_dark_counterpart() -> None:
    for chart in run_page(random_run(num_requests=50), objectives=OBJECTIVES).charts:
        used = set(re.findall(r"#[0-9a-fA-F]{6}", chart.figure.to_json()))
        assert used <= set(DARK), chart.name


def test_a_page_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        save_page(run_page(random_run(num_requests=5)), tmp_path / "nowhere" / "page.html")


def test_the_command_makes_the_page_of_a_saved_run(tmp_path: Path) -> None:
    source = tmp_path / "run.json"
    save_run(random_run(num_requests=20), source)
    done = archerfish("bench", "report", str(source), "--goodput", "ttft:200", "tpot:25")
    assert done.exit_code == 0, done.stderr
    assert "Good requests" in (tmp_path / "run.html").read_text(encoding="utf-8")
    assert load_run(source).requests
    missing = archerfish("bench", "report", str(tmp_path / "none.json"))
    assert missing.exit_code == 2
    assert "none.json" in missing.stderr


# In a browser.

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason=f"needs a browser on the path, one of: {', '.join(NAMES)}")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    chromium = Chromium(tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_draws_every_chart_without_requests(tmp_path: Path, browser: Chromium, scheme: str) -> None:
    path = tmp_path / "page.html"
    save_report(speculated_run(), path, objectives=OBJECTIVES)
    tab = Tab(browser)
    tab.prefer(scheme)
    tab.open(path.as_uri())
    charts = tab.value("[...document.querySelectorAll('.chart')].map((chart) => chart.id)")
    assert len(charts) == 7
    for chart in charts:
        tab.appears(f"#{chart} svg.main-svg .trace")
    ink = tab.value("document.querySelector('#state .ytitle').style.fill")
    assert ink == ("rgb(74, 93, 104)" if scheme == "light" else "rgb(159, 178, 188)")
    assert tab.value("document.documentElement.scrollWidth <= innerWidth")
    tab.resize(420, 900)
    tab.wait("document.querySelector('#state svg.main-svg').clientWidth < 420")
    tab.wait("document.documentElement.scrollWidth <= innerWidth")
    urls = [params["request"]["url"] for params in tab.heard("Network.requestWillBeSent")]
    assert [url for url in urls if not url.startswith(("file:", "data:", "blob:"))] == []
    assert tab.heard("Runtime.exceptionThrown") == []
    assert tab.heard("Log.entryAdded") == []
    assert [call for call in tab.heard("Runtime.consoleAPICalled") if call["type"] in ("error", "warning")] == []
    tab.close()
