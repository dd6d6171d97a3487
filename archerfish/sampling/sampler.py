"""Draws the next token of every row of a step, each by its own parameters, without a loop over rows."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.ops.arrays import Ints
from archerfish.request import GREEDY_BELOW, SamplingParams, TokenLogprob, TokenLogprobs
from archerfish.sampling.edits import LogitEdits
from archerfish.sampling.filters import Candidates, keep_likeliest, likeliest_candidates, penalize
from archerfish.sampling.grammar import Grammars
from archerfish.sampling.noise import LARGEST_GAP, gumbel

_NUMBERS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")

ROWS_AT_ONCE = 32
"""Rows that are drawn together: more would gain little, and each takes many copies of its logits."""

_MOST_CANDIDATES = 1024
"""Sorting more of the likeliest tokens takes as long as noise for all of them."""


class Draw(NamedTuple):
    tokens: list[int]
    logprobs: dict[int, TokenLogprobs]
    """By place in the step, for rows that asked."""
    failures: dict[int, str]
    """By place in the step, rows from which nothing can be drawn."""


class Sampler:
    """Holds each row's parameters; a row is set when a sequence takes it up."""

    def __init__(self, num_rows: int, vocab_size: int, grammars: Grammars | None = None) -> None:
        """Without grammars, no row may ask for a form."""
        self._grammars = grammars
        self._numbers = {name: np.zeros(num_rows, np.float32) for name in _NUMBERS}
        self._seeds = np.zeros(num_rows, np.uint64)
        self._num_prompt = np.zeros(num_rows, np.int64)
        self._num_logprobs: dict[int, int] = {}
        """Rows that want log-probabilities, and how many."""
        self._edits = LogitEdits()
        self._vocab_size = vocab_size

    def set_row(
        self,
        row: int,
        params: SamplingParams,
        seed: int,
        num_prompt_tokens: int,
        stop_token_ids: tuple[int, ...],
        written: tuple[int, ...] = (),
    ) -> None:
        """`written` is the part of the answer that there is already: after a preemption, not nothing."""
        for name, values in self._numbers.items():
            values[row] = getattr(params, name)
        self._seeds[row] = seed
        self._num_prompt[row] = num_prompt_tokens
        self._num_logprobs.pop(row, None)
        if params.logprobs is not None:
            self._num_logprobs[row] = params.logprobs
        self._edits.set_row(row, params, stop_token_ids, num_prompt_tokens + params.min_tokens)
        if self._grammars is not None:
            self._grammars.set_row(row, params.structured, written)
        else:
            assert params.structured is None, "intake refuses this"

    def draw(self, logits: Tensor, rows: Ints, positions: Ints, history: Tensor) -> Draw:
        """The token at `positions` of each row. history [all rows, longest] holds the tokens before it."""
        whole = Draw([], {}, {})
        for first in range(0, len(rows), ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            part = self._draw_some(logits[some], rows[some], positions[some], history)
            whole.tokens.extend(part.tokens)
            whole.logprobs.update((first + place, entry) for place, entry in part.logprobs.items())
            whole.failures.update((first + place, reason) for place, reason in part.failures.items())
        return whole

    def _draw_some(self, logits: Tensor, rows: Ints, positions: Ints, history: Tensor) -> Draw:
        edited = self._edits.apply(logits, rows, positions)
        if self._grammars is not None:
            edited = self._grammars.mask(edited, rows)
        edited = self._penalize(edited, rows, positions, history)
        chosen = self._choose(edited, rows, positions)
        peaks = edited.amax(-1)
        failures = {}
        if not bool(torch.isfinite(peaks).all()):
            failures = {place: _why(peak) for place, peak in enumerate(peaks.tolist()) if not np.isfinite(peak)}
        tokens = chosen.tolist()
        if self._grammars is not None:
            failures |= self._grammars.failures(rows)
            self._grammars.advance(rows, tokens)
        return Draw(tokens, self._logprobs(logits, chosen, rows), failures)

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

    def _choose(self, logits: Tensor, rows: Ints, positions: Ints) -> Tensor:
        """Each row in the way that its own parameters ask for: neighbours must not change even a rounding."""
        greedy = self._numbers["temperature"][rows] < GREEDY_BELOW
        top_k = self._numbers["top_k"][rows]
        narrow = ~greedy & (top_k > 0) & (top_k <= _MOST_CANDIDATES)
        chosen = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        for asking, choose in (
            (greedy, _likeliest_token),
            (narrow, self._draw_narrow),
            (~greedy & ~narrow, self._draw_wide),
        ):
            if asking.all():
                return choose(logits, rows, positions)
            if asking.any():
                places = torch.from_numpy(np.flatnonzero(asking)).to(logits.device)
                chosen[places] = choose(logits[places], rows[asking], positions[asking])
        return chosen

    def _draw_narrow(self, logits: Tensor, rows: Ints, positions: Ints) -> Tensor:
        """For rows that keep a few tokens by top_k."""
        top_k = torch.from_numpy(self._numbers["top_k"][rows]).to(logits.device)
        top_p, min_p = self._filter("top_p", 1.0, logits, rows), self._filter("min_p", 0.0, logits, rows)
        candidates = likeliest_candidates(self._scale(logits, rows), top_k, top_p, min_p)
        return self._draw_candidates(candidates, rows, positions)

    def _draw_wide(self, logits: Tensor, rows: Ints, positions: Ints) -> Tensor:
        """For rows that may keep any number of tokens."""
        top_k, top_p, min_p = (
            self._filter(name, idle, logits, rows) for name, idle in (("top_k", 0.0), ("top_p", 1.0), ("min_p", 0.0))
        )
        kept = keep_likeliest(self._scale(logits, rows), top_k, top_p, min_p)
        # Noise cannot lift any other token over the likeliest one.
        num_possible = int((kept >= kept.amax(-1, keepdim=True) - LARGEST_GAP).sum(-1).max())
        if num_possible > _MOST_CANDIDATES:
            return self._add_noise(kept, torch.arange(self._vocab_size, device=kept.device), rows, positions).argmax(-1)
        tokens = kept.topk(max(1, num_possible), dim=-1).indices.sort(-1).values
        return self._draw_candidates(Candidates(kept.gather(1, tokens), tokens), rows, positions)

    def _scale(self, logits: Tensor, rows: Ints) -> Tensor:
        return logits / torch.from_numpy(self._numbers["temperature"][rows]).to(logits.device)[:, None]

    def _filter(self, name: str, idle: float, logits: Tensor, rows: Ints) -> Tensor | None:
        """The rows' values, or None if every row leaves the filter idle."""
        values = self._numbers[name][rows]
        return torch.from_numpy(values).to(logits.device) if (values != idle).any() else None

    def _draw_candidates(self, candidates: Candidates, rows: Ints, positions: Ints) -> Tensor:
        scores = self._add_noise(candidates.logits, candidates.tokens, rows, positions)
        return candidates.tokens.gather(1, scores.argmax(-1, keepdim=True))[:, 0]

    def _add_noise(self, logits: Tensor, tokens: Tensor, rows: Ints, positions: Ints) -> Tensor:
        seeds = torch.from_numpy(self._seeds[rows].view(np.int64)).to(logits.device)
        return gumbel(seeds, torch.from_numpy(positions).to(logits.device), tokens).add_(logits)

    def _logprobs(self, logits: Tensor, chosen: Tensor, rows: Ints) -> dict[int, TokenLogprobs]:
        wanted = {
            place: self._num_logprobs[row] for place, row in enumerate(rows.tolist()) if row in self._num_logprobs
        }
        if not wanted:
            return {}
        places = torch.tensor(list(wanted), device=logits.device)
        entries = token_logprobs(logits[places], chosen[places], list(wanted.values()))
        return dict(zip(wanted, entries, strict=True))


def _likeliest_token(logits: Tensor, *_: Ints) -> Tensor:
    return logits.argmax(-1)


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
        return (
            "no token may be drawn: the form of the answer, allowed_token_ids, logit_bias and min_tokens together "
            "forbid every one"
        )
    return f"the model's logits are not finite ({peak}); the weights or the number format may be broken"
