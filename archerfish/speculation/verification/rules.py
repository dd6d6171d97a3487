"""The three verification rules: which draft tokens are accepted, and the token that follows them.

`coupled` keeps the very tokens of no speculation, `rejection` their distribution, and `typical` neither. Where a
distribution is not finite, the decision of a rule is meaningless.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from archerfish.config.speculation import TYPICAL_DELTA, TYPICAL_EPSILON
from archerfish.errors import ConfigError
from archerfish.speculation.draft import ROOT, Draft
from archerfish.speculation.verification.rng import VerificationRng


class AcceptedPath(NamedTuple):
    """The decision of a rule about one draft."""

    path: list[int]
    """The accepted nodes, from the first down."""
    token: int
    """The token that follows them."""


def coupled(draft: Draft, sampled: Sequence[int]) -> AcceptedPath:
    """Accept draft tokens that equal the tokens the target samples. Lossless, token for token.

    sampled [1 + nodes]: the token after the sequence's last one, then after each node, each with the noise of its own
    position. Of equal siblings the first is accepted.
    """
    path: list[int] = []
    node = ROOT
    # One pass suffices: a node comes after its parent.
    for child, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True)):
        if parent == node and token == sampled[node + 1]:
            path.append(child)
            node = child
    return AcceptedPath(path, sampled[node + 1])


def rejection(draft: Draft, target: Tensor, proposals: Tensor, rng: VerificationRng) -> AcceptedPath:
    """Sample by exact rejection: tokens have the target's distribution, whatever the proposals are.

    target [1 + nodes, vocabulary]: the distribution after the sequence's last token, then after each node.
    proposals [nodes, vocabulary]: the distribution that each node was sampled from, given its ancestors and its earlier
    siblings. So siblings sampled independently have the same row; of those sampled without replacement, a later one's
    row is 0 at the earlier ones; a node that was not sampled at all has a single 1. What was sampled must be in the
    draft: leaving nodes out for what they are would bias the rows of those that stay.
    """
    _check(draft, target)
    assert len(proposals) == len(draft), "each node needs the distribution it was sampled from"
    wanted = _probabilities_after_parents(draft, target)
    offered = _probabilities(proposals, range(len(draft)), draft.tokens)
    assert 0.0 not in offered, "a node was sampled from a distribution that excludes it"
    path: list[int] = []
    while True:
        node = path[-1] if path else ROOT
        left = target[node + 1]
        for attempt, child in enumerate(draft.children(node)):
            probability = wanted[child] if attempt == 0 else float(left[draft.tokens[child]])
            if rng.accept(len(path), attempt, min(1.0, probability / offered[child])):
                path.append(child)
                break
            left = _residual(left, proposals[child])
        else:
            return AcceptedPath(path, rng.sample(len(path), left))


def _residual(wanted: Tensor, offered: Tensor) -> Tensor:
    """Return the distribution that a rejection leaves: the excess of the wanted one over the offered one.

    There is none only if both are equal, and then nothing but rounding can reject.
    """
    left = (wanted - offered).clamp_(min=0.0)
    total = left.sum()
    return torch.where(total > 0.0, left / total, wanted)


@dataclass(frozen=True, slots=True)
class TypicalAcceptance:
    """Medusa's rule: draft tokens are accepted if they are likely enough for how certain the target is. Lossy.

    A token is accepted if its probability exceeds the smaller of epsilon and delta * exp(-entropy). At temperature 0
    that is the likeliest token and nothing else.
    """

    epsilon: float = TYPICAL_EPSILON
    delta: float = TYPICAL_DELTA

    def __post_init__(self) -> None:
        if not 0.0 < self.epsilon < 1.0:
            raise ConfigError(f"epsilon = {self.epsilon} must be a probability between 0 and 1, for example 0.09")
        if not 0.0 < self.delta < float("inf"):
            raise ConfigError(f"delta = {self.delta} must be a number above 0, for example 0.3")

    def __call__(self, draft: Draft, target: Tensor, rng: VerificationRng) -> AcceptedPath:
        """Accept the longest path whose nodes all pass, of equals the first. `target` is that of `rejection`."""
        _check(draft, target)
        last = ROOT
        accepted, depths = {ROOT}, draft.depths
        thresholds = self._thresholds(draft, target)
        for node, probability in enumerate(_probabilities_after_parents(draft, target)):
            parent = draft.parents[node]
            if parent in accepted and probability > thresholds[parent]:
                accepted.add(node)
                if last == ROOT or depths[node] > depths[last]:
                    last = node
        path = draft.path(last)
        return AcceptedPath(path, rng.sample(len(path), target[last + 1]))

    def _thresholds(self, draft: Draft, target: Tensor) -> dict[int, float]:
        """Return the threshold for the children of each parent."""
        parents = sorted(set(draft.parents))
        entropies = torch.special.entr(target[[parent + 1 for parent in parents]]).sum(-1)
        return dict(zip(parents, (self.delta * torch.exp(-entropies)).clamp(max=self.epsilon).tolist(), strict=True))


def _check(draft: Draft, target: Tensor) -> None:
    assert len(target) == 1 + len(draft), "a distribution after the last token, and one after each node"


def _probabilities_after_parents(draft: Draft, target: Tensor) -> list[float]:
    return _probabilities(target, [parent + 1 for parent in draft.parents], draft.tokens)


def _probabilities(distributions: Tensor, rows: Iterable[int], tokens: Iterable[int]) -> list[float]:
    """Return probabilities of single tokens, fetched all at once: each fetch would wait for a device."""
    indices = torch.tensor([list(rows), list(tokens)], dtype=torch.int64, device=distributions.device)
    probabilities: list[float] = distributions[indices[0], indices[1]].tolist()
    return probabilities
