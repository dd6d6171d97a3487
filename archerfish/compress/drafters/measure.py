"""How many guesses of a drafter stand, on texts it has not learned from."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from archerfish.compress.drafters.batches import Batch
from archerfish.compress.drafters.drafter import Drafter, judged
from archerfish.compress.drafters.loss import Judgement
from archerfish.compress.drafters.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthScore:
    """Of the guesses at one depth, and of chains that end there."""

    agreement: float
    """Share of guesses that are the model's likeliest token, where all before them are right."""
    acceptance: float
    """Mean over places of the sum of min(p, q), likewise."""
    greedy_tokens: float
    """Expected of a step that checks a chain of so many greedy guesses: those that stand, and the one after them."""
    sampled_tokens: float
    """The same of guesses that are drawn and checked at temperature 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    num_guesses: int
    """First guesses, one after each token."""
    depths: tuple[DepthScore, ...]


@torch.no_grad()
def measure(drafter: Drafter, target: Target, batches: Iterable[Batch], num_depths: int) -> Score:
    tallies = [_Tally() for _ in range(num_depths)]
    for batch in batches:
        reading = target.read(batch.tokens)
        standing: Judgement | None = None
        for depth, found in enumerate(judged(drafter, target, reading, num_depths)):
            counts = batch.counts[:, depth + 1 :]
            standing = found if standing is None else _both(standing, found)
            # The text must be the model's own all along the chain.
            tallies[depth].add(found, counts, standing, counts * batch.counts[:, 1 : 1 + counts.shape[1]])
    scores = []
    greedy = sampled = 1.0
    for tally in tallies:
        greedy, sampled = greedy + tally.mean(2), sampled + tally.mean(3)
        scores.append(
            DepthScore(agreement=tally.mean(0), acceptance=tally.mean(1), greedy_tokens=greedy, sampled_tokens=sampled)
        )
    return Score(num_guesses=round(tallies[0].totals[0][1]), depths=tuple(scores))


def _both(before: Judgement, found: Judgement) -> Judgement:
    """Whether a guess stands and all before it do."""
    width = found.acceptance.shape[1]
    return Judgement(
        before.acceptance[:, :width] * found.acceptance, before.agreement[:, :width] * found.agreement, found.divergence
    )


class _Tally:
    """Sums of agreement and acceptance, by themselves and along chains, each with its weight."""

    def __init__(self) -> None:
        self.totals = [[0.0, 0.0] for _ in range(4)]

    def add(self, found: Judgement, counts: Tensor, standing: Judgement, chain_counts: Tensor) -> None:
        weighed = (found.agreement, counts), (found.acceptance, counts)
        chained = (standing.agreement, chain_counts), (standing.acceptance, chain_counts)
        for total, (values, weights) in zip(self.totals, (*weighed, *chained), strict=True):
            total[0] += float((values * weights).sum(dtype=torch.float64))
            total[1] += float(weights.sum(dtype=torch.float64))

    def mean(self, which: int) -> float:
        total, weight = self.totals[which]
        return total / weight if weight else 0.0
