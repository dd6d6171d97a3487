"""What rejection writes has the law of the target alone: by every way that chance can go, not by counting.

The same sum is done for rules that are wrong in a small way, and it must notice each.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from archerfish.ops.reference.noise import gumbel, uniform
from archerfish.speculation.draft import NO_DRAFT, ROOT, Draft
from archerfish.speculation.verification.rng import SeededVerificationRng
from archerfish.speculation.verification.rules import AcceptedPath, TypicalAcceptance, rejection
from tests.sampling.chance import surprise
from tests.speculation.enumeration import (
    CHAINS,
    PARAMS,
    TREES,
    Branches,
    DraftOffer,
    Erratic,
    Independent,
    Likeliest,
    LikeliestThenDrawn,
    Narrow,
    R,
    Row,
    Rule,
    Target,
    TargetsOwn,
    Tokens,
    WithoutReplacement,
    discrepancy,
    distance,
    law_of,
    name,
    play_round,
)

OFFERS = [Independent, WithoutReplacement, Likeliest, LikeliestThenDrawn, Narrow, TargetsOwn, Erratic]
EXACT = 1e-12
NOTICED = 1e-3


# Enumeration itself.


def test_a_law_is_summed_over_every_path_once() -> None:
    def play(branches: Branches) -> Tokens:
        first = branches.choose((1.0, 0.0, 3.0))
        return (first, branches.sample(0, torch.tensor([0.5, 0.5]))) if branches.accept(0, 0, 0.75) else (first,)

    law = law_of(play)
    assert law == {(0,): 1 / 16, (2,): 3 / 16, (0, 0): 3 / 32, (0, 1): 3 / 32, (2, 0): 9 / 32, (2, 1): 9 / 32}


def test_the_target_depends_on_all_that_was_written_and_on_the_parameters() -> None:
    rows = [Target(4, 0, params).after(written) for params in PARAMS.values() for written in ((), (0,), (1, 0), (2, 0))]
    greedy = rows[-4:]
    assert len({tuple(row.tolist()) for row in rows[:-4]}) == len(rows) - 4 and all(row.max() == 1.0 for row in greedy)
    assert sum(Target(4, 0).law(3).values()) == pytest.approx(1.0, abs=EXACT)


# Rejection.


@pytest.mark.parametrize("offer", OFFERS, ids=name)
@pytest.mark.parametrize("parents", CHAINS + TREES, ids=name)
def test_rejection_preserves_the_law_of_the_target(parents: Tokens, offer: type[DraftOffer]) -> None:
    for number, params in enumerate(PARAMS.values()):
        vocabulary = 3 if len(parents) == 3 else 3 + number % 3
        found = discrepancy(rejection, offer(Target(vocabulary, number, params)), parents)
        assert found < EXACT, params


@pytest.mark.parametrize("seed", range(3))
def test_rejection_preserves_the_law_over_a_larger_vocabulary(seed: int) -> None:
    for offer, parents in ((WithoutReplacement, (R, R, R)), (Independent, (R, 0, 1)), (Erratic, (R, R, 1))):
        assert discrepancy(rejection, offer(Target(5, seed)), parents) < EXACT


def test_rejection_without_a_draft_is_the_target() -> None:
    target = Target(5, 1)
    found = law_of(lambda branches: (rejection(NO_DRAFT, target.of(NO_DRAFT), torch.zeros(0, 5), branches).token,))
    assert distance(found, target.law(1)) < EXACT


def test_round_after_round_preserves_the_law() -> None:
    target, horizon = Target(3, 5, PARAMS["top_p"]), 3

    class Later(Independent):
        """The same, some tokens on."""

        def __init__(self, written: Tokens) -> None:
            super().__init__(target)
            self.written = written

        def row(self, written: Tokens, siblings: Tokens) -> Row:
            return super().row((*self.written, *written), siblings)

    def play(branches: Branches) -> Tokens:
        written: Tokens = ()
        while len(written) < horizon:
            token = branches.choose(Later(written).row((), ()))
            rows = torch.stack((target.after(written), target.after((*written, token))))
            proposals = torch.tensor([Later(written).row((), ())], dtype=torch.float64)
            # Decisions of another round are others: each is made at a position of its own.
            path, last = rejection(Draft.chain([token]), rows, proposals, _Deeper(branches, len(written)))
            written = (*written, *([token] if path else []), last)
        return written[:horizon]

    assert distance(law_of(play), target.law(horizon)) < EXACT


@dataclass(frozen=True)
class _Deeper:
    branches: Branches
    by: int

    def accept(self, depth: int, attempt: int, probability: float) -> bool:
        return self.branches.accept(depth + self.by, attempt, probability)

    def sample(self, depth: int, weights: Tensor) -> int:
        return self.branches.sample(depth + self.by, weights)


# Rules that are wrong, each in one way.


def whole_residual(wanted: np.ndarray, offered: np.ndarray, token: int) -> np.ndarray:  # noqa: ARG001
    left = np.maximum(wanted - offered, 0.0)
    return left / left.sum() if left.sum() > 0 else wanted


def residual_of_the_draft_token_alone(wanted: np.ndarray, offered: np.ndarray, token: int) -> np.ndarray:
    left = wanted.copy()
    left[token] = max(wanted[token] - offered[token], 0.0)
    return left / left.sum() if left.sum() > 0 else wanted


def after_the_last(draft: Draft, target: np.ndarray, node: int) -> np.ndarray:  # noqa: ARG001
    return target[node + 1]


def before_the_last(draft: Draft, target: np.ndarray, node: int) -> np.ndarray:
    return target[draft.parents[node] + 1]


def the_last_again(draft: Draft, target: np.ndarray, node: int) -> np.ndarray:
    return np.eye(target.shape[1])[draft.tokens[node]]


@dataclass(frozen=True)
class ByHand:
    """Rejection once more, in numpy and in parts that can be exchanged."""

    residual: Callable[[np.ndarray, np.ndarray, int], np.ndarray] = whole_residual
    bonus: Callable[[Draft, np.ndarray, int], np.ndarray] = after_the_last
    """Draw what follows the last of all draft tokens, if that is accepted."""
    order: Callable[[list[int]], Sequence[int]] = list

    def __call__(self, draft: Draft, target: Tensor, proposals: Tensor, branches: Branches) -> AcceptedPath:
        path: list[int] = []
        rows, offers = target.numpy(), proposals.numpy()
        while True:
            node = path[-1] if path else ROOT
            children = self.order(draft.children(node))
            left = rows[node + 1] if children else self.bonus(draft, rows, node)
            for child in children:
                token = draft.tokens[child]
                if branches.choose((max(0.0, 1.0 - (rate := left[token] / offers[child, token])), min(1.0, rate))):
                    path.append(child)
                    break
                left = self.residual(left, offers[child], token)
            else:
                return AcceptedPath(path, branches.choose(left.tolist()))


@dataclass(frozen=True)
class OneUniform:
    """Acceptance and what replaces a rejected draft token of a chain decided by one number: as it is, or spread
    out again."""

    spread_out: bool

    def __call__(self, draft: Draft, target: Tensor, proposals: Tensor, branches: Branches) -> AcceptedPath:
        for node, token in enumerate(draft.tokens):
            wanted, offered = target[node].numpy(), proposals[node].numpy()
            rate = min(1.0, wanted[token] / offered[token])
            ends = whole_residual(wanted, offered, token).cumsum()
            if self.spread_out:
                ends = rate + (1.0 - rate) * ends
            # All numbers between two neighbouring edges lead to the same.
            edges = np.unique(np.clip([0.0, rate, *ends, 1.0], 0.0, 1.0))
            stretch = branches.choose(np.diff(edges).tolist())
            number = (edges[stretch] + edges[stretch + 1]) / 2
            if number >= rate:
                return AcceptedPath(list(range(node)), min(int(np.searchsorted(ends, number)), len(wanted) - 1))
        return AcceptedPath(list(range(len(draft))), branches.sample(len(draft), target[-1]))


class SaysItWasDrawn(Likeliest):
    """The likeliest token, said to be drawn from the distribution it is the likeliest of."""

    def claimed(self, written: Tokens, siblings: Tokens) -> Row:
        return self.own(written)


@dataclass(frozen=True)
class LeavesOutTheUnlikely:
    """Cuts a chain before a draft token that was unlikely to be drawn."""

    rule: Rule

    def __call__(self, draft: Draft, target: Tensor, proposals: Tensor, branches: Branches) -> AcceptedPath:
        likely = [bool(row[token] > 0.2) for row, token in zip(proposals, draft.tokens, strict=True)]
        length = (*likely, False).index(False)
        return self.rule(Draft.chain(draft.tokens[:length]), target[: length + 1], proposals[:length], branches)


RIGHT: list[tuple[Rule, type[DraftOffer], Tokens]] = [
    (ByHand(), Independent, (R, 0)),
    (ByHand(), Likeliest, (R, 0)),
    (ByHand(), WithoutReplacement, (R, R)),
    (OneUniform(spread_out=True), Independent, (R, 0)),
]
WRONG: dict[str, tuple[Rule, type[DraftOffer], Tokens]] = {
    "only the draft token is taken out of the residual": (
        ByHand(residual_of_the_draft_token_alone),
        Independent,
        (R, 0),
    ),
    "the likeliest token is said to be drawn": (rejection, SaysItWasDrawn, (R, 0)),
    "one number decides twice": (OneUniform(spread_out=False), Independent, (R, 0)),
    "the bonus is drawn from the row before": (ByHand(bonus=before_the_last), Independent, (R, 0)),
    "the last draft token is repeated": (ByHand(bonus=the_last_again), Independent, (R, 0)),
    "siblings are tried in another order": (ByHand(order=lambda nodes: nodes[::-1]), WithoutReplacement, (R, R)),
    "unlikely draft tokens are left out": (LeavesOutTheUnlikely(rejection), Independent, (R, 0)),
}


@pytest.mark.parametrize(("rule", "offer", "parents"), RIGHT, ids=range(len(RIGHT)))
@pytest.mark.parametrize("seed", range(3))
def test_the_parts_that_are_exchanged_are_right_before(
    seed: int, rule: Rule, offer: type[DraftOffer], parents: Tokens
) -> None:
    assert discrepancy(rule, offer(Target(4, seed)), parents) < EXACT


@pytest.mark.parametrize(("rule", "offer", "parents"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("seed", range(3))
def test_a_small_mistake_is_noticed(seed: int, rule: Rule, offer: type[DraftOffer], parents: Tokens) -> None:
    assert discrepancy(rule, offer(Target(4, seed)), parents) > NOTICED


def test_by_hand_and_rejection_agree_round_by_round() -> None:
    """Not only in what follows: the same rounds, of the same lengths."""
    for offer, parents in itertools.product(OFFERS, [(R, 0), (R, R), (R, R, 1)]):
        drawn = offer(Target(3, 8, PARAMS["top_p"]))
        assert (
            distance(law_of(play_round(rejection, drawn, parents)), law_of(play_round(ByHand(), drawn, parents)))
            < EXACT
        )


# Typical acceptance promises no law.


def test_typical_is_lossy_and_the_sum_notices() -> None:
    def rule(draft: Draft, target: Tensor, _: Tensor, branches: Branches) -> AcceptedPath:
        return TypicalAcceptance()(draft, target, branches)

    for parents in ((R, 0), (R, R)):
        assert discrepancy(rule, Likeliest(Target(4, 0)), parents) > 0.01
        assert discrepancy(rule, Likeliest(Target(4, 0, PARAMS["greedy"])), parents) < EXACT


# The decisions of production, counted: what enumeration cannot see is whether their noises are independent.


@dataclass(frozen=True)
class SameNoise(SeededVerificationRng):
    """Accepts by the numbers that draft tokens are drawn with."""

    def accept(self, depth: int, attempt: int, probability: float) -> bool:
        return uniform(self.seed, self.position + depth, attempt) < probability


VOCABULARY, HORIZON, NUM_SEEDS = 5, 2, 1500


def counted_surprise(choices: type[SeededVerificationRng]) -> float:
    """The law of answers written by rejection, round after round, with drafts drawn by the noise of ordinary draws."""
    target = Target(VOCABULARY, 6)
    offer = Independent(target)
    seeds, places = torch.arange(NUM_SEEDS), torch.arange(HORIZON + 2)
    noise = gumbel(seeds.repeat_interleave(len(places)), places.repeat(NUM_SEEDS), torch.arange(VOCABULARY))
    noise = noise.view(NUM_SEEDS, len(places), VOCABULARY).numpy()
    counts: dict[Tokens, int] = defaultdict(int)
    for seed in range(NUM_SEEDS):
        written: Tokens = ()
        while len(written) < HORIZON:
            rows, drafted_tokens = [], ()
            for place in (len(written), len(written) + 1):
                rows.append(offer.row((*written, *drafted_tokens), ()))
                drafted_tokens = (*drafted_tokens, int((np.log(rows[-1]) + noise[seed, place]).argmax()))
            wanted = torch.stack([target.after((*written, *drafted_tokens[:depth])) for depth in range(3)])
            proposals = torch.tensor(rows, dtype=torch.float64)
            path, token = rejection(Draft.chain(drafted_tokens), wanted, proposals, choices(seed, len(written)))
            written = (*written, *drafted_tokens[: len(path)], token)
        counts[written[:HORIZON]] += 1
    law = target.law(HORIZON)
    return surprise([counts[tokens] for tokens in law], list(law.values()))


def test_answers_by_seeded_choices_are_counted_as_often_as_the_target_says() -> None:
    assert counted_surprise(SeededVerificationRng) < 4.5


def test_accepting_by_the_noise_of_drafts_would_be_noticed() -> None:
    assert counted_surprise(SameNoise) > 10
