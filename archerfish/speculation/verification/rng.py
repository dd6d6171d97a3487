"""The random decisions of verification, behind one protocol so that all of them can be enumerated."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from archerfish.ops.reference.noise import LARGEST_GAP, gumbel, uniform

_MIN_SHARE = math.exp(-LARGEST_GAP)
"""Noise cannot lift a token whose weight is a smaller share of the largest."""
_SAMPLE_IDS = 1 << 30
_ACCEPT_IDS = 1 << 31


class VerificationRng(Protocol):
    """The random decisions for one sequence in one step. Each is made at most once."""

    def accept(self, depth: int, attempt: int, probability: float) -> bool:
        """Decide whether to accept a draft token. Depth 0 follows the sequence's last token; siblings are attempts."""

    def sample(self, depth: int, weights: Tensor) -> int:
        """Sample a token by weights [vocabulary], which need not add up to 1. At most one is sampled at a depth."""


@dataclass(frozen=True, slots=True)
class SeededVerificationRng:
    """Decisions that are a pure function of seed, position, and which decision it is at that position.

    They use the hash of the sampler's noise with token ids that no vocabulary has. For one seed and position that hash
    is a bijection of 32-bit ids, so two ids never have the same bits. The top bits say what an id is for: below 2**30
    it is a token sampled in the ordinary way (by a proposer, or in a step without a draft), from 2**30 on a token
    sampled here, from 2**31 on an attempt. Different positions are as independent as those of ordinary samples. A
    position is decided once: what a step returns is final, and nothing is decided beyond it.
    """

    seed: int
    position: int
    """Position of the token that follows the sequence's last one."""

    def accept(self, depth: int, attempt: int, probability: float) -> bool:
        """Return True with this probability to within 2**-32; always for 1, never for 0."""
        return uniform(self.seed, self.position + depth, _ACCEPT_IDS + attempt) < probability

    def sample(self, depth: int, weights: Tensor) -> int:
        """Return the maximum of log plus noise: no sum is rounded, so no order of summing can change the token."""
        assert len(weights) <= _SAMPLE_IDS, "ids of tokens must not reach those of other decisions"
        signed = self.seed - 2**64 if self.seed >= 2**63 else self.seed
        seeds, positions = torch.tensor([[signed], [self.position + depth]], device=weights.device)
        # Noise takes longest, and most tokens are often filtered out. Negated, so that NaN stays.
        possible = (~(weights < weights.amax() * _MIN_SHARE)).nonzero()[:, 0]
        scores = gumbel(seeds, positions, possible + _SAMPLE_IDS)[0] + weights[possible].log()
        return int(possible[scores.argmax()])
