"""Speculation between two moments: acceptance, time spent and time saved, from an engine's or service's totals."""

from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from archerfish.metrics.timing import acceptance_length

_HALF_PERCENT = 0.005
_MAX_LISTED_POSITIONS = 8
"""Draft positions whose acceptance a line of text lists."""


class SpeculationTotals(NamedTuple):
    """Totals since the engine's start."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    """How often the first draft token of a draft was accepted, the second, and so on."""
    drafting_seconds: float
    saved_seconds: float
    """Seconds saved minus seconds lost, as the engine estimates them."""
    num_generated_tokens: int
    busy_seconds: float
    """Seconds spent in steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationStats:
    """Statistics of a time in which something was drafted."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_length: float
    """Mean number of tokens that a sequence got in a step that verified a draft for it."""
    acceptance_rate: float
    """Share of the draft tokens that were accepted."""
    acceptance_per_position: tuple[float, ...]
    """Share of all drafts whose first draft token was accepted, the second, and so on."""
    drafting_seconds: float
    """Seconds spent drafting; verification is part of steps."""
    saved_seconds: float
    """What the tokens would have taken without speculation, minus what they took; negative if it took longer."""
    tokens_per_second_gained: float | None
    """Tokens per second of step time, minus the estimate without speculation. None if nothing was generated."""


def speculation_between(first: SpeculationTotals, last: SpeculationTotals) -> SpeculationStats | None:
    """Return the statistics of the time between two readings; None if nothing was drafted."""
    num_drafts, num_draft_tokens = last.num_drafts - first.num_drafts, last.num_draft_tokens - first.num_draft_tokens
    num_accepted_tokens = last.num_accepted_tokens - first.num_accepted_tokens
    length = acceptance_length(num_drafts, num_accepted_tokens)
    if length is None:
        return None
    counts = zip_longest(last.accepted_per_position, first.accepted_per_position, fillvalue=0)
    saved = last.saved_seconds - first.saved_seconds
    return SpeculationStats(
        num_drafts=num_drafts,
        num_draft_tokens=num_draft_tokens,
        num_accepted_tokens=num_accepted_tokens,
        acceptance_length=length,
        acceptance_rate=num_accepted_tokens / num_draft_tokens,
        acceptance_per_position=tuple((after - before) / num_drafts for after, before in counts),
        drafting_seconds=last.drafting_seconds - first.drafting_seconds,
        saved_seconds=saved,
        tokens_per_second_gained=_gained(
            last.num_generated_tokens - first.num_generated_tokens, last.busy_seconds - first.busy_seconds, saved
        ),
    )


def _gained(num_tokens: int, seconds: float, saved: float) -> float | None:
    if seconds <= 0.0 or seconds + saved <= 0.0:
        return None
    return num_tokens / seconds - num_tokens / (seconds + saved)


def speculation_rows(stats: SpeculationStats, *, with_positions: bool = True) -> list[tuple[str, str]]:
    """Return (name, value) rows for a table. Pages that chart the positions leave that row out."""
    gained = stats.tokens_per_second_gained
    positions = [("Acceptance by position, of all drafts", _acceptance_text(stats))] if with_positions else []
    rows = [
        ("Mean acceptance length", f"{stats.acceptance_length:.2f} tokens"),
        ("Draft acceptance rate", f"{stats.acceptance_rate:.1%}"),
        *positions,
        ("Time spent drafting", f"{stats.drafting_seconds:.3f} s"),
        ("Time saved, estimated", f"{stats.saved_seconds:.3f} s"),
    ]
    return rows if gained is None else [*rows, ("Tokens/s gained, estimated", f"{gained:.2f}")]


def visible_positions(stats: SpeculationStats) -> tuple[float, ...]:
    """Return the acceptance per position up to the last one that does not round to 0 %; at least the first."""
    shares = stats.acceptance_per_position
    last = max((index for index, share in enumerate(shares) if share >= _HALF_PERCENT), default=0)
    return shares[: last + 1]


def _acceptance_text(stats: SpeculationStats) -> str:
    shares = visible_positions(stats)
    num_more = len(shares) - _MAX_LISTED_POSITIONS
    more = f" and {num_more} more" if num_more > 0 else ""
    return " ".join(f"{share:.0%}" for share in shares[:_MAX_LISTED_POSITIONS]) + more
