"""Climbs from naive generation to the whole engine, one optimization at a time, over the same requests.

Every rung must write the same tokens. What cannot be run here stands in the table with the reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from archerfish.bench.ladder.rungs import RUNGS, Ascent, Cannot, Climb, Rung

Progress = Callable[[float, str], None]
"""Called with the rungs climbed so far, in parts of one, and the name of the one being climbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. All times in seconds; None throughout where there is a reason against the rung."""

    name: str
    reason: str | None = None
    """Why it was not measured."""
    seconds: float | None = None
    """From the arrival of all requests until the last answer is complete."""
    seconds_per_request: float | None = None
    mean_latency: float | None = None
    """From the arrival of all requests until an answer is complete."""
    tokens_per_second: float | None = None
    """Tokens written, all requests together."""
    kv_bytes: int | None = None
    """Most memory that keys and values took at once."""
    ratio: float | None = None
    """Tokens per second, to those of the line above that was measured."""
    total_ratio: float | None = None
    """The same to the first line."""
    same_tokens: bool | None = None
    """Whether every answer is the first line's."""
    is_lossy: bool = False
    """Whether they may differ."""
    note: str | None = None
    """Why it is slower than the line above, or how its answers differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The table, and what it was measured with."""

    num_requests: int
    shared_len: int
    """Tokens that all prompts begin with."""
    own_len: int
    """Tokens of its own that each prompt has."""
    output_len: int
    rows: tuple[Row, ...]

    @property
    def load_text(self) -> str:
        return (
            f"{self.num_requests} requests at once, {self.shared_len} shared tokens and {self.own_len} own ones in, "
            f"{self.output_len} out"
        )


def climb_ladder(
    ascent: Ascent, progress: Progress = lambda *_: None, rungs: Sequence[Rung] = RUNGS
) -> tuple[Row, ...]:
    """Measure one rung after the other."""
    rows: list[Row] = []
    climbs: list[Climb] = []
    for index, rung in enumerate(rungs):
        if isinstance(rung.measure, Cannot):
            rows.append(Row(name=rung.name, reason=rung.measure.reason))
            continue

        def tell(share: float, done: int = index, name: str = rung.name) -> None:
            progress(done + share, name)

        tell(0.0)
        climb = rung.measure(ascent, tell)
        if isinstance(climb, Cannot):
            rows.append(Row(name=rung.name, reason=climb.reason))
            continue
        rows.append(_row(rung, climb, climbs))
        climbs.append(climb)
    progress(len(rungs), "done")
    return tuple(rows)


def verdict_lines(rows: Sequence[Row]) -> list[str]:
    """What the table does not say: why rows were slower or not measured, and whether the answers agree."""
    measured = [row for row in rows if row.reason is None]
    lines = [f"{row.name}: not measured, {row.reason}." for row in rows if row.reason is not None]
    lines += [f"{row.name}: {row.note}." for row in measured if row.note is not None]
    exact = [row for row in measured if not row.is_lossy]
    if all(row.same_tokens for row in exact):
        lines.append(f"All {len(exact)} lines that must write the same tokens did.")
    else:
        lines.append("NOT all lines wrote the same tokens; with --dtype float32 they should.")
    return lines


def _row(rung: Rung, climb: Climb, before: Sequence[Climb]) -> Row:
    rate = _rate(climb)
    ratio = rate / _rate(before[-1]) if before else None
    difference = _difference(climb, before[0], rung) if before else None
    notes = [] if difference is None else [difference]
    if ratio is not None and ratio < 1:
        notes.append(f"slower than the line above: {rung.why_slower(climb)}")
    return Row(
        name=rung.name,
        seconds=climb.seconds,
        seconds_per_request=climb.seconds / len(climb.answers),
        mean_latency=sum(climb.latencies) / len(climb.latencies),
        tokens_per_second=rate,
        kv_bytes=climb.kv_bytes,
        ratio=ratio,
        total_ratio=rate / _rate(before[0]) if before else None,
        same_tokens=difference is None,
        is_lossy=rung.is_lossy,
        note="; ".join(notes) or None,
    )


def _rate(climb: Climb) -> float:
    return sum(map(len, climb.answers)) / climb.seconds


def _difference(climb: Climb, first: Climb, rung: Rung) -> str | None:
    """Where the answers part, in words; None if they do not."""
    pairs = list(zip(climb.answers, first.answers, strict=True))
    parted = [index for index, (ours, theirs) in enumerate(pairs) if ours != theirs]
    if not parted:
        return None
    ours, theirs = pairs[parted[0]]
    place = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    why = "quantization is lossy" if rung.is_lossy else "two tokens were so close that rounding decided"
    where = f"request {parted[0] + 1} from its token {place + 1} on"
    return f"{len(parted)} of {len(pairs)} answers differ, {where}: {why}"
