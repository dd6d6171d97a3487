"""Draws the next token of every row of a step, each by its own parameters, without a loop over rows."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.request import GREEDY_BELOW, SamplingParams, TokenLogprob, TokenLogprobs
from archerfish.sampling.edits import Ints, LogitEdits
from archerfish.sampling.filters import keep_likeliest, penalize
from archerfish.sampling.noise import gumbel

_NUMBERS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


class Draw(NamedTuple):
    tokens: list[int]
    logprobs: dict[int, TokenLogprobs]
    """By place in the step, for rows that asked."""
    failures: dict[int, str]
    """By place in the step, rows from which nothing can be drawn."""


class Sampler:
    """Holds each row's parameters; a row is set when a sequence takes it up."""

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self._numbers = {name: np.zeros(num_rows, np.float32) for name in _NUMBERS}
        self._seeds = np.zeros(num_rows, np.uint64)
        self._num_prompt = np.zeros(num_rows, np.int64)
        self._num_logprobs = np.full(num_rows, -1, np.int64)
        """-1 where none are wanted."""
        self._edits = LogitEdits(num_rows)
        self._vocab_size = vocab_size

    def set_row(
        self, row: int, params: SamplingParams, seed: int, num_prompt_tokens: int, stop_token_ids: tuple[int, ...]
    ) -> None:
        for name, values in self._numbers.items():
            values[row] = getattr(params, name)
        self._seeds[row] = seed
        self._num_prompt[row] = num_prompt_tokens
        self._num_logprobs[row] = -1 if params.logprobs is None else params.logprobs
        self._edits.set_row(row, params, stop_token_ids, num_prompt_tokens + params.min_tokens)

    def draw(self, logits: Tensor, rows: Ints, positions: Ints, history: Tensor) -> Draw:
        """The token at `positions` of each row. history [all rows, longest] holds the tokens before it."""
        edited = self._edits.apply(logits, rows, positions)
        edited = self._penalize(edited, rows, positions, history)
        chosen = edited.argmax(-1)
        random = np.flatnonzero(self._numbers["temperature"][rows] >= GREEDY_BELOW)
        if len(random):
            places = torch.from_numpy(random).to(logits.device)
            chosen[places] = self._draw_random(edited[places], rows[random], positions[random])
        peaks = edited.amax(-1)
        failures = {}
        if not bool(torch.isfinite(peaks).all()):
            failures = {place: _why(peak) for place, peak in enumerate(peaks.tolist()) if not np.isfinite(peak)}
        return Draw(chosen.tolist(), self._logprobs(logits, chosen, rows), failures)

    def _penalize(self, logits: Tensor, rows: Ints, positions: Ints, history: Tensor) -> Tensor:
        repetition, presence, frequency = (self._numbers[name][rows] for name in _NUMBERS[4:])
        asking = np.flatnonzero((repetition != 1.0) | (presence != 0.0) | (frequency != 0.0))
        if not len(asking):
            return logits
        places = torch.from_numpy(asking).to(logits.device)
        longest = int(positions[asking].max())

        def of(values: "np.ndarray[tuple[int], np.dtype[np.generic]]") -> Tensor:
            return torch.from_numpy(values[asking]).to(logits.device)

        penalized = penalize(
            logits[places],
            history[torch.from_numpy(rows[asking]).to(history.device), :longest].to(logits.device, torch.int64),
            of(positions),
            of(self._num_prompt[rows]),
            of(repetition),
            of(presence),
            of(frequency),
        )
        return logits.index_copy(0, places, penalized)

    def _draw_random(self, logits: Tensor, rows: Ints, positions: Ints) -> Tensor:
        def of(name: str, idle: float) -> Tensor | None:
            """The rows' values, or None if every row leaves the filter idle."""
            values = self._numbers[name][rows]
            return torch.from_numpy(values).to(logits.device) if (values != idle).any() else None

        temperature = torch.from_numpy(self._numbers["temperature"][rows]).to(logits.device)
        scaled = logits / temperature[:, None]
        kept = keep_likeliest(scaled, of("top_k", 0.0), of("top_p", 1.0), of("min_p", 0.0))
        seeds = torch.from_numpy(self._seeds[rows].view(np.int64)).to(logits.device)
        where = torch.from_numpy(positions).to(logits.device)
        tokens = torch.arange(self._vocab_size, device=logits.device)
        return (kept + gumbel(seeds, where, tokens)).argmax(-1)

    def _logprobs(self, logits: Tensor, chosen: Tensor, rows: Ints) -> dict[int, TokenLogprobs]:
        wanted = self._num_logprobs[rows]
        asking = np.flatnonzero(wanted >= 0)
        if not len(asking):
            return {}
        places = torch.from_numpy(asking).to(logits.device)
        entries = token_logprobs(logits[places], chosen[places], wanted[asking].tolist())
        return dict(zip(asking.tolist(), entries, strict=True))


def token_logprobs(logits: Tensor, tokens: Tensor, num_top: list[int]) -> list[TokenLogprobs]:
    """How likely each token was under its row's unchanged logits, with that row's likeliest ones."""
    logprobs = torch.log_softmax(logits, dim=-1)
    own = logprobs.gather(1, tokens[:, None])
    ranks = (logprobs > own).sum(-1) + 1
    columns = (tokens.tolist(), own[:, 0].tolist(), ranks.tolist(), _likeliest(logprobs, num_top))
    return [TokenLogprobs(*entry) for entry in zip(*columns, strict=True)]


def _likeliest(logprobs: Tensor, counts: list[int]) -> list[list[TokenLogprob]]:
    """The likeliest tokens of each row. Of equally likely ones the lower id comes first, whatever other rows ask."""
    widest = max(counts)
    if not widest:
        return [[] for _ in counts]
    found = []
    for row, count, values in zip(logprobs, counts, logprobs.topk(widest, dim=-1).values, strict=True):
        ids = torch.nonzero(row >= values[count - 1])[:, 0] if count else row.new_zeros(0, dtype=torch.int64)
        candidates = [TokenLogprob(*pair) for pair in zip(ids.tolist(), row[ids].tolist(), strict=True)]
        found.append(sorted(candidates, key=lambda one: (-one.logprob, one.token_id))[:count])
    return found


def _why(peak: float) -> str:
    if peak == -np.inf:
        return "no token may be drawn: allowed_token_ids, logit_bias and min_tokens together forbid every one"
    return f"the model's logits are not finite ({peak}); the weights or the number format may be broken"
