"""The page of a comparison: what it says, and what is drawn of each measure."""

from pathlib import Path

import pytest

from archerfish.bench.compare.compare import Comparison, compare, group
from archerfish.bench.report.compare_page import compare_page
from archerfish.bench.report.page import render
from archerfish.bench.report.style import DARK
from archerfish.bench.serve.records import save_run
from tests.bench.runs import random_run
from tests.cli.running import archerfish, assert_refused


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    base, slow = (random_run(num_requests=60, label=label, slowness=by) for label, by in (("base", 1.0), ("slow", 2.0)))
    return compare(group([base, slow]))


def test_every_measure_is_in_the_table_and_drawn_with_its_interval(comparison: Comparison) -> None:
    page = compare_page(comparison)
    assert page.title == "slow against base" and page.subtitle == "base: 1 run, slow: 1 run" and not page.alarm
    [table] = page.tables
    assert [cells[0] for cells in table.rows] == [f"{row.name}, {row.unit}" for row in comparison.rows]
    assert {len(cells) for cells in table.rows} == {len(table.columns)}
    [chart] = page.charts
    drawn = {name: trace for trace in chart.figure.data for name in trace.y}
    assert drawn.keys() == {cells[0] for cells in table.rows}
    assert drawn["TTFT p50, ms"].name == "perhaps worse"
    worse = drawn["TTFT p50, ms"]
    change = next(row.changes[0] for row in comparison.rows if row.name == "TTFT p50")
    assert change is not None
    at = list(worse.y).index("TTFT p50, ms")
    assert worse.x[at] + worse.error_x.array[at] == pytest.approx(max(change.interval.high, change.relative))
    assert list(chart.figure.layout.yaxis.categoryarray) == [cells[0] for cells in table.rows]
    assert all(trace.marker.color in DARK for trace in chart.figure.data)
    assert " perhaps worse, " in page.conclusion.headline and "One run per label" in page.conclusion.sentence


def test_what_is_not_comparable_is_an_alarm() -> None:
    runs = [random_run(num_requests=30, label=label, rate=rate) for label, rate in (("a", 8.0), ("b", 4.0))]
    page = compare_page(compare(group(runs), force=True))
    assert page.alarm.startswith("NOT COMPARABLE")
    assert ("request_rate", "8.0 or 4.0") in [(notice.name, notice.text) for notice in page.notices]
    assert page.alarm in render(page)


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    for label in ("a", "b"):
        save_run(random_run(num_requests=20, label=label), tmp_path / f"{label}.json")
    files = [str(tmp_path / f"{label}.json") for label in ("a", "b")]
    ran = archerfish("bench", "compare", *files, "--report", str(tmp_path / "page.html"))
    assert ran.exit_code == 0, ran.stderr
    assert "b against a" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert_refused(archerfish("bench", "compare", *files, "--report", "/no/such/page.html"), "--report: there is no")
