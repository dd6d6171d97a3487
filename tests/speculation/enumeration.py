"""The exact law of anything that decides by chance, summed over all the ways it can go; and models small enough for it.

A target and proposers over a few tokens, whose distributions depend on everything before.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor

from archerfish.ops.reference.probabilities import probabilities
from archerfish.request import SamplingParams
from archerfish.speculation.draft import ROOT, Draft
from archerfish.speculation.verification.rules import AcceptedPath
from tests.ops.draws import rows_of
from tests.sampling import naive

Tokens = tuple[int, ...]
Law = Mapping[Tokens, float]
Row = tuple[float, ...]
Rule = Callable[[Draft, Tensor, Tensor, "Branches"], AcceptedPath]

PROMPT = (1, 0)


class Branches:
    """Decisions that go as a script says, then the first way there is; the ways not gone are scripts still to
    play."""

    def __init__(self, script: Tokens) -> None:
        self._script = script
        self._taken: list[int] = []
        self._decisions: set[tuple[int, ...]] = set()
        self.probability = 1.0
        self.untried: list[Tokens] = []

    def choose(self, weights: Sequence[float]) -> int:
        possible = [option for option, weight in enumerate(weights) if weight > 0.0]
        if len(self._taken) < len(self._script):
            option = self._script[len(self._taken)]
        else:
            option = possible[0]
            self.untried += [(*self._taken, other) for other in possible[1:]]
        self._taken.append(option)
        self.probability *= weights[option] / sum(weights)
        return option

    def accept(self, depth: int, attempt: int, probability: float) -> bool:
        self._decide(depth, attempt)
        assert 0.0 <= probability <= 1.0
        return self.choose((1.0 - probability, probability)) == 1

    def sample(self, depth: int, weights: Tensor) -> int:
        self._decide(depth)
        return self.choose(weights.tolist())

    def _decide(self, *decision: int) -> None:
        assert decision not in self._decisions, "a seeded choice would give the same answer again"
        self._decisions.add(decision)


def law_of(play: Callable[[Branches], Tokens]) -> Law:
    """How likely each outcome is, by playing every way once."""
    law: dict[Tokens, float] = defaultdict(float)
    scripts: list[Tokens] = [()]
    while scripts:
        branches = Branches(scripts.pop())
        law[play(branches)] += branches.probability
        scripts += branches.untried
    return law


def distance(one: Law, other: Law) -> float:
    """The largest difference in the probability of any outcome."""
    return max(abs(one.get(outcome, 0.0) - other.get(outcome, 0.0)) for outcome in {*one, *other})


@dataclass(frozen=True)
class Target:
    """Logits are arbitrary at every prefix; they are processed as a request's parameters say."""

    vocabulary: int
    seed: int
    params: SamplingParams = field(default_factory=SamplingParams, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "after", cache(self.after))

    def after(self, written: Tokens) -> Tensor:
        """The distribution of what follows."""
        logits = naive.penalize(random_row(self.vocabulary, 0, self.seed, written), PROMPT, written, self.params)
        params = self.params
        draw_params = {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        return probabilities(torch.tensor([logits]), rows_of(draw_params))[0]

    def of(self, draft: Draft) -> Tensor:
        """Return the target's distributions: after the last token, and after each draft token."""
        return torch.stack([self.after(()), *(self.after(drafted(draft, node)) for node in range(len(draft)))])

    def law(self, horizon: int) -> Law:
        """Of the next tokens, without any speculation."""
        return self.extended({(): 1.0}, horizon)

    def extended(self, law: Law, horizon: int) -> Law:
        """Outcomes cut to a length, or carried on by the target to it."""
        longer: dict[Tokens, float] = defaultdict(float)
        for outcome, probability in law.items():
            for rest in itertools.product(range(self.vocabulary), repeat=max(0, horizon - len(outcome))):
                tokens, chance = outcome, probability
                for token in rest:
                    chance *= float(self.after(tokens)[token])
                    tokens = (*tokens, token)
                longer[tokens[:horizon]] += chance
        return longer


def random_row(vocabulary: int, who: int, seed: int, prefix: Tokens) -> list[float]:
    random = np.random.default_rng([who, seed, len(prefix), *prefix])
    return (random.normal(size=vocabulary) * 1.5).tolist()


def drafted(draft: Draft, node: int) -> Tokens:
    """Return the tokens written if this draft token is accepted."""
    return tuple(draft.tokens[place] for place in draft.path(node))


class DraftOffer:
    """How a proposer draws draft tokens: `row` returns what the next sibling is drawn from."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.row = cache(self.row)

    def row(self, written: Tokens, siblings: Tokens) -> Row:
        raise NotImplementedError

    def claimed(self, written: Tokens, siblings: Tokens) -> Row:
        """What it says that the sibling was drawn from."""
        return self.row(written, siblings)

    def own(self, written: Tokens) -> Row:
        return tuple(naive.softmax(random_row(self.target.vocabulary, 1, self.target.seed, written)))

    def certain(self, token: int) -> Row:
        return tuple(float(token == other) for other in range(self.target.vocabulary))


class Independent(DraftOffer):
    def row(self, written: Tokens, siblings: Tokens) -> Row:
        return self.own(written)


class WithoutReplacement(DraftOffer):
    def row(self, written: Tokens, siblings: Tokens) -> Row:
        left = [0.0 if token in siblings else chance for token, chance in enumerate(self.own(written))]
        return tuple(chance / sum(left) for chance in left)


class Likeliest(DraftOffer):
    """The first, the second, ... of its own distribution: nothing is drawn."""

    def row(self, written: Tokens, siblings: Tokens) -> Row:
        own = self.own(written)
        return self.certain(sorted(range(len(own)), key=lambda token: -own[token])[len(siblings)])


class LikeliestThenDrawn(WithoutReplacement):
    def row(self, written: Tokens, siblings: Tokens) -> Row:
        return super().row(written, siblings) if siblings else self.certain(int(np.argmax(self.own(written))))


class Narrow(DraftOffer):
    """From two tokens only: the target has others."""

    def row(self, written: Tokens, siblings: Tokens) -> Row:
        own = self.own(written)
        left = [chance if chance >= sorted(own)[-2] else 0.0 for chance in own]
        return tuple(chance / sum(left) for chance in left)


class TargetsOwn(DraftOffer):
    def row(self, written: Tokens, siblings: Tokens) -> Row:
        return tuple(self.target.after(written).tolist())


class Erratic(DraftOffer):
    """From something else for every sibling, in whatever way those before it turned out."""

    def row(self, written: Tokens, siblings: Tokens) -> Row:
        return self.own((*written, 9, *siblings))


def play_round(rule: Rule, offer: DraftOffer, parents: Tokens) -> Callable[[Branches], Tokens]:
    """A draft for a tree of this shape, drawn one after the other, then what the rule makes of them."""

    def play(branches: Branches) -> Tokens:
        draft, claimed = Draft((), ()), []
        for parent in parents:
            siblings = tuple(draft.tokens[child] for child in draft.children(parent))
            written = drafted(draft, parent)
            token = branches.choose(offer.row(written, siblings))
            claimed.append(offer.claimed(written, siblings))
            draft = Draft((*draft.tokens, token), (*draft.parents, parent))
        proposals = torch.tensor(claimed, dtype=torch.float64)
        path, token = rule(draft, offer.target.of(draft), proposals, branches)
        return (*(draft.tokens[node] for node in path), token)

    return play


def depth_of(parents: Tokens) -> int:
    return max(Draft((0,) * len(parents), parents).depths)


def discrepancy(rule: Rule, offer: DraftOffer, parents: Tokens) -> float:
    """Between what a round yields, carried on by the target, and the target alone."""
    horizon = depth_of(parents) + 1
    found = law_of(play_round(rule, offer, parents))
    return distance(offer.target.extended(found, horizon), offer.target.law(horizon))


R = ROOT
CHAINS = [(R,), (R, 0), (R, 0, 1)]
TREES = [(R, R), (R, R, R), (R, R, 0), (R, R, 1), (R, 0, 0), (R, 0, R)]
PARAMS = {
    "plain": SamplingParams(),
    "cool": SamplingParams(temperature=0.4),
    "top_k": SamplingParams(temperature=1.3, top_k=2),
    "top_p": SamplingParams(temperature=0.9, top_p=0.75),
    "penalties": SamplingParams(repetition_penalty=1.6, presence_penalty=0.5, frequency_penalty=0.7),
    "everything": SamplingParams(temperature=1.4, top_k=3, top_p=0.9, min_p=0.05, presence_penalty=0.9),
    "greedy": SamplingParams(temperature=0.0),
}


def name(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)
