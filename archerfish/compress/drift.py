"""The distance between an optimized model's distributions and the original's, from their logits. Knows no model."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Over all places of a text."""

    num_tokens: int
    original_perplexity: float
    perplexity: float
    divergence: float
    """Mean Kullback-Leibler divergence from the original, over the whole vocabulary, in nats."""
    agreement: float
    """Share of places where both have the same likeliest token."""

    @property
    def loss(self) -> float:
        """How much larger the perplexity is, as a share of the original's."""
        return self.perplexity / self.original_perplexity - 1


class DriftMeter:
    """Adds up what is seen of a text, piece by piece."""

    def __init__(self) -> None:
        self._num_tokens = self._num_same = 0
        self._original = self._optimized = self._divergence = 0.0

    def add(self, original: Tensor, optimized: Tensor, tokens: Tensor) -> None:
        """Logits [rows, vocabulary] of both, and the tokens [rows] that came next."""
        before, after = original.log_softmax(-1), optimized.log_softmax(-1)
        chosen = tokens[:, None]
        self._num_tokens += len(tokens)
        self._original -= float(before.gather(1, chosen).sum(dtype=torch.float64))
        self._optimized -= float(after.gather(1, chosen).sum(dtype=torch.float64))
        # A token that is impossible for the original adds nothing, whatever the other thinks of it.
        parts = torch.where(before == -torch.inf, 0.0, before.exp() * (before - after))
        self._divergence += float(parts.sum(dtype=torch.float64))
        self._num_same += int((before.argmax(-1) == after.argmax(-1)).sum())

    def result(self) -> Drift:
        count = self._num_tokens
        assert count, "nothing was read"
        return Drift(
            num_tokens=count,
            original_perplexity=math.exp(self._original / count),
            perplexity=math.exp(self._optimized / count),
            divergence=self._divergence / count,
            agreement=self._num_same / count,
        )
