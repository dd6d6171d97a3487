"""Rows of logits and parameters to draw with, and what is then to be drawn, by plain Python."""

import math

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from archerfish.ops.reference.noise import gumbel
from archerfish.ops.signatures import DRAW_ROW, DrawRows
from tests.sampling import naive

NEVER = -math.inf

# Halves: many tokens are then equally likely, as they are in real 16-bit logits.
LOGITS = st.one_of(st.integers(-4, 6).map(lambda x: x / 2), st.sampled_from([0.0, -0.0, NEVER, -80.0, 2.5]))
DRAW_PARAMS = st.builds(
    lambda **fields: fields,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 3, 9, 10**6]),
    top_p=st.sampled_from([1.0, 1.0, 1e-30, 0.3, 0.55, 0.93, 0.99]),
    min_p=st.sampled_from([0.0, 0.0, 1e-30, 0.11, 0.4, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**31),
)


def rows_of(*params: dict[str, float]) -> DrawRows:
    idle = {"top_p": 1.0, "temperature": 1.0}
    rows = np.zeros(len(params), DRAW_ROW)
    for row, one in zip(rows, params, strict=True):
        for name, value in (idle | one).items():
            row[name] = value
    return rows


def random_logits(seed: int, *shape: int, spread: float = 3.0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape) * spread).float()


def scores_of(logits: list[float], params: dict[str, float]) -> list[float]:
    """Return the scores whose largest is drawn; raises TooClose where rounding decides what the filters leave."""
    if params["temperature"] == 0.0:
        return logits
    scaled = [x / params["temperature"] for x in logits]
    filtered = naive.keep_likeliest(scaled, int(params["top_k"]), params["top_p"], params["min_p"])
    seed = torch.tensor([int(np.array(params["seed"], np.uint64).view(np.int64))])
    noises = gumbel(seed, torch.tensor([params["position"]]), torch.arange(len(logits)))[0]
    return [x + float(y) for x, y in zip(filtered, noises, strict=True)]
