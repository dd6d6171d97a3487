"""Drafts are verified where they pay: against every other choice, by the same estimates."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.speculation.constants import CONSTANTS
from archerfish.speculation.cost_model import DraftOffer, PlannedStep, SpeculationCostModel
from tests.lanes import examples

MARGIN, DRAFTER_MARGIN = CONSTANTS.margin, CONSTANTS.drafter_margin


def model_of(seconds: list[float], drafting: float | None = None) -> SpeculationCostModel:
    """That has seen steps of 1, 2, ... tokens, and passes of a network that take so long for any number of them."""
    model = SpeculationCostModel()
    for num_tokens, one in enumerate(seconds, 1):
        model.speculative.record(num_tokens, one)
    if drafting is not None:
        for num_tokens in range(1, 17):
            model.drafter_passes.record(num_tokens, drafting)
    return model


def offers_of(
    trusts: list[float], most: list[int], num_uncomputed: float = 0.0, value: float = 1.0
) -> list[DraftOffer]:
    return [
        DraftOffer(tuple(trust**depth for depth in range(1, count + 1)), num_uncomputed, value=value)
        for trust, count in zip(trusts, most, strict=False)
    ]


def token_seconds(
    model: SpeculationCostModel,
    step: PlannedStep,
    offers: list[DraftOffer],
    chosen: tuple[int, ...],
    drafting: float,
) -> float:
    """What a token costs with a choice, as estimates are trusted."""
    expected = sum(offer.value * sum(offer.probabilities[:count]) for offer, count in zip(offers, chosen, strict=True))
    added = model.speculative.seconds(step.num_tokens + sum(chosen)) - model.speculative.seconds(step.num_tokens)
    added += drafting * max(chosen)
    plain = model.speculative.seconds(step.num_sampled)
    return (plain + (DRAFTER_MARGIN if drafting else MARGIN) * added) / (step.num_sampled + expected)


@examples(80)
@given(
    trusts=st.lists(st.sampled_from([0.05, 0.3, 0.6, 0.9, 1.0]), min_size=1, max_size=3),
    slope=st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]),
    knee=st.integers(1, 8),
    most=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    token_values=st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=3, max_size=3),
)
def test_no_other_choice_makes_tokens_cheaper(
    trusts: list[float], slope: float, knee: int, most: list[int], token_values: list[float]
) -> None:
    model = model_of([1.0 + slope * max(0, num_tokens - knee) for num_tokens in range(1, 17)])
    step = PlannedStep(len(trusts), len(trusts))
    offers = [offer._replace(value=worth) for offer, worth in zip(offers_of(trusts, most), token_values, strict=False)]
    chosen = tuple(model.choose_lengths(step, offers))
    every = product(*(range(len(offer.probabilities) + 1) for offer in offers))
    best = min(token_seconds(model, step, offers, one, 0.0) for one in every)
    assert token_seconds(model, step, offers, chosen, 0.0) == pytest.approx(best, rel=1e-9)


@examples(60)
@given(
    trust=st.sampled_from([0.2, 0.5, 0.7, 0.85, 0.95]),
    slope=st.sampled_from([0.0, 0.05, 0.3]),
    drafting=st.sampled_from([0.01, 0.1, 0.3, 1.0]),
)
def test_what_drafting_takes_counts(trust: float, slope: float, drafting: float) -> None:
    model = model_of([1.0 + slope * count for count in range(16)], drafting)
    [offer], step = offers_of([trust], [8], num_uncomputed=1.0), PlannedStep(1, 1)
    [chosen] = model.choose_lengths(step, [offer])
    costs = [token_seconds(model, step, [offer], (count,), drafting) for count in range(9)]
    assert costs[chosen] == pytest.approx(min(costs), rel=1e-9)


def test_a_drafter_that_takes_longer_than_it_saves_is_not_used() -> None:
    model = model_of([1.0] * 16, drafting=2.0)
    assert model.choose_lengths(PlannedStep(1, 1), offers_of([0.9], [8], num_uncomputed=1.0)) == [0]
    assert model.choose_lengths(PlannedStep(1, 1), offers_of([0.9], [8])) == [8], (
        "guesses that are there already cost nothing"
    )


def test_what_a_drafter_costs_its_steps_counts_once() -> None:
    model = model_of([1.0 + 0.1 * count for count in range(16)], drafting=0.05)
    drafted, copied = offers_of([0.5], [4], num_uncomputed=1.0), offers_of([0.5], [4])
    assert model.choose_lengths(PlannedStep(1, 1), drafted)[0] > 0
    gain, speed_up = model.gain(drafted[0]), model.speedup(0.8, 4, is_drafted=True)
    for num_tokens in range(1, 9):
        model.drafter_steps.record(num_tokens, model.speculative.seconds(num_tokens) + 1.0)
    assert model.gain(drafted[0]) == pytest.approx(gain - DRAFTER_MARGIN)
    assert model.speedup(0.8, 4, is_drafted=True) < speed_up
    assert (
        model.choose_lengths(PlannedStep(1, 1), drafted) == [0]
        and model.choose_lengths(PlannedStep(1, 1), copied)[0] > 0
    )


def test_what_is_checked_as_a_whole_costs_all_its_tokens() -> None:
    model = model_of([1.0 + 0.1 * count for count in range(16)])
    assert model.choose_lengths(PlannedStep(1, 1), [DraftOffer((0.9,), width=2)]) == [1]
    assert model.choose_lengths(PlannedStep(1, 1), [DraftOffer((0.9,), width=12)]) == [0]


def test_what_asking_takes_is_part_of_the_price() -> None:
    model = model_of([1.0, 1.2])
    offers = offers_of([0.6], [1])
    assert model.choose_lengths(PlannedStep(1, 1), offers) == [1]
    model.plain.record(1, 0.5)
    assert model.step_seconds(1) == 0.5
    assert model.choose_lengths(PlannedStep(1, 1), offers) == [0], "a step that asks nobody is shorter"


def test_where_tokens_cost_as_much_as_steps_nothing_is_checked() -> None:
    model = model_of([0.1 * num_tokens for num_tokens in range(1, 17)])
    assert model.choose_lengths(PlannedStep(1, 1), offers_of([0.9], [8])) == [0]


def test_where_tokens_cost_nothing_all_are() -> None:
    model = model_of([1.0] * 16)
    assert model.choose_lengths(PlannedStep(1, 1), offers_of([0.5], [8])) == [8]


def test_the_classical_estimate() -> None:
    """Leviathan et al.: (1 - a ** (k + 1)) / ((1 - a) * (k * c + 1)), where checking costs what one token does."""
    model = model_of([1.0] * 16, drafting=0.2)
    classical = (1 - 0.8**5) / ((1 - 0.8) * (4 * 0.2 + 1))
    assert model.speedup(0.8, 4, is_drafted=True) == pytest.approx(classical)
    assert model.speedup(0.8, 4, is_drafted=False) == pytest.approx((1 - 0.8**5) / (1 - 0.8))
    model.plain.record(1, 0.5)
    assert model.speedup(1.0, 1, is_drafted=False) == pytest.approx(1.0), "against steps that ask nobody"


def test_the_better_of_two_offers_gains_more() -> None:
    model = model_of([1.0, 1.1], drafting=0.2)
    copied, drafted = offers_of([0.5], [4])[0], offers_of([0.9], [8], num_uncomputed=1.0)[0]
    assert model.gain(drafted) > model.gain(copied)
    assert model.gain(offers_of([0.95], [32])[0]) > model.gain(drafted)
    assert model.gain(drafted._replace(num_uncomputed=16.0)) == model.gain(drafted), (
        "a pass takes as long for any number"
    )


def test_before_anything_was_measured_one_draft_token_is_verified() -> None:
    assert SpeculationCostModel().choose_lengths(PlannedStep(2, 2), [DraftOffer((0.5,) * 5), DraftOffer(())]) == [1, 0]


def test_other_methods_are_tried_where_only_a_drafter_was_used() -> None:
    model = SpeculationCostModel()
    model.drafter_passes.record(1, 0.1)
    model.drafter_steps.record(2, 1.0)
    assert model.step_seconds(1) == pytest.approx(1.0, rel=0.3)
    assert model.choose_lengths(PlannedStep(1, 1), offers_of([0.5], [4], num_uncomputed=1.0)) == [1]


def test_draft_tokens_count_for_what_tokens_are_worth() -> None:
    model = model_of([1.0 + 0.08 * count for count in range(64)])
    full, little = ([offer._replace(value=worth) for offer in offers_of([0.9], [8])] for worth in (1.0, 0.1))
    assert model.choose_lengths(PlannedStep(8, 8), full)[0] > model.choose_lengths(PlannedStep(8, 8), little)[0] == 0
    [many, few] = model.choose_lengths(PlannedStep(2, 2), [*full, *little])
    assert many > few, "those that are worth more come first"


def test_tokens_of_a_drafter_save_no_more_than_tokens_cost_lately() -> None:
    model = model_of([1.0 + 0.1 * count for count in range(16)], drafting=0.05)
    [drafted], [copied] = offers_of([0.7], [4], num_uncomputed=1.0), offers_of([0.7], [4])
    gain = model.gain(drafted)
    assert model.choose_lengths(PlannedStep(1, 1), [drafted])[0] > 0
    model.record_steps(0, 1000.0, 100.0)
    assert model.token_price == pytest.approx(0.1, abs=0.01)
    assert model.gain(drafted) < gain and model.gain(copied) == sum(copied.probabilities)
    assert (
        model.choose_lengths(PlannedStep(1, 1), [drafted]) == [0]
        and model.choose_lengths(PlannedStep(1, 1), [copied])[0] > 0
    )


def test_extra_steps_are_counted_in_plain_steps() -> None:
    model = model_of([1.0, 1.5, 2.0, 2.5])
    for _ in range(3):
        model.plain.record(1, 0.5)
    assert model.extra_steps(PlannedStep(1, 1), 3, 0.0) == pytest.approx((2.0 - 0.5) / 0.5)
    assert model.extra_steps(PlannedStep(1, 1), 3, 0.25) == pytest.approx((2.0 - 0.5 + 0.25) / 0.5)


def test_latencies_that_never_pay_are_forgotten_in_the_end() -> None:
    """They may have been accidents."""
    model = model_of([1.0, *[9.0] * 8])
    offer, step = DraftOffer((0.9,) * 4), PlannedStep(1, 1)
    chosen = [model.choose_lengths(step, [offer])[0] for _ in range(CONSTANTS.forget_interval + 1)]
    assert not any(chosen[:-1]) and chosen[-1] > 0


def test_a_drafter_of_which_little_is_known_is_tried_whether_it_pays_or_not() -> None:
    model = model_of([1.0 + count for count in range(16)], drafting=1.0)
    [offer], step = offers_of([0.5], [8], num_uncomputed=1.0), PlannedStep(1, 1)
    assert model.choose_lengths(step, [offer]) == [0]
    assert model.choose_lengths(step, [offer._replace(is_trial=True)]) == [CONSTANTS.trial_length]
    assert model.choose_lengths(step, [DraftOffer((0.5, 0.2), 1.0, is_trial=True)]) == [2]


def test_tokens_cost_less_lately_where_drafts_paid() -> None:
    model = SpeculationCostModel()
    assert model.token_price == 1.0
    for _ in range(200):
        model.record_steps(1, 1.0, 1.0)
        model.record_steps(0, 3.0, 0.5)
    assert model.token_price == pytest.approx(1.5 / 4.0, rel=0.1)
    model.record_steps(2000, 2000.0, 2000.0)
    assert model.token_price == pytest.approx(1.0, rel=0.01)
