"""Each way in which a run can mislead is found and named; a sound one is left alone."""

from dataclasses import replace
from typing import Any

from archerfish.bench.serve.records import BenchRun
from archerfish.bench.serve.validity import find
from tests.bench.runs import HEALTHY, WORKLOAD, failed_request, make_request, make_run, random_run


def _fatal(run: BenchRun) -> list[str]:
    return [finding.name for finding in find(run) if finding.is_fatal]


def _notes(run: BenchRun) -> list[str]:
    return [finding.name for finding in find(run) if not finding.is_fatal]


def _even(count: int = 100, **more: Any) -> list[Any]:
    return [make_request(index, index * 0.1, 0.05 + index % 7 * 0.001, [0.01] * 9, **more) for index in range(count)]


def test_a_sound_run_has_nothing_to_find() -> None:
    assert find(random_run()) == ()
    assert find(make_run(_even())) == ()


def test_a_full_or_late_client() -> None:
    assert _fatal(make_run(_even(), client=replace(HEALTHY, cpu_share=0.97))) == ["client-saturated"]
    assert _fatal(make_run(_even(), client=replace(HEALTHY, p99_lag=0.08))) == ["client-late"]


def test_requests_that_were_sent_late() -> None:
    late = [replace(record, planned=record.sent - 0.2) for record in _even()]
    assert _fatal(make_run(late)) == ["sent-late"]
    held = make_run(late, workload=replace(WORKLOAD, max_concurrency=4))
    assert _fatal(held) == ["held-back"] and "--max-concurrency 4" in find(held)[0].what
    assert _fatal(make_run(late, workload=replace(WORKLOAD, arrivals="closed"))) == []


def test_failures() -> None:
    one = make_run([*_even(), failed_request(100, 1.0)])
    assert (_fatal(one), _notes(one)) == ([], ["errors"])
    several = make_run([*_even(), *(failed_request(100 + n, 1.0) for n in range(5))])
    assert _fatal(several) == ["errors"] and "5 of 105" in find(several)[0].what and "it broke" in find(several)[0].what


def test_throttled_requests() -> None:
    throttled = replace(failed_request(100, 1.0), status=429)
    assert _fatal(make_run([*_even(), throttled])) == ["throttled"]


def test_answers_of_another_length() -> None:
    short = make_run(_even(must_write_all=True, num_output_tokens_requested=20))
    assert (
        _fatal(short) == ["other-lengths"]
        and "2,000 output tokens were requested, but 1,000 came" in find(short)[0].what
    )
    unbound = replace(short, workload=replace(WORKLOAD, ignore_eos=False))
    assert "--ignore-eos" in find(unbound)[0].fix
    assert _fatal(make_run(_even(must_write_all=True, num_output_tokens_requested=10))) == []
    assert _fatal(make_run(_even(must_write_all=False, num_output_tokens_requested=20))) == []


def test_counts_that_are_estimates() -> None:
    assert _notes(make_run(_even(counted_by_server=False))) == ["uncounted"]


def test_prefixes_that_are_not_shared() -> None:
    assert _fatal(make_run(_even(num_shared_tokens_requested=0, num_cached_tokens=16))) == ["prefix-hits"]
    assert _fatal(make_run(_even(num_shared_tokens_requested=16, num_cached_tokens=16))) == []
    assert _fatal(make_run(_even(num_shared_tokens_requested=None, num_cached_tokens=64))) == []
    # A chat template stands before every prompt.
    around = _even(num_shared_tokens_requested=0, num_cached_tokens=16, num_prompt_tokens=120)
    assert _fatal(make_run(around)) == []


def test_a_queue_that_only_grows() -> None:
    growing = [make_request(index, index * 0.1, 0.05 + index * 0.02, [0.01] * 9) for index in range(100)]
    run = make_run(growing)
    assert _fatal(run) == ["over-saturated"] and "200 ms every second" in find(run)[0].what
    assert _fatal(make_run(growing, workload=replace(WORKLOAD, arrivals="closed"))) == []
    # A few slow ones at the end are no trend.
    slow = [*_even(97), *(make_request(97 + n, 9.7 + n * 0.1, 3.0, [0.01] * 9) for n in range(3))]
    assert _fatal(make_run(slow)) == []


def test_too_few_for_a_99th_percentile() -> None:
    assert _notes(make_run(_even(30))) == ["few-requests"]


def test_the_fatal_come_first() -> None:
    run = make_run(_even(30), client=replace(HEALTHY, cpu_share=1.0))
    assert [finding.name for finding in find(run)] == ["client-saturated", "few-requests"]
