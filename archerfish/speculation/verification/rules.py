"""Which guessed tokens stand, and the one that follows them. Knows distributions and drawn tokens, no model.

Three rules. `coupled` keeps the very tokens of no speculation, `rejection` their distribution, and `typical` neither.
Where a distribution is not finite, what a rule says means nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from archerfish.config.speculation import TYPICAL_DELTA, TYPICAL_EPSILON
from archerfish.errors import ConfigError
from archerfish.speculation.draft import ROOT, Draft
from archerfish.speculation.verification.rng import Choices


class Verdict(NamedTuple):
    path: list[int]
    """The guesses that stand, from the first down."""
    token: int
    """The one that follows them."""


def coupled(draft: Draft, drawn: Sequence[int]) -> Verdict:
    """Guesses that are the very tokens the target draws. Lossless, token for token.

    drawn [1 + guesses]: the first after the sequence's last token, then one after each guess, each with the noise of
    its own position. Of equal siblings the first stands.
    """
    path: list[int] = []
    node = ROOT
    # One pass will do: a guess hangs on an earlier one.
    for place, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True)):
        if parent == node and token == drawn[node + 1]:
            path.append(place)
            node = place
    return Verdict(path, drawn[node + 1])


def rejection(draft: Draft, target: Tensor, proposals: Tensor, choices: Choices) -> Verdict:
    """Exact rejection sampling: tokens have the target's distribution, whatever the proposals are.

    target [1 + guesses, vocabulary]: the distribution after the sequence's last token, then after each guess.
    proposals [guesses, vocabulary]: what each guess was drawn from, given the guesses it hangs on and its earlier
    siblings. So siblings drawn independently have the same row; of those drawn without replacement, a later one's row
    is 0 at the earlier ones; a guess that was not drawn at all has a single 1. What was drawn must be in the draft:
    guesses left out for what they are would skew the rows of those that stay.
    """
    _check(draft, target)
    assert len(proposals) == len(draft), "every guess was drawn from something"
    wanted = _chances_after_parents(draft, target)
    offered = _chances(proposals, range(len(draft)), draft.tokens)
    assert 0.0 not in offered, "a guess was drawn from what excludes it"
    path: list[int] = []
    while True:
        node = path[-1] if path else ROOT
        left = target[node + 1]
        for attempt, child in enumerate(draft.children(node)):
            chance = wanted[child] if attempt == 0 else float(left[draft.tokens[child]])
            if choices.accepts(len(path), attempt, min(1.0, chance / offered[child])):
                path.append(child)
                break
            left = _residual(left, proposals[child])
        else:
            return Verdict(path, choices.picks(len(path), left))


def _residual(wanted: Tensor, offered: Tensor) -> Tensor:
    """What a rejected guess leaves: where the wanted distribution exceeds the offered one.

    That is nowhere only if both are equal, and then nothing but rounding can reject.
    """
    left = (wanted - offered).clamp_(min=0.0)
    total = left.sum()
    return torch.where(total > 0.0, left / total, wanted)


@dataclass(frozen=True, slots=True)
class Typical:
    """Medusa's rule: guesses stand where they are likely enough for how sure the target is. Lossy.

    A guess stands if its probability exceeds the smaller of epsilon and delta * exp(-entropy). At temperature 0 that is
    the likeliest token and nothing else.
    """

    epsilon: float = TYPICAL_EPSILON
    delta: float = TYPICAL_DELTA

    def __post_init__(self) -> None:
        if not 0.0 < self.epsilon < 1.0:
            raise ConfigError(f"epsilon = {self.epsilon}: a probability to exceed must lie between 0 and 1, as 0.09")
        if not 0.0 < self.delta < float("inf"):
            raise ConfigError(f"delta = {self.delta}: it must be a number above 0, as 0.3")

    def __call__(self, draft: Draft, target: Tensor, choices: Choices) -> Verdict:
        """target as `rejection` has it. Of all paths that stand the longest is taken, of equals the first."""
        _check(draft, target)
        last = ROOT
        standing, depths = {ROOT}, draft.depths
        thresholds = self._thresholds(draft, target)
        for place, chance in enumerate(_chances_after_parents(draft, target)):
            parent = draft.parents[place]
            if parent in standing and chance > thresholds[parent]:
                standing.add(place)
                if last == ROOT or depths[place] > depths[last]:
                    last = place
        path = draft.path(last)
        return Verdict(path, choices.picks(len(path), target[last + 1]))

    def _thresholds(self, draft: Draft, target: Tensor) -> dict[int, float]:
        """By parent."""
        parents = sorted(set(draft.parents))
        entropies = torch.special.entr(target[[parent + 1 for parent in parents]]).sum(-1)
        return dict(zip(parents, (self.delta * torch.exp(-entropies)).clamp(max=self.epsilon).tolist(), strict=True))


def _check(draft: Draft, target: Tensor) -> None:
    assert len(target) == 1 + len(draft), "a distribution after the last token, and one after each guess"


def _chances_after_parents(draft: Draft, target: Tensor) -> list[float]:
    return _chances(target, [parent + 1 for parent in draft.parents], draft.tokens)


def _chances(distributions: Tensor, rows: Iterable[int], tokens: Iterable[int]) -> list[float]:
    """Of single tokens, fetched all at once: each fetch would wait for a device."""
    spots = torch.tensor([list(rows), list(tokens)], dtype=torch.int64, device=distributions.device)
    chances: list[float] = distributions[spots[0], spots[1]].tolist()
    return chances
