"""Checks whether a run measured the server, rather than the client, a mistake or a passing state. Changes nothing."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from archerfish.bench.serve.records import BenchRun, ClientHealth, Finding, RequestRecord

_FULL_CORE = 0.9
_LATE_LOOP = 0.02
"""Seconds at the 99th percentile: at most a hundredth of the recorded times are later by more."""
_LATE_SEND = 0.05
"""Seconds at the 95th percentile."""
_FEW_FAILURES = 0.01
_OTHER_LENGTH = 0.01
_HIT_SHARE = 0.01
_FEWEST_FOR_P99 = 100
_TOO_MANY_REQUESTS = 429
# TTFT grows if there are so many requests, with so high a correlation, to so many times what it was, by so many seconds
# a second.
_FEWEST_FOR_TREND, _CLEAR_TREND, _GROWTH, _SLOPE = 20, 0.6, 2.0, 0.02

Check = Callable[[BenchRun], Iterator[Finding]]


def find(run: BenchRun) -> tuple[Finding, ...]:
    """Return all findings, fatal ones first."""
    findings = [finding for check in _CHECKS for finding in check(run)]
    return tuple(sorted(findings, key=lambda finding: not finding.is_fatal))


def _client(run: BenchRun) -> Iterator[Finding]:
    health: ClientHealth = run.client
    if health.cpu_share > _FULL_CORE:
        yield _fatal(
            "client-saturated",
            f"the client used {health.cpu_share:.0%} of a core",
            "run it on another machine or core than the server, or lower --request-rate or --max-concurrency",
        )
    if health.p99_lag > _LATE_LOOP:
        yield _fatal(
            "client-late",
            f"the client's event loop was up to {health.p99_lag * 1000:.0f} ms late (99th percentile), and so are the "
            "recorded times",
            "run it on an idle machine, or lower --request-rate",
        )


def _replay(run: BenchRun) -> Iterator[Finding]:
    if run.workload.arrivals == "closed" or not run.requests:
        return
    lag = float(np.percentile([record.sent - record.planned for record in run.requests], 95))
    if lag <= _LATE_SEND:
        return
    what = f"requests were sent up to {lag * 1000:.0f} ms after their time (95th percentile)"
    if run.workload.max_concurrency is not None:
        yield _fatal(
            "held-back",
            f"{what}, because --max-concurrency {run.workload.max_concurrency} were open",
            "raise --max-concurrency, or lower --request-rate to what the server can do",
        )
    else:
        yield _fatal("sent-late", what, "lower --request-rate, stretch the trace with --time-scale, or free the client")


def _failures(run: BenchRun) -> Iterator[Finding]:
    failed = [record for record in run.requests if not record.succeeded]
    throttled = [record for record in failed if record.status == _TOO_MANY_REQUESTS]
    if throttled:
        yield _fatal(
            "throttled",
            f"{len(throttled)} of {len(run.requests)} requests were throttled (HTTP 429)",
            "raise the server's limits (of ours: --max-queued-requests, a key's rate), or lower --request-rate",
        )
    others = Counter(record.error for record in failed if record.status != _TOO_MANY_REQUESTS)
    if others:
        count, (reason, _) = others.total(), others.most_common(1)[0]
        yield Finding(
            name="errors",
            is_fatal=count > _FEW_FAILURES * len(run.requests),
            what=f"{count} of {len(run.requests)} requests failed, most often with: {reason}",
            fix="fix what the message names; figures are of the requests that succeeded",
        )


def _lengths(run: BenchRun) -> Iterator[Finding]:
    records = [record for record in run.succeeded if record.must_write_all]
    requested = sum(record.num_output_tokens_requested or 0 for record in records)
    got = sum(record.num_output_tokens for record in records)
    if requested and abs(got - requested) > _OTHER_LENGTH * requested:
        fix = "shorten the requests to what the model's context holds"
        if not run.workload.ignore_eos:
            fix = "give --ignore-eos, if the server understands it"
        yield _fatal("other-lengths", f"{requested:,} output tokens were requested, but {got:,} came", fix)
    uncounted = sum(not record.counted_by_server for record in run.succeeded)
    if uncounted:
        yield _warning(
            "uncounted",
            f"the server did not count the tokens of {uncounted} answers: each event with text counts as one",
            'let the server send usage (stream_options: {"include_usage": true})',
        )


def _prefix_hits(run: BenchRun) -> Iterator[Finding]:
    records = [
        record
        for record in run.succeeded
        if record.num_shared_tokens_requested is not None and record.num_cached_tokens is not None
    ]
    num_in = sum(record.num_input_tokens for record in records)
    num_unexpected = sum(_unexpected_hits(record) for record in records)
    if num_in and num_unexpected > _HIT_SHARE * num_in:
        yield _fatal(
            "prefix-hits",
            f"{num_unexpected:,} of {num_in:,} prompt tokens came from the server's cache, though nothing was to be "
            "shared",
            f"leave out --seed, so that each run has prompts of its own, or give another than {run.workload.seed}",
        )


def _unexpected_hits(record: RequestRecord) -> int:
    """Return cached tokens beyond those shared by construction or added to prompts by a server or chat template."""
    around = max(0, record.num_input_tokens - (record.num_prompt_tokens_requested or record.num_input_tokens))
    return max(0, (record.num_cached_tokens or 0) - (record.num_shared_tokens_requested or 0) - around)


def _trend(run: BenchRun) -> Iterator[Finding]:
    if run.workload.arrivals == "closed":
        return
    points = [(record.sent, ttft) for record in run.succeeded if (ttft := record.timing.ttft) is not None]
    if len(points) < _FEWEST_FOR_TREND:
        return
    times, ttfts = (np.asarray(column) for column in zip(*sorted(points), strict=True))
    if times.std() == 0 or ttfts.std() == 0:
        return
    slope, third = float(np.polyfit(times, ttfts, 1)[0]), len(points) // 3
    before, after = float(np.median(ttfts[:third])), float(np.median(ttfts[-third:]))
    is_clear = float(np.corrcoef(times, ttfts)[0, 1]) > _CLEAR_TREND
    if is_clear and slope > _SLOPE and after > _GROWTH * before:
        yield _fatal(
            "over-saturated",
            f"time to first token grew by {slope * 1000:.0f} ms every second, from {before * 1000:.0f} to "
            f"{after * 1000:.0f} ms: requests came faster than they were served, and a longer run gives other figures",
            "lower --request-rate until it stays level, or bound --max-concurrency to measure the most it can do",
        )


def _sample_size(run: BenchRun) -> Iterator[Finding]:
    if 0 < len(run.requests) < _FEWEST_FOR_P99:
        yield _warning(
            "few-requests",
            f"{len(run.requests)} requests: the 99th percentile is little more than the slowest of them",
            f"give --num-prompts {_FEWEST_FOR_P99} or more",
        )


def _fatal(name: str, what: str, fix: str) -> Finding:
    return Finding(name=name, is_fatal=True, what=what, fix=fix)


def _warning(name: str, what: str, fix: str) -> Finding:
    return Finding(name=name, is_fatal=False, what=what, fix=fix)


_CHECKS: Sequence[Check] = (_failures, _client, _replay, _lengths, _prefix_hits, _trend, _sample_size)
