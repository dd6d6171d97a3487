"""The three rules: cases worked out by hand, and what holds for every draft."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from archerfish.errors import ConfigError
from archerfish.ops.reference.drawing import draw
from archerfish.ops.reference.probabilities import probabilities
from archerfish.speculation.draft import NO_DRAFT, ROOT, Draft
from archerfish.speculation.verification.rng import SeededVerificationRng
from archerfish.speculation.verification.rules import AcceptedPath, TypicalAcceptance, coupled, rejection
from tests.lanes import examples
from tests.ops.draws import random_logits, rows_of

VOCABULARY = 6
TREE = Draft((1, 2, 3, 1, 4), (ROOT, ROOT, 1, 1, 3))
"""1 | 2 - (3 | 1 - 4)"""


class ScriptedChoices:
    """Decisions made by the test: attempts in their order, and the token; the arguments are recorded."""

    def __init__(self, *accepted: bool, token: int = 0) -> None:
        self._accepted = list(accepted)
        self._token = token
        self.attempts: list[tuple[int, int, float]] = []
        self.drawn_from: tuple[int, list[float]] | None = None

    def accept(self, depth: int, attempt: int, probability: float) -> bool:
        self.attempts.append((depth, attempt, probability))
        return self._accepted.pop(0)

    def sample(self, depth: int, weights: Tensor) -> int:
        self.drawn_from = (depth, weights.tolist())
        return self._token


def rows(*given: list[float]) -> Tensor:
    return torch.tensor(given, dtype=torch.float64)


# Coupled.


@pytest.mark.parametrize(
    ("drawn", "path", "token"),
    [
        ([0, 5, 5, 5, 5, 5], [], 0),
        ([1, 7, 5, 5, 5, 5], [0], 7),
        ([2, 5, 6, 5, 5, 5], [1], 6),
        ([2, 5, 3, 8, 5, 5], [1, 2], 8),
        ([2, 5, 1, 5, 0, 5], [1, 3], 0),
        ([2, 5, 1, 5, 4, 9], [1, 3, 4], 9),
    ],
)
def test_coupled_walks_down_while_a_child_is_what_was_drawn(drawn: list[int], path: list[int], token: int) -> None:
    assert coupled(TREE, drawn) == AcceptedPath(path, token)


def test_of_equal_siblings_the_first_is_accepted() -> None:
    assert coupled(Draft((5, 5, 6), (ROOT, ROOT, 1)), [5, 6, 6, 0]) == AcceptedPath([0], 6)


def test_without_a_draft_there_is_the_next_token() -> None:
    assert coupled(NO_DRAFT, [3]) == AcceptedPath([], 3)
    choices = ScriptedChoices(token=2)
    assert rejection(NO_DRAFT, rows([0.2, 0.3, 0.5]), torch.zeros(0, 3), choices) == AcceptedPath([], 2)
    assert choices.attempts == [] and choices.drawn_from == (0, [0.2, 0.3, 0.5])
    assert TypicalAcceptance()(NO_DRAFT, rows([0.2, 0.3, 0.5]), ScriptedChoices(token=1)) == AcceptedPath([], 1)


# Rejection.

TARGET = rows([0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.0, 0.0, 1.0])
CHAIN = Draft.chain([1, 0])
OFFERED = rows([0.25, 0.5, 0.25], [0.5, 0.25, 0.25])


def test_a_chain_is_accepted_by_the_ratios_and_ends_with_a_bonus() -> None:
    choices = ScriptedChoices(True, True, token=2)
    assert rejection(CHAIN, TARGET, OFFERED, choices) == AcceptedPath([0, 1], 2)
    assert choices.attempts == [(0, 0, 0.5), (1, 0, 0.25)] and choices.drawn_from == (2, [0.0, 0.0, 1.0])


def test_what_a_rejection_leaves_is_over_the_whole_vocabulary() -> None:
    choices = ScriptedChoices(False, token=0)
    assert rejection(CHAIN, TARGET, OFFERED, choices) == AcceptedPath([], 0)
    assert choices.drawn_from == (0, [1.0, 0.0, 0.0])
    choices = ScriptedChoices(True, False, token=1)
    assert rejection(CHAIN, TARGET, OFFERED, choices) == AcceptedPath([0], 1)
    assert choices.drawn_from == (1, [0.0, 1.0, 0.0])


def test_siblings_are_tried_against_what_is_left_each_by_its_own_row() -> None:
    draft = Draft((0, 1, 2), (ROOT, ROOT, 1))
    target = rows([0.25, 0.25, 0.5], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    # The second is drawn without replacement, the third is certain.
    offered = rows([0.5, 0.25, 0.25], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0])
    choices = ScriptedChoices(False, True, False, token=1)
    assert rejection(draft, target, offered, choices) == AcceptedPath([1], 1)
    # The first leaves nothing but token 2.
    assert choices.attempts == [(0, 0, 0.5), (0, 1, 0.0), (1, 0, 0.0)] and choices.drawn_from == (1, [0.0, 1.0, 0.0])


def test_a_certain_draft_token_is_accepted_as_often_as_the_target_has_it() -> None:
    choices = ScriptedChoices(False, token=0)
    rejection(Draft.chain([1]), rows([0.5, 0.25, 0.25], [1, 0, 0]), rows([0.0, 1.0, 0.0]), choices)
    assert choices.attempts == [(0, 0, 0.25)]
    assert choices.drawn_from == (0, pytest.approx([2 / 3, 0.0, 1 / 3]))


def test_where_nothing_is_left_the_target_decides() -> None:
    choices = ScriptedChoices(False, token=0)
    rejection(Draft.chain([1]), TARGET[:2], TARGET[:1], choices)
    assert choices.attempts == [(0, 0, 1.0)] and choices.drawn_from == (0, TARGET[0].tolist())


def test_draft_tokens_that_cannot_have_been_sampled_are_refused() -> None:
    with pytest.raises(AssertionError, match="excludes it"):
        rejection(Draft.chain([1]), TARGET[:2], rows([0.5, 0.0, 0.5]), ScriptedChoices())
    with pytest.raises(AssertionError, match="the distribution it was sampled from"):
        rejection(CHAIN, TARGET, OFFERED[:1], ScriptedChoices())
    with pytest.raises(AssertionError, match="one after each node"):
        rejection(CHAIN, TARGET[:2], OFFERED, ScriptedChoices())


def test_single_precision_proposals_and_large_vocabularies_will_do() -> None:
    logits = random_logits(0, 3, 50_000)
    target = probabilities(logits, rows_of(*[{"top_k": 50}] * 3))
    proposals = torch.softmax(logits[:2] + random_logits(1, 2, 50_000, spread=0.5), -1)
    draft = Draft.chain(proposals.argmax(-1).tolist())
    for seed in range(20):
        path, token = rejection(draft, target, proposals, SeededVerificationRng(seed, 5))
        assert target[len(path), token] > 0.0


# Typical acceptance.


def test_typical_has_the_published_parameters() -> None:
    assert TypicalAcceptance() == TypicalAcceptance(epsilon=0.09, delta=0.3)


@pytest.mark.parametrize("epsilon", [0.09, 0.3])
@pytest.mark.parametrize("delta", [0.05, 0.3])
def test_a_draft_token_is_accepted_above_the_threshold_of_its_entropy(epsilon: float, delta: float) -> None:
    random, seen = np.random.default_rng(0), set()
    for _ in range(200):
        row = random.dirichlet(np.full(VOCABULARY, 0.7))
        threshold = min(epsilon, delta * math.exp(-sum(-p * math.log(p) for p in row if p > 0)))
        for token in range(VOCABULARY):
            target = rows(row.tolist(), [1 / VOCABULARY] * VOCABULARY)
            path, _ = TypicalAcceptance(epsilon, delta)(Draft.chain([token]), target, ScriptedChoices())
            assert (path == [0]) == (row[token] > threshold)
            seen.add((path == [0], threshold == epsilon))
    assert {is_accepted for is_accepted, _ in seen} == {True, False}


def test_a_draft_token_exactly_at_the_threshold_is_rejected() -> None:
    target = rows([0.25, 0.75], [0.5, 0.5])
    assert TypicalAcceptance(epsilon=0.25, delta=10.0)(Draft.chain([0]), target, ScriptedChoices()).path == []
    assert TypicalAcceptance(epsilon=0.24, delta=10.0)(Draft.chain([0]), target, ScriptedChoices()).path == [0]


def test_the_longest_path_is_taken_and_of_equals_the_first() -> None:
    flat = [1 / VOCABULARY] * VOCABULARY
    choices = ScriptedChoices(token=5)
    assert TypicalAcceptance()(TREE, rows(*[flat] * 6), choices) == AcceptedPath([1, 3, 4], 5)
    assert choices.drawn_from == (3, flat) and choices.attempts == []
    never_after_1 = [0.5, 0.0, 0.5, 0.0, 0.0, 0.0]
    assert TypicalAcceptance()(TREE, rows(flat, flat, never_after_1, flat, flat, flat), ScriptedChoices()).path == [0]
    only_first_pair = rows(flat, flat, flat, flat, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0], flat)
    assert TypicalAcceptance()(TREE, only_first_pair, ScriptedChoices()).path == [1, 2]


@pytest.mark.parametrize("given", [{"epsilon": 0.0}, {"epsilon": 1.0}, {"epsilon": math.nan}, {"delta": 0.0}])
def test_thresholds_that_cannot_work_are_named(given: dict[str, float]) -> None:
    ((name, value),) = given.items()
    with pytest.raises(ConfigError, match=f"{name} = {value}"):
        TypicalAcceptance(**given)


# All of them.


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_row_that_is_no_distribution_ends_in_some_token(broken: float) -> None:
    """The request fails for it elsewhere; no other request may."""
    spoilt = torch.full((3, VOCABULARY), broken, dtype=torch.float64)
    for verdict in (
        rejection(CHAIN, spoilt, spoilt[:2], SeededVerificationRng(1, 2)),
        TypicalAcceptance()(CHAIN, spoilt, SeededVerificationRng(1, 2)),
    ):
        assert_root_path(CHAIN, verdict.path)
        assert 0 <= verdict.token < VOCABULARY


@st.composite
def trees(choose: st.DrawFn, distinct: bool = False) -> Draft:
    """Up to 8 draft tokens; distinct: no two siblings are the same token."""
    parents = tuple(choose(st.integers(ROOT, place - 1)) for place in range(choose(st.integers(0, 8))))
    tokens: list[int] = []
    draft_parents: list[int] = []
    for place, parent in enumerate(parents):
        used = {tokens[other] for other in range(place) if parents[other] == parent} if distinct else set()
        free = sorted(set(range(VOCABULARY)) - used)
        if not free:
            break
        tokens.append(choose(st.sampled_from(free)))
        draft_parents.append(parent)
    return Draft(tuple(tokens), tuple(draft_parents))


def distributions(seed: int, draft: Draft) -> tuple[Tensor, Tensor]:
    """Of a target with top_k, and of a proposer that may draw anything."""
    logits = random_logits(seed, 1 + 2 * len(draft), VOCABULARY, spread=1.0)
    return (
        probabilities(logits[: 1 + len(draft)], rows_of(*[{"top_k": 4}] * (1 + len(draft)))),
        torch.softmax(logits[1 + len(draft) :].double(), -1),
    )


def assert_root_path(draft: Draft, path: list[int]) -> None:
    assert path == (draft.path(path[-1]) if path else [])


@examples(150)
@given(trees(), st.integers(0, 2**32))
def test_what_is_accepted_is_a_path_from_the_root_of_tokens_that_the_target_may_write(draft: Draft, seed: int) -> None:
    target, proposals = distributions(seed, draft)
    for path, token in (
        rejection(draft, target, proposals, SeededVerificationRng(seed, 9)),
        TypicalAcceptance()(draft, target, SeededVerificationRng(seed, 9)),
        coupled(draft, target.argmax(-1).tolist()),
    ):
        assert_root_path(draft, path)
        written = [*(draft.tokens[node] for node in path), token]
        assert all(
            target[row, token] > 0.0 for row, token in zip((0, *(node + 1 for node in path)), written, strict=True)
        )


@examples(150)
@given(trees(distinct=True), st.integers(0, 2**32), st.booleans())
def test_at_temperature_0_all_rules_write_the_same_tokens(draft: Draft, seed: int, certain: bool) -> None:
    """Whatever draft tokens were drawn from. Logits are whole numbers, so the likeliest often has equals."""
    logits = random_logits(seed, 1 + len(draft), VOCABULARY, spread=1.0).round()
    draw_rows = rows_of(*[{"temperature": 0.0}] * (1 + len(draft)))
    _, proposals = distributions(seed, draft)
    if certain:
        proposals = torch.eye(VOCABULARY, dtype=torch.float64)[list(draft.tokens)]
    target = probabilities(logits, draw_rows)
    wanted = coupled(draft, draw(logits, draw_rows).tokens.tolist())
    assert rejection(draft, target, proposals, SeededVerificationRng(seed, 2)) == wanted
    assert TypicalAcceptance()(draft, target, SeededVerificationRng(seed, 2)) == wanted
