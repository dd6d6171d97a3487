"""What guessing tokens came to between two moments, from totals that an engine or a service counts. Judges nothing."""

from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from archerfish.metrics.timing import acceptance_length

_HALF_PERCENT = 0.005
_MOST_LISTED = 8
"""Positions of a draft whose acceptance a line of text names."""


class GuessTotals(NamedTuple):
    """Since the start."""

    num_drafts: int
    num_guesses: int
    num_stood: int
    stood_at: tuple[int, ...]
    """How often the first guess of a draft stood, the second, and so on."""
    guess_seconds: float
    saved_seconds: float
    """Less those that were lost: estimates of the engine."""
    num_generated_tokens: int
    busy_seconds: float
    """In steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guessing:
    """Of a time in which something was guessed."""

    num_drafts: int
    num_guesses: int
    num_stood: int
    acceptance_length: float
    """Tokens that a sequence got in a step with guesses for it, on average."""
    acceptance: float
    """Share of the guesses that stood."""
    acceptance_at: tuple[float, ...]
    """How often the first guess of a draft stood, the second, and so on: shares of all drafts."""
    guess_seconds: float
    """Spent on guessing; checking is part of steps."""
    saved_seconds: float
    """What tokens would have taken without guesses, less what they took; below 0 if more."""
    tokens_per_second_gained: float | None
    """While steps ran: tokens a second, less what they would have been without guesses. None if nothing was written."""


def guessing_between(first: GuessTotals, last: GuessTotals) -> Guessing | None:
    """None where nothing was guessed."""
    num_drafts, num_guesses = last.num_drafts - first.num_drafts, last.num_guesses - first.num_guesses
    num_stood = last.num_stood - first.num_stood
    length = acceptance_length(num_drafts, num_stood)
    if length is None:
        return None
    counts = zip_longest(last.stood_at, first.stood_at, fillvalue=0)
    saved = last.saved_seconds - first.saved_seconds
    return Guessing(
        num_drafts=num_drafts,
        num_guesses=num_guesses,
        num_stood=num_stood,
        acceptance_length=length,
        acceptance=num_stood / num_guesses,
        acceptance_at=tuple((after - before) / num_drafts for after, before in counts),
        guess_seconds=last.guess_seconds - first.guess_seconds,
        saved_seconds=saved,
        tokens_per_second_gained=_gained(
            last.num_generated_tokens - first.num_generated_tokens, last.busy_seconds - first.busy_seconds, saved
        ),
    )


def _gained(num_tokens: int, seconds: float, saved: float) -> float | None:
    if seconds <= 0.0 or seconds + saved <= 0.0:
        return None
    return num_tokens / seconds - num_tokens / (seconds + saved)


def guessing_rows(guessing: Guessing, *, with_positions: bool = True) -> list[tuple[str, str]]:
    """For tables: what each figure is called, and the figure. A page draws the positions instead."""
    gained = guessing.tokens_per_second_gained
    positions = [("Acceptance by position, of all drafts", _acceptance_text(guessing))] if with_positions else []
    rows = [
        ("Mean acceptance length", f"{guessing.acceptance_length:.2f} tokens"),
        ("Draft acceptance rate", f"{guessing.acceptance:.1%}"),
        *positions,
        ("Time spent drafting", f"{guessing.guess_seconds:.3f} s"),
        ("Time saved, estimated", f"{guessing.saved_seconds:.3f} s"),
    ]
    return rows if gained is None else [*rows, ("Tokens/s gained, estimated", f"{gained:.2f}")]


def positions_that_matter(guessing: Guessing) -> tuple[float, ...]:
    """Acceptance by position, up to the last that is not 0 % when rounded; at least the first."""
    shares = guessing.acceptance_at
    last = max((index for index, share in enumerate(shares) if share >= _HALF_PERCENT), default=0)
    return shares[: last + 1]


def _acceptance_text(guessing: Guessing) -> str:
    shares = positions_that_matter(guessing)
    more = f" and {len(shares) - _MOST_LISTED} more" if len(shares) > _MOST_LISTED else ""
    return " ".join(f"{share:.0%}" for share in shares[:_MOST_LISTED]) + more
