"""Draws the next token of every row of a step by its own parameters: edits, grammars, penalties, then the draw."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.ops.arrays import Ints
from archerfish.ops.reference.probabilities import probabilities
from archerfish.ops.signatures import DRAW_ROW, Drawn, DrawOp, DrawRows
from archerfish.request import SamplingParams, TokenLogprob, TokenLogprobs
from archerfish.sampling.logits_processors import BadWords, LogitEdits, penalize
from archerfish.sampling.row_grammars import DraftContext, RowGrammars

_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")

ROWS_AT_ONCE = 32
"""Rows that are drawn together: more would save little time, and each takes many copies of its logits."""


_NO_DRAFTS: DraftContext = {}


class DrawnTokens(NamedTuple):
    tokens: list[int]
    logprobs: dict[int, TokenLogprobs]
    """Log-probabilities by index in the step, for rows that requested them."""
    failures: dict[int, str]
    """Why nothing can be drawn from a row, by index in the step."""


class Sampler:
    """Holds each row's parameters; a row is set when a sequence takes it up."""

    def __init__(self, num_rows: int, draw: DrawOp, grammars: RowGrammars | None = None) -> None:
        """Without grammars, no row may ask for a form."""
        self._draw_op = draw
        self._grammars = grammars
        self._draw_params = np.zeros(num_rows, DRAW_ROW)
        """The draw's parameters of each row, except for the position."""
        self._penalties = {name: np.zeros(num_rows, np.float32) for name in _PENALTIES}
        self._has_penalties = np.zeros(num_rows, np.bool_)
        self._num_prompt = np.zeros(num_rows, np.int64)
        self._num_logprobs: dict[int, int] = {}
        """Rows that requested log-probabilities, and how many."""
        self._edits = LogitEdits()
        self._bad_words = BadWords()

    def set_row(
        self,
        row: int,
        params: SamplingParams,
        seed: int,
        num_prompt_tokens: int,
        stop_token_ids: tuple[int, ...],
        written: tuple[int, ...] = (),
    ) -> None:
        """Set the parameters of a sequence that takes up a row; after a preemption `written` is what its answer has."""
        temperature = 0.0 if params.is_greedy else params.temperature
        self._draw_params[row] = (seed, 0, temperature, params.top_p, params.min_p, params.top_k)
        for name, values in self._penalties.items():
            values[row] = getattr(params, name)
        self._has_penalties[row] = bool(
            params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty
        )
        self._num_prompt[row] = num_prompt_tokens
        self._num_logprobs.pop(row, None)
        if params.logprobs is not None:
            self._num_logprobs[row] = params.logprobs
        self._edits.set_row(row, params, stop_token_ids, num_prompt_tokens + params.min_tokens)
        self._bad_words.set_row(row, params, num_prompt_tokens)
        if self._grammars is not None:
            self._grammars.set_row(row, params.structured, written)
        else:
            assert params.structured is None, "processor refuses this"

    def plain_draws(self, rows: Ints, positions: Ints) -> DrawRows | None:
        """Return the draw's parameters, if rows need nothing but a draw; None where a row needs more."""
        if self._num_logprobs and not self._num_logprobs.keys().isdisjoint(rows.tolist()):
            return None
        return self.plain_draws_of_drafts(rows, positions)

    def plain_draws_of_drafts(self, rows: Ints, positions: Ints) -> DrawRows | None:
        """Return the same as `plain_draws`, ignoring log-probabilities, which draft tokens never report."""
        if self._has_penalties[rows].any():
            return None
        if (self._edits or self._grammars or self._bad_words) and any(map(self._is_bound, rows.tolist())):
            return None
        return self._draw_params_at(rows, positions)

    def _is_bound(self, row: int) -> bool:
        return row in self._edits or row in self._bad_words or self.has_grammar(row)

    def _draw_params_at(self, rows: Ints, positions: Ints) -> DrawRows:
        params: DrawRows = self._draw_params[rows]
        params["position"] = positions
        return params

    def draw(
        self, logits: Tensor, rows: Ints, positions: Ints, history: Tensor, drafted: DraftContext = _NO_DRAFTS
    ) -> DrawnTokens:
        """Draw the token at `positions` of each row. history [all rows, longest] holds the tokens before it.

        A row may occur several times: after its last token, and after draft tokens. `wrote` reports which of the
        tokens became part of its answer.
        """
        whole = DrawnTokens([], {}, {})
        for first in range(0, len(rows), ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            of_some = {index - first: tokens for index, tokens in drafted.items() if first <= index < some.stop}
            part = self._draw_some(logits[some], rows[some], positions[some], history, of_some)
            whole.tokens.extend(part.tokens)
            whole.logprobs.update((first + index, entry) for index, entry in part.logprobs.items())
            whole.failures.update((first + index, reason) for index, reason in part.failures.items())
        return whole

    def probabilities(
        self, logits: Tensor, row: int, positions: Ints, history: Tensor, drafted: DraftContext
    ) -> Tensor:
        """Return the distributions [positions, vocabulary] float64 that `draw` draws from at positions of one row."""
        rows = np.full(len(positions), row)
        return probabilities(
            self._edited(logits, rows, positions, history, drafted), self._draw_params_at(rows, positions)
        )

    def logprobs(self, logits: Tensor, row: int, tokens: Sequence[int]) -> list[TokenLogprobs] | None:
        """Return the log-probabilities of tokens under logits [tokens, vocabulary]; None if the row requested none."""
        count = self._num_logprobs.get(row)
        if count is None:
            return None
        return token_logprobs(logits, torch.tensor(tokens, device=logits.device), [count] * len(tokens))

    def has_grammar(self, row: int) -> bool:
        """Return whether a row has a grammar, so that its draws depend on the draft tokens before them."""
        return self._grammars is not None and row in self._grammars

    def reads_history(self, row: int) -> bool:
        """Return whether what a row draws depends on its tokens beyond their logits."""
        return bool(self._has_penalties[row]) or row in self._bad_words

    def wrote(self, row: int, tokens: Sequence[int]) -> None:
        """Report that these tokens became part of the row's answer."""
        if self._grammars is not None:
            self._grammars.advance(row, tokens)

    def _draw_some(
        self, logits: Tensor, rows: Ints, positions: Ints, history: Tensor, drafted: DraftContext
    ) -> DrawnTokens:
        alone = self.plain_draws(rows, positions)
        if alone is not None:
            drawn = self._draw_op(logits, alone)
            return DrawnTokens(drawn.tokens.tolist(), {}, _failures(drawn))
        edited = self._edited(logits, rows, positions, history, drafted)
        drawn = self._draw_op(edited, self._draw_params_at(rows, positions))
        failures = _failures(drawn)
        if self._grammars is not None:
            failures |= self._grammars.failures(rows)
        return DrawnTokens(drawn.tokens.tolist(), self._logprobs(logits, drawn.tokens, rows), failures)

    def _edited(self, logits: Tensor, rows: Ints, positions: Ints, history: Tensor, drafted: DraftContext) -> Tensor:
        edited = self._bad_words.apply(self._edits.apply(logits, rows, positions), rows, positions, history)
        if self._grammars is not None:
            edited = self._grammars.mask(edited, rows, drafted)
        return self._penalize(edited, rows, positions, history)

    def _penalize(self, logits: Tensor, rows: Ints, positions: Ints, history: Tensor) -> Tensor:
        penalized_rows = np.flatnonzero(self._has_penalties[rows])
        if not len(penalized_rows):
            return logits
        repetition, presence, frequency = (values[rows] for values in self._penalties.values())
        indices = torch.from_numpy(penalized_rows).to(logits.device)
        longest = int(positions[penalized_rows].max())

        def of(values: "np.ndarray[tuple[int], np.dtype[np.generic]]") -> Tensor:
            return torch.from_numpy(values[penalized_rows]).to(logits.device)

        penalized = penalize(
            logits[indices],
            history[torch.from_numpy(rows[penalized_rows]).to(history.device), :longest].to(logits.device, torch.int64),
            of(positions),
            of(self._num_prompt[rows]),
            of(repetition),
            of(presence),
            of(frequency),
        )
        return logits.index_copy(0, indices, penalized)

    def _logprobs(self, logits: Tensor, chosen: Tensor, rows: Ints) -> dict[int, TokenLogprobs]:
        counts = {
            index: self._num_logprobs[row] for index, row in enumerate(rows.tolist()) if row in self._num_logprobs
        }
        if not counts:
            return {}
        indices = torch.tensor(list(counts), device=logits.device)
        entries = token_logprobs(logits[indices], chosen[indices], list(counts.values()))
        return dict(zip(counts, entries, strict=True))


def _failures(drawn: Drawn) -> dict[int, str]:
    """Return why nothing can be drawn, by index."""
    return {index: why_no_token(peak) for index, peak in enumerate(drawn.peaks.tolist()) if not math.isfinite(peak)}


def token_logprobs(logits: Tensor, tokens: Tensor, num_top: list[int]) -> list[TokenLogprobs]:
    """Return how likely each token was under its row's unchanged logits, with that row's likeliest tokens."""
    logprobs = torch.log_softmax(logits, dim=-1)
    own = logprobs.gather(1, tokens[:, None])
    ranks = (logprobs > own).sum(-1) + 1
    columns = (tokens.tolist(), own[:, 0].tolist(), ranks.tolist(), _likeliest(logprobs, num_top))
    return [TokenLogprobs(*entry) for entry in zip(*columns, strict=True)]


def _likeliest(logprobs: Tensor, counts: list[int]) -> list[list[TokenLogprob]]:
    """Return the likeliest tokens of each row. Of equals the lower id comes first, whatever other rows request."""
    widest = max(counts)
    if not widest:
        return [[] for _ in counts]
    likeliest = []
    for row, count, values in zip(logprobs, counts, logprobs.topk(widest, dim=-1).values, strict=True):
        ids = torch.nonzero(row >= values[count - 1])[:, 0] if count else row.new_zeros(0, dtype=torch.int64)
        candidates = [TokenLogprob(*pair) for pair in zip(ids.tolist(), row[ids].tolist(), strict=True)]
        likeliest.append(sorted(candidates, key=lambda entry: (-entry.logprob, entry.token_id))[:count])
    return likeliest


def why_no_token(peak: float) -> str:
    if peak == -np.inf:
        return (
            "no token may be drawn: the response format, allowed_token_ids, logit_bias and min_tokens together "
            "forbid every one"
        )
    return f"the model's logits are not finite ({peak}); the weights or the number format may be broken"
