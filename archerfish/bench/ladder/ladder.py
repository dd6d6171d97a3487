"""Measures generation rung by rung, from naive to everything the engine has, over the same requests.

A lossless rung must write the same tokens as the one below it. Rungs that cannot run here are listed with the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from archerfish.bench.ladder.naive import TokenIds
from archerfish.bench.ladder.rungs import LadderSetup, Rung, RungResult, UnsupportedRung

LadderProgress = Callable[[float, str], None]
"""Called with the number of completed rungs, fractions included, and the name of the current one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRow:
    """One line of the table. Times in seconds, memory in bytes; all None if there is a reason against the rung."""

    name: str
    reason: str | None = None
    """Why it was not measured."""
    seconds: float | None = None
    """From the arrival of all requests until the last output is complete."""
    seconds_per_request: float | None = None
    mean_latency: float | None = None
    """From the arrival of all requests until an output is complete."""
    tokens_per_second: float | None = None
    """Output tokens of all requests together."""
    weight_bytes: int | None = None
    kv_bytes: int | None = None
    """Largest amount of keys and values in use or cached at once."""
    workspace_bytes: int | None = None
    """Estimated intermediate values of the largest step."""
    ratio: float | None = None
    """Tokens per second relative to the line above that was measured."""
    total_ratio: float | None = None
    """Tokens per second relative to the first line."""
    same_tokens: bool | None = None
    """Whether every output is that of the first line, or of the lossy line above that it builds on."""
    is_lossy: bool = False
    """Whether this line's optimization may change the output."""
    note: str | None = None
    """Why it is slower than the line above, or how its output differs."""

    @property
    def memory_bytes(self) -> int | None:
        """Weights, KV cache and workspace together."""
        parts = (self.weight_bytes, self.kv_bytes, self.workspace_bytes)
        known = [part for part in parts if part is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The table and its workload."""

    num_requests: int
    shared_len: int
    """Length of the prefix that all prompts share, in tokens."""
    own_len: int
    """Length of the rest of each prompt, in tokens."""
    output_len: int
    rows: tuple[LadderRow, ...]

    @property
    def load_text(self) -> str:
        return (
            f"{self.num_requests} requests at once, prompts of {self.shared_len} shared and {self.own_len} own tokens, "
            f"{self.output_len} output tokens"
        )


def measure_ladder(
    setup: LadderSetup, rungs: Sequence[Rung], progress: LadderProgress = lambda *_: None
) -> tuple[LadderRow, ...]:
    """Measure one rung after the other. A rung that cannot run is left out of those above it."""
    rows: list[LadderRow] = []
    below = _Below()
    settings: Mapping[str, Any] = setup.settings
    for index, rung in enumerate(rungs):

        def report(share: float, num_done: int = index, name: str = rung.name) -> None:
            progress(num_done + share, name)

        report(0.0)
        candidate = replace(setup, settings={**settings, **rung.adds})
        result = rung.measure(candidate, report)
        if isinstance(result, UnsupportedRung):
            rows.append(LadderRow(name=rung.name, reason=result.reason))
            continue
        settings = candidate.settings
        rows.append(_row(rung, result, below))
        below.add(rung, result)
    progress(len(rungs), "done")
    return tuple(rows)


def verdict_lines(rows: Sequence[LadderRow]) -> list[str]:
    """Return what the table does not show: why rows are slower or missing, and whether outputs agree."""
    measured = [row for row in rows if row.reason is None]
    lines = [f"{row.name}: not measured, {row.reason}." for row in rows if row.reason is not None]
    lines += [f"{row.name}: {row.note}." for row in measured if row.note is not None]
    lossless = [row for row in measured if not row.is_lossy]
    if all(row.same_tokens for row in lossless):
        lines.append(f"All {len(lossless)} lossless lines wrote the tokens that they must.")
    else:
        lines.append("NOT all lossless lines wrote the tokens that they must; with --dtype float32 they should.")
    return lines


@dataclass(slots=True)
class _Below:
    """What a rung is compared with."""

    first: RungResult | None = None
    last: RungResult | None = None
    expected: tuple[TokenIds, ...] | None = None
    """What a lossless rung must write."""

    def add(self, rung: Rung, result: RungResult) -> None:
        self.first = self.first or result
        self.last = result
        if rung.is_lossy or self.expected is None:
            self.expected = result.outputs


def _row(rung: Rung, result: RungResult, below: _Below) -> LadderRow:
    rate = _rate(result)
    ratio = rate / _rate(below.last) if below.last is not None else None
    difference = None if below.expected is None else _difference(result.outputs, below.expected, rung)
    notes = [] if difference is None else [difference]
    if ratio is not None and ratio < 1:
        notes.append(f"slower than the line above: {rung.why_slower(result)}")
    return LadderRow(
        name=rung.name,
        seconds=result.seconds,
        seconds_per_request=result.seconds / len(result.outputs),
        mean_latency=sum(result.latencies) / len(result.latencies),
        tokens_per_second=rate,
        weight_bytes=result.weight_bytes,
        kv_bytes=result.kv_bytes,
        workspace_bytes=result.workspace_bytes,
        ratio=ratio,
        total_ratio=rate / _rate(below.first) if below.first is not None else None,
        same_tokens=difference is None,
        is_lossy=rung.is_lossy,
        note="; ".join(notes) or None,
    )


def _rate(result: RungResult) -> float:
    return sum(map(len, result.outputs)) / result.seconds


def _difference(outputs: Sequence[TokenIds], expected: Sequence[TokenIds], rung: Rung) -> str | None:
    """Describe how the outputs differ from the expected ones; None if they do not."""
    pairs = list(zip(outputs, expected, strict=True))
    differing = [index for index, (ours, theirs) in enumerate(pairs) if ours != theirs]
    if not differing:
        return None
    ours, theirs = pairs[differing[0]]
    position = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
    )
    why = "quantization is lossy" if rung.is_lossy else "two tokens were so close that rounding decided"
    where = f"request {differing[0] + 1} from its token {position + 1} on"
    return f"{len(differing)} of {len(pairs)} outputs differ, {where}: {why}"
