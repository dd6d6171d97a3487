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
from archerfish.sampling.bad_words import BadWords
from archerfish.sampling.edits import LogitEdits
from archerfish.sampling.grammar import Grammars, Guessed
from archerfish.sampling.penalties import penalize

_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")

ROWS_AT_ONCE = 32
"""Rows that are drawn together: more would gain little, and each takes many copies of its logits."""


_NOTHING_GUESSED: Guessed = {}


class Draw(NamedTuple):
    tokens: list[int]
    logprobs: dict[int, TokenLogprobs]
    """By place in the step, for rows that asked."""
    failures: dict[int, str]
    """By place in the step, rows from which nothing can be drawn."""


class Sampler:
    """Holds each row's parameters; a row is set when a sequence takes it up."""

    def __init__(self, num_rows: int, draw: DrawOp, grammars: Grammars | None = None) -> None:
        """Without grammars, no row may ask for a form."""
        self._draw_op = draw
        self._grammars = grammars
        self._asked = np.zeros(num_rows, DRAW_ROW)
        """What each row is drawn by, but for the position."""
        self._penalties = {name: np.zeros(num_rows, np.float32) for name in _PENALTIES}
        self._has_penalties = np.zeros(num_rows, np.bool_)
        self._num_prompt = np.zeros(num_rows, np.int64)
        self._num_logprobs: dict[int, int] = {}
        """Rows that want log-probabilities, and how many."""
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
        """`written` is the part of the answer that there is already: after a preemption, not nothing."""
        temperature = 0.0 if params.is_greedy else params.temperature
        self._asked[row] = (seed, 0, temperature, params.top_p, params.min_p, params.top_k)
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

    def asked_alone(self, rows: Ints, positions: Ints) -> DrawRows | None:
        """What the next tokens of rows are drawn by, if that is all: None where something else is wanted of a row."""
        if self._num_logprobs and not self._num_logprobs.keys().isdisjoint(rows.tolist()):
            return None
        return self.asked_of_guesses(rows, positions)

    def asked_of_guesses(self, rows: Ints, positions: Ints) -> DrawRows | None:
        """The same of tokens whose log-probabilities nobody wants."""
        if self._has_penalties[rows].any():
            return None
        if (self._edits or self._grammars or self._bad_words) and any(map(self._is_bound, rows.tolist())):
            return None
        return self._asked_at(rows, positions)

    def _is_bound(self, row: int) -> bool:
        return row in self._edits or row in self._bad_words or self.has_form(row)

    def _asked_at(self, rows: Ints, positions: Ints) -> DrawRows:
        asked: DrawRows = self._asked[rows]
        asked["position"] = positions
        return asked

    def draw(
        self, logits: Tensor, rows: Ints, positions: Ints, history: Tensor, guessed: Guessed = _NOTHING_GUESSED
    ) -> Draw:
        """The token at `positions` of each row. history [all rows, longest] holds the tokens before it.

        A row may occur several times: after its last token, and after guesses. Which of the tokens are part of its
        answer is told by `wrote`.
        """
        whole = Draw([], {}, {})
        for first in range(0, len(rows), ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            of_some = {place - first: tokens for place, tokens in guessed.items() if first <= place < some.stop}
            part = self._draw_some(logits[some], rows[some], positions[some], history, of_some)
            whole.tokens.extend(part.tokens)
            whole.logprobs.update((first + place, entry) for place, entry in part.logprobs.items())
            whole.failures.update((first + place, reason) for place, reason in part.failures.items())
        return whole

    def probabilities(self, logits: Tensor, row: int, positions: Ints, history: Tensor, guessed: Guessed) -> Tensor:
        """What `draw` draws from, [positions, vocabulary] float64, at several positions of one row."""
        rows = np.full(len(positions), row)
        return probabilities(self._edited(logits, rows, positions, history, guessed), self._asked_at(rows, positions))

    def logprobs(self, logits: Tensor, row: int, tokens: Sequence[int]) -> list[TokenLogprobs] | None:
        """Of tokens that were chosen by logits [tokens, vocabulary] of a row; None if it did not ask."""
        count = self._num_logprobs.get(row)
        if count is None:
            return None
        return token_logprobs(logits, torch.tensor(tokens, device=logits.device), [count] * len(tokens))

    def has_form(self, row: int) -> bool:
        """Whether a row's answer has a form, so that what may be drawn depends on the guesses before it."""
        return self._grammars is not None and row in self._grammars

    def reads_history(self, row: int) -> bool:
        """Whether what a row draws depends on its tokens beyond their logits."""
        return bool(self._has_penalties[row]) or row in self._bad_words

    def wrote(self, row: int, tokens: Sequence[int]) -> None:
        """The row's answer goes on with these tokens."""
        if self._grammars is not None:
            self._grammars.advance(row, tokens)

    def _draw_some(self, logits: Tensor, rows: Ints, positions: Ints, history: Tensor, guessed: Guessed) -> Draw:
        alone = self.asked_alone(rows, positions)
        if alone is not None:
            drawn = self._draw_op(logits, alone)
            return Draw(drawn.tokens.tolist(), {}, _failures(drawn))
        edited = self._edited(logits, rows, positions, history, guessed)
        drawn = self._draw_op(edited, self._asked_at(rows, positions))
        failures = _failures(drawn)
        if self._grammars is not None:
            failures |= self._grammars.failures(rows)
        return Draw(drawn.tokens.tolist(), self._logprobs(logits, drawn.tokens, rows), failures)

    def _edited(self, logits: Tensor, rows: Ints, positions: Ints, history: Tensor, guessed: Guessed) -> Tensor:
        edited = self._bad_words.apply(self._edits.apply(logits, rows, positions), rows, positions, history)
        if self._grammars is not None:
            edited = self._grammars.mask(edited, rows, guessed)
        return self._penalize(edited, rows, positions, history)

    def _penalize(self, logits: Tensor, rows: Ints, positions: Ints, history: Tensor) -> Tensor:
        asking = np.flatnonzero(self._has_penalties[rows])
        if not len(asking):
            return logits
        repetition, presence, frequency = (values[rows] for values in self._penalties.values())
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

    def _logprobs(self, logits: Tensor, chosen: Tensor, rows: Ints) -> dict[int, TokenLogprobs]:
        wanted = {
            place: self._num_logprobs[row] for place, row in enumerate(rows.tolist()) if row in self._num_logprobs
        }
        if not wanted:
            return {}
        places = torch.tensor(list(wanted), device=logits.device)
        entries = token_logprobs(logits[places], chosen[places], list(wanted.values()))
        return dict(zip(wanted, entries, strict=True))


def _failures(drawn: Drawn) -> dict[int, str]:
    """By place, why nothing can be drawn there."""
    return {place: why_nothing(peak) for place, peak in enumerate(drawn.peaks.tolist()) if not math.isfinite(peak)}


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


def why_nothing(peak: float) -> str:
    if peak == -np.inf:
        return (
            "no token may be drawn: the form of the answer, allowed_token_ids, logit_bias and min_tokens together "
            "forbid every one"
        )
    return f"the model's logits are not finite ({peak}); the weights or the number format may be broken"
