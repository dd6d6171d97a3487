"""Costs at a price per hour. Plain arithmetic: knows no machine and no model."""

from dataclasses import dataclass

_SECONDS_PER_HOUR = 3600
_MILLION = 1e6


def dollars(seconds: float, dollars_per_hour: float) -> float:
    """Return the cost of a machine for so many seconds."""
    return seconds * dollars_per_hour / _SECONDS_PER_HOUR


def dollars_per_million(per_second: float, dollars_per_hour: float) -> float:
    """Return the cost of a million units, at a rate of units per second."""
    return dollars(_MILLION / per_second, dollars_per_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs in dollars; None where they are unknown."""

    total: float
    per_request: float | None
    per_thousand_requests: float | None
    per_million_tokens: float | None
    """Input and output tokens counted alike."""
    per_million_output_tokens_in_all: float | None
    """With output tokens carrying the whole cost."""
    per_million_input_tokens: float | None
    """Cost of prefill's share of the time."""
    per_million_output_tokens: float | None
    """Cost of decode's share of the time."""


def costs(
    seconds: float,
    dollars_per_hour: float,
    *,
    num_requests: int,
    num_input_tokens: int,
    num_output_tokens: int,
    prefill_share: float | None,
) -> Costs:
    """Return the costs of a run of so many seconds. Input and output are split by prefill's share of the time."""
    total = dollars(seconds, dollars_per_hour)
    per_request = _each(total, num_requests)
    return Costs(
        total=total,
        per_request=per_request,
        per_thousand_requests=None if per_request is None else per_request * 1000,
        per_million_tokens=_million(total, num_input_tokens + num_output_tokens),
        per_million_output_tokens_in_all=_million(total, num_output_tokens),
        per_million_input_tokens=None if prefill_share is None else _million(total * prefill_share, num_input_tokens),
        per_million_output_tokens=(
            None if prefill_share is None else _million(total * (1 - prefill_share), num_output_tokens)
        ),
    )


def _each(total: float, count: int) -> float | None:
    return total / count if count else None


def _million(total: float, count: int) -> float | None:
    each = _each(total, count)
    return None if each is None else each * _MILLION
