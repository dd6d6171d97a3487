"""Guesses are checked where they pay: against every other choice, by the same estimates."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.speculation.cost_model import Lengths, Offer, Step
from tests.lanes import examples

MARGIN, NETWORK_MARGIN = 1.1, 1.2


def lengths_of(seconds: list[float], drafting: float | None = None) -> Lengths:
    """That has seen steps of 1, 2, ... tokens, and passes of a network that take so long for any number of them."""
    lengths = Lengths()
    for num_tokens, one in enumerate(seconds, 1):
        lengths.times.record(num_tokens, one)
    if drafting is not None:
        for num_tokens in range(1, 17):
            lengths.drafting.record(num_tokens, drafting)
    return lengths


def offers_of(trusts: list[float], most: list[int], num_unread: float = 0.0, worth: float = 1.0) -> list[Offer]:
    return [
        Offer(tuple(trust**depth for depth in range(1, count + 1)), num_unread, worth=worth)
        for trust, count in zip(trusts, most, strict=False)
    ]


def token_seconds(lengths: Lengths, step: Step, offers: list[Offer], chosen: tuple[int, ...], drafting: float) -> float:
    """What a token costs with a choice, as estimates are trusted."""
    expected = sum(offer.worth * sum(offer.chances[:count]) for offer, count in zip(offers, chosen, strict=True))
    added = lengths.times.of(step.num_tokens + sum(chosen)) - lengths.times.of(step.num_tokens)
    added += drafting * max(chosen)
    plain = lengths.times.of(step.num_drawn)
    return (plain + (NETWORK_MARGIN if drafting else MARGIN) * added) / (step.num_drawn + expected)


@examples(80)
@given(
    trusts=st.lists(st.sampled_from([0.05, 0.3, 0.6, 0.9, 1.0]), min_size=1, max_size=3),
    slope=st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]),
    knee=st.integers(1, 8),
    most=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    worths=st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=3, max_size=3),
)
def test_no_other_choice_makes_tokens_cheaper(
    trusts: list[float], slope: float, knee: int, most: list[int], worths: list[float]
) -> None:
    lengths = lengths_of([1.0 + slope * max(0, num_tokens - knee) for num_tokens in range(1, 17)])
    step = Step(len(trusts), len(trusts))
    offers = [offer._replace(worth=worth) for offer, worth in zip(offers_of(trusts, most), worths, strict=False)]
    chosen = tuple(lengths.choose(step, offers))
    every = product(*(range(len(offer.chances) + 1) for offer in offers))
    best = min(token_seconds(lengths, step, offers, one, 0.0) for one in every)
    assert token_seconds(lengths, step, offers, chosen, 0.0) == pytest.approx(best, rel=1e-9)


@examples(60)
@given(
    trust=st.sampled_from([0.2, 0.5, 0.7, 0.85, 0.95]),
    slope=st.sampled_from([0.0, 0.05, 0.3]),
    drafting=st.sampled_from([0.01, 0.1, 0.3, 1.0]),
)
def test_what_it_takes_to_guess_counts(trust: float, slope: float, drafting: float) -> None:
    lengths = lengths_of([1.0 + slope * count for count in range(16)], drafting)
    [offer], step = offers_of([trust], [8], num_unread=1.0), Step(1, 1)
    [chosen] = lengths.choose(step, [offer])
    costs = [token_seconds(lengths, step, [offer], (count,), drafting) for count in range(9)]
    assert costs[chosen] == pytest.approx(min(costs), rel=1e-9)


def test_a_network_that_takes_longer_than_it_saves_is_not_asked() -> None:
    lengths = lengths_of([1.0] * 16, drafting=2.0)
    assert lengths.choose(Step(1, 1), offers_of([0.9], [8], num_unread=1.0)) == [0]
    assert lengths.choose(Step(1, 1), offers_of([0.9], [8])) == [8], "guesses that are there already cost nothing"


def test_what_a_network_costs_the_steps_it_guesses_for_counts_once() -> None:
    lengths = lengths_of([1.0 + 0.1 * count for count in range(16)], drafting=0.05)
    drafted, copied = offers_of([0.5], [4], num_unread=1.0), offers_of([0.5], [4])
    assert lengths.choose(Step(1, 1), drafted)[0] > 0 and lengths.may_pay(1, [1.0], 0.5, is_drafted=True)
    gain, speed_up = lengths.gain(drafted[0]), lengths.speed_up(0.8, 4, is_drafted=True)
    for num_tokens in range(1, 9):
        lengths.drafted.record(num_tokens, lengths.times.of(num_tokens) + 1.0)
    assert lengths.gain(drafted[0]) == pytest.approx(gain - NETWORK_MARGIN)
    assert lengths.speed_up(0.8, 4, is_drafted=True) < speed_up
    assert lengths.choose(Step(1, 1), drafted) == [0] and lengths.choose(Step(1, 1), copied)[0] > 0
    assert not lengths.may_pay(1, [1.0], 0.5, is_drafted=True)


def test_what_is_checked_as_a_whole_costs_all_its_tokens() -> None:
    lengths = lengths_of([1.0 + 0.1 * count for count in range(16)])
    assert lengths.choose(Step(1, 1), [Offer((0.9,), width=2)]) == [1]
    assert lengths.choose(Step(1, 1), [Offer((0.9,), width=12)]) == [0]


def test_what_asking_takes_is_part_of_the_price() -> None:
    lengths = lengths_of([1.0, 1.2])
    offers = offers_of([0.6], [1])
    assert lengths.choose(Step(1, 1), offers) == [1]
    lengths.plain.record(1, 0.5)
    assert lengths.token_seconds(1) == 0.5
    assert lengths.choose(Step(1, 1), offers) == [0], "a step that asks nobody is shorter"
    assert not lengths.may_pay(1, [1.0], 0.5)


def test_where_tokens_cost_as_much_as_steps_nothing_is_checked() -> None:
    lengths = lengths_of([0.1 * num_tokens for num_tokens in range(1, 17)])
    assert lengths.choose(Step(1, 1), offers_of([0.9], [8])) == [0]
    assert not lengths.may_pay(1, [1.0], 0.9)


def test_where_tokens_cost_nothing_all_are() -> None:
    lengths = lengths_of([1.0] * 16)
    assert lengths.choose(Step(1, 1), offers_of([0.5], [8])) == [8]
    assert lengths.may_pay(1, [1.0], 0.5)


def test_the_classical_estimate() -> None:
    """Leviathan et al.: (1 - a ** (k + 1)) / ((1 - a) * (k * c + 1)), where checking costs what one token does."""
    lengths = lengths_of([1.0] * 16, drafting=0.2)
    classical = (1 - 0.8**5) / ((1 - 0.8) * (4 * 0.2 + 1))
    assert lengths.speed_up(0.8, 4, is_drafted=True) == pytest.approx(classical)
    assert lengths.speed_up(0.8, 4, is_drafted=False) == pytest.approx((1 - 0.8**5) / (1 - 0.8))
    lengths.plain.record(1, 0.5)
    assert lengths.speed_up(1.0, 1, is_drafted=False) == pytest.approx(1.0), "against steps that ask nobody"


def test_the_better_of_two_offers_is_told_by_what_it_brings() -> None:
    lengths = lengths_of([1.0, 1.1], drafting=0.2)
    copied, drafted = offers_of([0.5], [4])[0], offers_of([0.9], [8], num_unread=1.0)[0]
    assert lengths.gain(drafted) > lengths.gain(copied)
    assert lengths.gain(offers_of([0.95], [32])[0]) > lengths.gain(drafted)
    assert lengths.gain(drafted._replace(num_unread=16.0)) == lengths.gain(drafted), (
        "a pass takes as long for any number"
    )


def test_before_anything_was_measured_one_guess_is_tried() -> None:
    assert Lengths().choose(Step(2, 2), [Offer((0.5,) * 5), Offer(())]) == [1, 0]


def test_where_only_a_network_has_guessed_others_are_tried() -> None:
    lengths = Lengths()
    lengths.drafting.record(1, 0.1)
    lengths.drafted.record(2, 1.0)
    assert lengths.token_seconds(1) == pytest.approx(1.0, rel=0.3)
    assert lengths.may_pay(1, [1.0], 0.5) and lengths.may_pay(1, [1.0], 0.5, is_drafted=True)
    assert lengths.choose(Step(1, 1), offers_of([0.5], [4], num_unread=1.0)) == [1]


def test_what_never_paid_is_tried_again_now_and_then() -> None:
    lengths = lengths_of([1.0 + 1.5 * count for count in range(20)])
    answers = [lengths.may_pay(1, [1.0], 1.0) for _ in range(512)]
    assert [place for place, answer in enumerate(answers) if answer] == [63, 127, 191, 255, 319, 383, 447, 511]
    lengths.times.record(2, 2.5)
    assert not lengths.may_pay(1, [1.0], 0.5), "what was measured is forgotten in the end, and may be measured again"
    for _ in range(300):
        lengths.times.record(2, 1.1)
    assert lengths.may_pay(1, [1.0], 0.5)


def test_guesses_for_several_sequences_may_pay_where_those_for_one_do_not() -> None:
    lengths = lengths_of([1.0, 1.1, 1.2, 1.3, *[2.0] * 60])
    assert lengths.may_pay(4, [1.0] * 4, 0.6) and not lengths.may_pay(4, [1.0], 0.6)


def test_guesses_count_for_what_tokens_are_worth() -> None:
    lengths = lengths_of([1.0 + 0.08 * count for count in range(64)])
    full, little = ([offer._replace(worth=worth) for offer in offers_of([0.9], [8])] for worth in (1.0, 0.1))
    assert lengths.choose(Step(8, 8), full)[0] > lengths.choose(Step(8, 8), little)[0] == 0
    assert lengths.may_pay(8, [1.0], 0.9) and not lengths.may_pay(8, [0.1], 0.9)
    [many, few] = lengths.choose(Step(2, 2), [*full, *little])
    assert many > few, "those that are worth more come first"


def test_what_a_network_guesses_saves_no_more_than_tokens_cost_lately() -> None:
    lengths = lengths_of([1.0 + 0.1 * count for count in range(16)], drafting=0.05)
    [drafted], [copied] = offers_of([0.7], [4], num_unread=1.0), offers_of([0.7], [4])
    gain = lengths.gain(drafted)
    assert lengths.choose(Step(1, 1), [drafted])[0] > 0 and lengths.may_pay(1, [1.0], 0.7, is_drafted=True)
    lengths.price = 0.1
    assert lengths.gain(drafted) < gain and lengths.gain(copied) == sum(copied.chances)
    assert lengths.choose(Step(1, 1), [drafted]) == [0] and lengths.choose(Step(1, 1), [copied])[0] > 0
    assert lengths.may_pay(1, [1.0], 0.7) and not lengths.may_pay(1, [1.0], 0.7, is_drafted=True)


def test_what_a_step_with_guesses_costs_is_told_in_steps_without() -> None:
    lengths = lengths_of([1.0, 1.5, 2.0, 2.5])
    for _ in range(3):
        lengths.plain.record(1, 0.5)
    assert lengths.steps_spent(Step(1, 1), 3, 0.0) == pytest.approx((2.0 - 0.5) / 0.5)
    assert lengths.steps_spent(Step(1, 1), 3, 0.25) == pytest.approx((2.0 - 0.5 + 0.25) / 0.5)


def test_many_may_pay_where_one_does_not() -> None:
    lengths = lengths_of([1.0, *[2.0] * 19])
    assert lengths.may_pay(1, [1.0], 0.9) and not lengths.may_pay(1, [1.0], 0.4)
    for num_tokens in range(1, 5):
        lengths.drafting.record(num_tokens, 1.0)
    assert not lengths.may_pay(1, [1.0], 0.9, is_drafted=True)


def test_now_and_then_more_are_checked_than_seem_to_pay() -> None:
    """What longer steps take is learned only if some are made."""
    lengths = Lengths()
    for num_tokens, seconds in ((1, 1.0), (2, 1.1), (3, 1.2), (4, 9.0), (8, 9.0)):
        for _ in range(4):
            lengths.times.record(num_tokens, seconds)
    offer = Offer((0.9, 0.8, 0.7, 0.6, 0.5, 0.4))
    counts = [lengths.choose(Step(1, 1), [offer])[0] for _ in range(64)]
    assert {2, 5} == set(counts) and counts.count(5) == 4
    assert all(lengths.choose(Step(2, 2), [offer, offer]) != [5, 5] for _ in range(64)), "where several are, sizes vary"
    promised = offer._replace(num_unread=1.0)
    assert {lengths.choose(Step(1, 1), [promised])[0] for _ in range(64)} == {2}, "what must be made first costs more"
