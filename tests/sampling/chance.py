"""How far what was drawn lies from what should have been, in standard deviations of pure chance."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

_LEAST_EXPECTED = 8.0


def surprise(counts: ArrayLike, chances: ArrayLike) -> float:
    """Chi-square of the counts against the chances, as standard deviations from what is usual.

    Rare outcomes are put together first: their counts are too small for the approximation. Honest draws stay within
    about 3; the tests allow 5. Counts where the chance is zero are infinitely surprising.
    """
    counts, expected = np.asarray(counts, float), np.asarray(chances, float) * np.sum(counts)
    if counts[expected == 0].any():
        return math.inf
    order = np.argsort(-expected)
    counts, expected = counts[order], expected[order]
    groups = np.cumsum(expected) // _LEAST_EXPECTED
    if groups[-1] * _LEAST_EXPECTED > np.sum(expected) - _LEAST_EXPECTED / 2 and groups[-1] > 0:
        groups[groups == groups[-1]] -= 1  # The last group would be too small.
    _, places = np.unique(groups, return_inverse=True)
    counts, expected = np.bincount(places, counts), np.bincount(places, expected)
    freedom = len(counts) - 1
    assert freedom > 0, "too few draws to say anything"
    square = float(((counts - expected) ** 2 / expected).sum())
    return (square - freedom) / math.sqrt(2 * freedom)


def distance_from_uniform(values: ArrayLike) -> float:
    """Kolmogorov-Smirnov distance from uniform on (0, 1), scaled: above 2 happens once in 1500 times by chance."""
    ordered = np.sort(np.ravel(values))
    steps = np.arange(len(ordered) + 1) / len(ordered)
    gap = max(np.abs(ordered - steps[:-1]).max(), np.abs(ordered - steps[1:]).max())
    return float(gap * math.sqrt(len(ordered)))


def largest_correlation(rows: np.ndarray) -> float:
    """Largest correlation of any two different rows, in standard deviations of pure chance."""
    centred = rows - rows.mean(1, keepdims=True)
    centred /= np.sqrt((centred**2).sum(1, keepdims=True))
    products = centred @ centred.T
    np.fill_diagonal(products, 0.0)
    return float(np.abs(products).max() * math.sqrt(rows.shape[1]))


def count(draws: Sequence[int], vocab_size: int) -> np.ndarray:
    return np.bincount(np.asarray(draws), minlength=vocab_size)
