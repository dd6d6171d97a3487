"""The page of a ladder: what it says of lines that are lossy, slower, or not measured."""

from typing import Any

import pytest

from archerfish.bench.ladder.ladder import Ladder, LadderRow
from archerfish.bench.offline.conditions import Conditions
from archerfish.bench.report.ladder_page import ladder_page
from archerfish.bench.report.page import ReportPage
from archerfish.bench.report.style import DARK, DECODE, PREFILL, QUIET
from archerfish.config.settings import EngineConfig
from archerfish.engine.build import examine
from tests.cli.running import RANDOM_LLAMA


@pytest.fixture(scope="module")
def conditions() -> Conditions:
    return Conditions.of(examine(EngineConfig(model=str(RANDOM_LLAMA), device="cpu", threads=1, load_format="dummy")))


def row(name: str, rate: float, ratio: float | None = None, **more: Any) -> LadderRow:
    times = {"seconds": 10 / rate, "seconds_per_request": 5 / rate, "mean_latency": 8 / rate}
    given = {
        "weight_bytes": 2**21,
        "kv_bytes": 2**20,
        "workspace_bytes": 2**20,
        "same_tokens": True,
        "tokens_per_second": rate,
        "ratio": ratio,
        "total_ratio": ratio,
    }
    return LadderRow(name=name, **(times | given | more))


def page(conditions: Conditions, *rows: LadderRow) -> ReportPage:
    return ladder_page(conditions, Ladder(num_requests=2, shared_len=8, own_len=4, output_len=5, rows=rows))


def test_lines_are_drawn_and_the_best_is_named(conditions: Conditions) -> None:
    made = page(
        conditions,
        row("naive", 10.0, kv_bytes=0),
        row("+ cache", 400.0, 40.0),
        row("+ more", 200.0, 0.5, note="slower than the line above: it is small"),
        row("+ int8", 450.0, 2.25, is_lossy=True, same_tokens=False),
        LadderRow(name="+ fp8", reason="it needs a GPU"),
    )
    assert made.conclusion.headline == "45.0 x as fast as naive" and not made.alarm
    assert "450.0 tokens/s at the line + int8" in made.conclusion.sentence
    assert "slower than the line above: it is small" in made.conclusion.sentence
    assert [(notice.name, notice.text) for notice in made.notices] == [("+ fp8", "not measured, it needs a GPU.")]
    assert [(figure.value) for figure in made.figures] == ["400.0", "450.0"]
    [table] = made.tables
    assert [cells[-1] for cells in table.rows] == ["the same", "the same", "the same", "lossy", "-"]
    assert {len(cells) for cells in table.rows} == {len(table.columns)}
    [drawn] = made.charts[0].figure.data
    assert list(drawn.y) == ["naive", "+ cache", "+ more", "+ int8"] and list(drawn.x) == [10.0, 400.0, 200.0, 450.0]
    assert list(drawn.marker.color) == [DECODE, DECODE, QUIET, PREFILL]
    assert list(drawn.text) == ["10.0", "400, x 40.00", "200, x 0.50", "450, x 2.25"]
    assert [chart.name for chart in made.charts] == ["throughput", "latency", "memory"]
    weights, cache, workspace = made.charts[2].figure.data
    assert (weights.x[1], cache.x[1], workspace.x[1], workspace.text[1]) == (2.0, 1.0, 1.0, "4.00 MiB")
    assert all(colour in DARK for chart in made.charts for bars in chart.figure.data for colour in bars.marker.color)


def test_lines_that_disagree_are_an_alarm(conditions: Conditions) -> None:
    made = page(conditions, row("naive", 10.0), row("+ cache", 20.0, 2.0, same_tokens=False))
    assert "did not" in made.alarm and "DIFFERENT" in made.tables[0].rows[1]


def test_a_ladder_of_which_nothing_could_be_measured_has_a_page(conditions: Conditions) -> None:
    made = page(conditions, LadderRow(name="naive", reason="no reason at all"))
    assert made.conclusion.headline == "Nothing was measured" and made.charts == ()


def test_a_line_after_a_lossy_one_is_not_lossless(conditions: Conditions) -> None:
    lossy = row("+ int8 weights", 400.0, 4.0, is_lossy=True)
    made = page(conditions, row("naive", 100.0), lossy, row("+ speculation", 300.0, 0.75))
    assert [figure.value for figure in made.figures] == ["100.0", "400.0"]
