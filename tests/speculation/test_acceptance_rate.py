"""Trust follows what was seen: of a row first, of all rows where little is known of it."""

from archerfish.speculation.acceptance_rate import Trust


def trust_of(shares: list[float]) -> Trust:
    """In rows 0, 1, ... whose guesses stood so often."""
    trust = Trust()
    for row, share in enumerate(shares):
        for turn in range(40):
            trust.checked(row, 1, int((turn + 1) * share) - int(turn * share))
    return trust


def test_a_row_is_trusted_by_how_its_own_guesses_went() -> None:
    trust = trust_of([0.9, 0.1])
    assert trust.of(0) > 0.8 and trust.of(1) < 0.3
    assert trust.of(1) < trust.of(7) < trust.of(0), "of others nothing but the mean is known"
    assert trust.surest == trust.of(0)
    trust.start(0)
    assert trust.of(0) == trust.of(7), "another sequence has the row"


def test_what_was_not_reached_was_not_checked() -> None:
    trust, other = Trust(), Trust()
    trust.checked(0, 8, 2)
    other.checked(0, 3, 2)
    assert trust.of(0) == other.of(0), "five guesses hung on one that fell"


def test_nobody_is_mistrusted_for_ever() -> None:
    trust = trust_of([0.0])
    before = trust.of(0)
    for _ in range(2000):
        trust.pass_by([0])
    assert before < 0.1 and trust.of(0) > 0.45


def test_before_anything_was_checked_it_is_as_likely_as_not() -> None:
    assert Trust().surest == Trust().of(3) == 0.5
