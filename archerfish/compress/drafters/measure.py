"""Measures how many draft tokens are accepted, on texts that the drafter was not trained on."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from archerfish.compress.drafters.batches import TrainingBatch
from archerfish.compress.drafters.drafter import Drafter, judged
from archerfish.compress.drafters.loss import Judgement
from archerfish.compress.drafters.target import DraftingTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthScore:
    """Scores of the draft tokens at one depth, and of chains that end there."""

    agreement: float
    """Share of draft tokens that are the model's likeliest token, where all before them are."""
    acceptance: float
    """Mean over positions of the sum of min(p, q), likewise."""
    greedy_tokens: float
    """Expected tokens of a step that verifies a greedy chain of this length: those accepted, and one more."""
    sampled_tokens: float
    """Expected tokens of a step whose chain is sampled and verified at temperature 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    num_predictions: int
    """Number of first draft tokens, one after each token."""
    depths: tuple[DepthScore, ...]


@torch.no_grad()
def measure(drafter: Drafter, target: DraftingTarget, batches: Iterable[TrainingBatch], num_depths: int) -> Score:
    tallies = [_Tally() for _ in range(num_depths)]
    for batch in batches:
        chains: _Grid | None = None
        for depth, judgement in enumerate(judged(drafter, target, batch, num_depths)):
            grid = _as_grid(judgement, batch, depth)
            chains = grid if chains is None else chains.extended_by(grid)
            tallies[depth].add(judgement, chains)
    scores = []
    greedy = sampled = 1.0
    for tally in tallies:
        greedy, sampled = greedy + tally.mean(2), sampled + tally.mean(3)
        scores.append(
            DepthScore(agreement=tally.mean(0), acceptance=tally.mean(1), greedy_tokens=greedy, sampled_tokens=sampled)
        )
    return Score(num_predictions=tallies[0].counts[0], depths=tuple(scores))


class _Grid(NamedTuple):
    """Probability, for all starts [rows, starts], that a chain is accepted up to some depth."""

    agreement: Tensor
    acceptance: Tensor
    is_counted: Tensor
    """Whether the text is the model's own all along the chain."""

    def extended_by(self, last: "_Grid") -> "_Grid":
        width = last.agreement.shape[1]
        return _Grid(*(values[:, :width] * other for values, other in zip(self, last, strict=True)))


def _as_grid(judgement: Judgement, batch: TrainingBatch, depth: int) -> _Grid:
    shape = batch.own[:, depth + 1 :].shape
    positions, device = batch.positions(depth), batch.tokens.device

    def grid(values: Tensor) -> Tensor:
        return torch.zeros(shape.numel(), device=device).index_copy(0, positions, values).view(shape)

    return _Grid(grid(judgement.agreement), grid(judgement.acceptance), grid(torch.ones_like(judgement.agreement)))


class _Tally:
    """Sums of agreement and acceptance, alone and along chains, each with its count."""

    def __init__(self) -> None:
        self._sums, self.counts = [0.0] * 4, [0] * 4

    def add(self, judgement: Judgement, chains: _Grid) -> None:
        num_chains = round(float(chains.is_counted.sum(dtype=torch.float64)))
        num_predictions = len(judgement.agreement)
        added = (
            (judgement.agreement, num_predictions),
            (judgement.acceptance, num_predictions),
            (chains.agreement, num_chains),
            (chains.acceptance, num_chains),
        )
        for which, (values, count) in enumerate(added):
            self._sums[which] += float(values.sum(dtype=torch.float64))
            self.counts[which] += count

    def mean(self, which: int) -> float:
        return self._sums[which] / max(1, self.counts[which])
