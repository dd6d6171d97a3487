"""The table that scripts read."""

import re

import pytest

from archerfish.bench.serve.summary import summarize
from archerfish.bench.serve.table import layout, parse_metrics, parse_percents
from archerfish.errors import ConfigError
from archerfish.metrics.timing import Objectives
from tests.bench.runs import FEW, SATURATED, failed_request, make_request, make_run, random_run

_LINE = re.compile(r"(?P<name>.+:)\s+(?P<value>[\d.]+)\s*")


def _read(table: str) -> dict[str, float]:
    """As scripts do: a name, a colon, a number."""
    found = (_LINE.fullmatch(line) for line in table.splitlines())
    return {line["name"]: float(line["value"]) for line in found if line is not None}


def test_the_lines_of_vllm() -> None:
    run = make_run([make_request(0, 0.0, 0.5, [0.1] * 10), make_request(1, 0.0, 0.7, [0.3])], duration=4.0)
    lines = layout(run, summarize(run, percents=(99,)), ("ttft", "tpot")).splitlines()
    assert lines[:7] == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     2         ",
        "Failed requests:                         0         ",
        "Request rate configured (RPS):           5.00      ",
        "Benchmark duration (s):                  4.00      ",
        "Total input tokens:                      200       ",
        "Total generated tokens:                  13        ",
    ]
    start = lines.index("---------------Time to First Token----------------")
    assert lines[start + 1 : start + 8] == [
        "Mean TTFT (ms):                          600.00    ",
        "Median TTFT (ms):                        600.00    ",
        "P99 TTFT (ms):                           698.00    ",
        "-----Time per Output Token (excl. 1st token)------",
        "Mean TPOT (ms):                          200.00    ",
        "Median TPOT (ms):                        200.00    ",
        "P99 TPOT (ms):                           298.00    ",
    ]
    assert lines[-1] == "=" * 50
    values = _read("\n".join(lines))
    assert values["Request throughput (req/s):"] == 0.5
    assert values["Output token throughput (tok/s):"] == 3.25
    assert values["Total token throughput (tok/s):"] == 53.25


def test_everything_that_is_known_is_shown() -> None:
    run = random_run(findings=(SATURATED, FEW))
    summary = summarize(run, objectives=Objectives(ttft_ms=100), dollars_per_hour=2.0)
    table = layout(run, summary, ("ttft", "tpot", "itl", "e2el"))
    values = _read(table)
    assert {"Mean ITL (ms):", "P99 E2EL (ms):", "P99 TTFT on the server (ms):"} <= values.keys()
    assert {"MFU prefill (%):", "MBU decode (%):", "Per request ($):", "Per 1M input tokens ($):"} <= values.keys()
    assert summary.goodput is not None
    assert values["Request goodput (req/s):"] == pytest.approx(summary.goodput.requests, abs=0.005)
    assert table.splitlines()[-2:] == [
        "INVALID: client-saturated: the client used 99% of a core; lower --request-rate",
        "Note: few-requests: 8 requests; give --num-prompts 100 or more",
    ]


def test_a_run_without_any_success_has_a_table_too() -> None:
    run = make_run([failed_request(0, 0.0)])
    assert _read(layout(run, summarize(run), ("ttft",)))["Failed requests:"] == 1


def test_what_can_be_chosen() -> None:
    assert parse_metrics("ttft, itl") == ("ttft", "itl")
    assert parse_percents("50,99.9") == (50.0, 99.9)
    with pytest.raises(ConfigError, match="'tft' is not one of"):
        parse_metrics("tft")
    for text in ("", "x", "101", "-1", "nan"):
        with pytest.raises(ConfigError, match="--metric-percentiles"):
            parse_percents(text)
