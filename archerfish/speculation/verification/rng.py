"""The random decisions of verification, behind one protocol so that all of them can be enumerated. Knows no rule."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from archerfish.ops.reference.noise import LARGEST_GAP, gumbel, uniform

_LEAST_SHARE = math.exp(-LARGEST_GAP)
"""Noise cannot lift a token whose weight is a smaller part of the largest."""
_PICKING = 1 << 30
_ACCEPTING = 1 << 31


class Choices(Protocol):
    """What is left to chance for one sequence in one round. Every decision is asked for at most once."""

    def accepts(self, depth: int, attempt: int, probability: float) -> bool:
        """Whether a guess stands: at its depth, 0 right after the sequence's last token, siblings are tried in turn."""

    def picks(self, depth: int, weights: Tensor) -> int:
        """A token by weights [vocabulary] that need not add up to 1. At most one is picked at a depth."""


@dataclass(frozen=True, slots=True)
class SeededChoices:
    """Decisions that are a pure function of seed, position, and which decision it is at that position.

    They use the hash of the draw's noise with token ids that no vocabulary has. For one seed and position that hash is
    a bijection of 32-bit ids, so two ids never have the same bits, and the ids are told apart by their top bits:
    below 2**30 they are tokens drawn in the ordinary way (by a proposer, or where nothing was guessed), from 2**30 on
    tokens picked here, from 2**31 on attempts. Different positions are as independent as those of ordinary draws are.
    A position is decided once: what a round yields is never taken back, and what it did not reach was not asked for.
    """

    seed: int
    position: int
    """Of the token that follows the sequence's last one, as a row of the draw has it."""

    def accepts(self, depth: int, attempt: int, probability: float) -> bool:
        """True with this probability to within 2**-32; always for 1, never for 0."""
        return uniform(self.seed, self.position + depth, _ACCEPTING + attempt) < probability

    def picks(self, depth: int, weights: Tensor) -> int:
        """The largest of logarithm plus noise: no sum is rounded, so that no order of summing can change the token."""
        assert len(weights) <= _PICKING, "ids of tokens must not reach those of other decisions"
        signed = self.seed - 2**64 if self.seed >= 2**63 else self.seed
        seeds, positions = torch.tensor([[signed], [self.position + depth]], device=weights.device)
        # Noise takes longer than all else, and most tokens are often filtered out. Negated: what is no number stays.
        possible = (~(weights < weights.amax() * _LEAST_SHARE)).nonzero()[:, 0]
        scores = gumbel(seeds, positions, possible + _PICKING)[0] + weights[possible].log()
        return int(possible[scores.argmax()])
