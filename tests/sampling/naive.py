"""What sampling must do, one row and one token at a time in plain Python: slow, and easy to see through."""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np

from archerfish.request import SamplingParams

NEVER = -math.inf

LOGIT_EDGE = 1e-5
CHANCE_EDGE = 1e-5


class TooClose(Exception):
    """A token lies so near a threshold that rounding decides; either answer would be right."""


def keep_likeliest(row: Sequence[float], top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> list[float]:
    """min_p, then top_k, then top_p, each on what the one before left; equal tokens stay or go together."""
    kept = list(row)
    if min_p > 0:
        threshold = max(kept) + math.log(min_p)
        if min_p < 1 and any(abs(x - threshold) < LOGIT_EDGE * max(1.0, abs(threshold)) for x in kept):
            raise TooClose
        kept = [x if x >= threshold else NEVER for x in kept]
    if 0 < top_k < len(kept):
        threshold = sorted(kept, reverse=True)[top_k - 1]
        kept = [x if x >= threshold else NEVER for x in kept]
    if top_p < 1:
        allowed = _nucleus(kept, top_p)
        kept = [x if x in allowed else NEVER for x in kept]
    return kept


def _nucleus(row: Sequence[float], top_p: float) -> set[float]:
    """Logits of the smallest set of likeliest tokens whose probability reaches top_p."""
    mass: dict[float, float] = defaultdict(float)
    for logit, chance in zip(row, softmax(row), strict=True):
        mass[logit] += chance
    allowed: set[float] = set()
    before = 0.0
    for logit in sorted(mass, reverse=True):
        if allowed and abs(before - top_p) < CHANCE_EDGE:
            raise TooClose
        if not allowed or before < top_p:
            allowed.add(logit)
        before += mass[logit]
    return allowed


def softmax(row: Sequence[float]) -> list[float]:
    peak = max(row)
    weights = [math.exp(x - peak) if x > NEVER else 0.0 for x in row]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def penalize(
    row: Sequence[float], prompt: Sequence[int], written: Sequence[int], params: SamplingParams
) -> list[float]:
    out = list(row)
    for token in {*prompt, *written}:
        out[token] = (
            row[token] / params.repetition_penalty if row[token] > 0 else row[token] * params.repetition_penalty
        )
    for token in set(written):
        out[token] -= params.presence_penalty
    for token in written:
        out[token] -= params.frequency_penalty
    return out


def edit(
    row: Sequence[float], params: SamplingParams, barred: Collection[int], barred_until: int, position: int
) -> list[float]:
    """Bias, then allowed tokens, then tokens barred before a position. Sums round as float32 does."""
    out = [float(np.float32(x) + np.float32(params.logit_bias.get(token, 0.0))) for token, x in enumerate(row)]
    if params.allowed_token_ids is not None:
        out = [x if token in params.allowed_token_ids else NEVER for token, x in enumerate(out)]
    if params.min_tokens and position < barred_until:
        out = [NEVER if token in barred else x for token, x in enumerate(out)]
    return out


def log_softmax(row: Sequence[float]) -> list[float]:
    peak = max(row)
    total = peak + math.log(math.fsum(math.exp(x - peak) for x in row))
    return [x - total for x in row]
