"""Drift against the same figures worked out place by place in plain Python."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from archerfish.compress.drift import DriftMeter


def logits(seed: int, rows: int, words: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(scale=3, size=(rows, words))).float()


def probabilities(row: Tensor) -> list[float]:
    powers = [math.exp(value) for value in row.tolist()]
    return [power / sum(powers) for power in powers]


def test_figures_are_those_of_the_definitions() -> None:
    original, tokens = logits(0, 40, 11), torch.arange(40) % 11
    optimized = original + logits(1, 40, 11) / 4
    meter = DriftMeter()
    meter.add(original[:15], optimized[:15], tokens[:15])
    meter.add(original[15:], optimized[15:], tokens[15:])
    found = meter.result()
    pairs = [(probabilities(one), probabilities(other)) for one, other in zip(original, optimized, strict=True)]
    chosen = [(p[token], q[token]) for (p, q), token in zip(pairs, tokens.tolist(), strict=True)]
    assert found.num_tokens == 40
    assert found.original_perplexity == pytest.approx(math.prod(p for p, _ in chosen) ** (-1 / 40))
    assert found.perplexity == pytest.approx(math.prod(q for _, q in chosen) ** (-1 / 40))
    divergences = [sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) for p, q in pairs]
    assert found.divergence == pytest.approx(sum(divergences) / 40)
    same = sum(p.index(max(p)) == q.index(max(q)) for p, q in pairs)
    assert 0 < same < 40
    assert found.agreement == same / 40
    assert found.loss == pytest.approx(found.perplexity / found.original_perplexity - 1)


def test_a_model_does_not_drift_from_itself() -> None:
    one = logits(2, 9, 5)
    meter = DriftMeter()
    meter.add(one, one, torch.zeros(9, dtype=torch.int64))
    found = meter.result()
    assert (found.loss, found.divergence, found.agreement) == (0, 0, 1)


def test_words_that_the_original_rules_out_count_for_nothing() -> None:
    original = torch.tensor([[0.0, 0.0, -torch.inf]])
    optimized = torch.tensor([[1.0, 1.0, 1.0]])
    meter = DriftMeter()
    meter.add(original, optimized, torch.tensor([0]))
    assert meter.result().divergence == pytest.approx(math.log(3 / 2))
