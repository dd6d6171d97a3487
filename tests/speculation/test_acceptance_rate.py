"""The acceptance rate follows what was seen: of a row first, of all rows where little is known of it."""

from archerfish.speculation.acceptance_rate import AcceptanceRate


def trust_of(shares: list[float]) -> AcceptanceRate:
    """In rows 0, 1, ... whose guesses stood so often."""
    trust = AcceptanceRate()
    for row, share in enumerate(shares):
        for turn in range(40):
            trust.record(row, 1, int((turn + 1) * share) - int(turn * share))
    return trust


def test_a_rows_rate_follows_its_own_draft_tokens() -> None:
    trust = trust_of([0.9, 0.1])
    assert trust.of(0) > 0.8 and trust.of(1) < 0.3
    assert trust.of(1) < trust.of(7) < trust.of(0), "of others nothing but the mean is known"
    assert trust.highest == trust.of(0)
    trust.start(0)
    assert trust.of(0) == trust.of(7), "another sequence has the row"


def test_what_was_not_reached_was_not_checked() -> None:
    trust, other = AcceptanceRate(), AcceptanceRate()
    trust.record(0, 8, 2)
    other.record(0, 3, 2)
    assert trust.of(0) == other.of(0), "five guesses hung on one that fell"


def test_a_low_rate_expires() -> None:
    trust = trust_of([0.0])
    before = trust.of(0)
    for _ in range(2000):
        trust.decay([0])
    assert before < 0.1 and trust.of(0) > 0.45


def test_before_anything_was_checked_it_is_as_likely_as_not() -> None:
    assert AcceptanceRate().highest == AcceptanceRate().of(3) == 0.5
