"""Measures the distance between an optimized model's distributions and the original's, from their logits."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Averages over all predicted tokens of a text."""

    num_tokens: int
    original_perplexity: float
    perplexity: float
    divergence: float
    """Mean Kullback-Leibler divergence from the original, over the whole vocabulary, in nats."""
    agreement: float
    """Share of positions where both have the same likeliest token."""

    @property
    def loss(self) -> float:
        """Return by how much the perplexity is larger, as a share of the original's."""
        return self.perplexity / self.original_perplexity - 1


class DriftMeter:
    """Accumulates the drift over a text, piece by piece."""

    def __init__(self) -> None:
        self._num_tokens = self._num_same = 0
        self._original = self._optimized = self._divergence = 0.0

    def add(self, original: Tensor, optimized: Tensor, tokens: Tensor) -> None:
        """Add logits [rows, vocabulary] of both models, and the tokens [rows] that follow."""
        before, after = original.log_softmax(-1), optimized.log_softmax(-1)
        chosen = tokens[:, None]
        self._num_tokens += len(tokens)
        self._original -= float(before.gather(1, chosen).sum(dtype=torch.float64))
        self._optimized -= float(after.gather(1, chosen).sum(dtype=torch.float64))
        # A token that the original rules out has probability 0: its term is 0, not 0 x infinity.
        parts = torch.where(before == -torch.inf, 0.0, before.exp() * (before - after))
        self._divergence += float(parts.sum(dtype=torch.float64))
        self._num_same += int((before.argmax(-1) == after.argmax(-1)).sum())

    def result(self) -> Drift:
        count = self._num_tokens
        assert count, "no token was added"
        return Drift(
            num_tokens=count,
            original_perplexity=math.exp(self._original / count),
            perplexity=math.exp(self._optimized / count),
            divergence=self._divergence / count,
            agreement=self._num_same / count,
        )
