"""Judges the guesses of a step, each row's by the rule it asked for. Knows drafts, draws, distributions; not plans.

A guess stands by `coupled` if it is the token that was drawn at its place. The other two rules look at distributions:
those of the row's edited logits, after grammars, penalties and filters, so that a guess which any of these excludes
cannot stand. Rows for which nothing was guessed are drawn as ever, whatever their rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from archerfish.ops.arrays import Ints
from archerfish.request import TokenLogprobs, Verification
from archerfish.sampling.sampler import Draw, Sampler
from archerfish.scheduling.plan import SequenceStart
from archerfish.speculation.draft import Draft
from archerfish.speculation.verification.rng import Choices, SeededChoices
from archerfish.speculation.verification.rules import Typical, Verdict, coupled, rejection


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for requests that say nothing."""

    verification: Verification = "coupled"
    typical: Typical = field(default_factory=Typical)


class Guesses(NamedTuple):
    """What was guessed for one row that draws a token; an empty draft, if nothing was."""

    row: int
    draft: Draft


class Drawing(NamedTuple):
    """Where tokens are drawn in a step: for each row after its last token, then after each of its guesses."""

    logits: Tensor
    """[draws, vocabulary]"""
    rows: Ints
    positions: Ints
    history: Tensor
    """[all rows, longest]: the tokens of rows, guesses of chains among them."""

    def part(self, first: int, count: int) -> "Drawing":
        some = slice(first, first + count)
        return Drawing(self.logits[some], self.rows[some], self.positions[some], self.history)


class Outcome(NamedTuple):
    """What a row goes on with."""

    path: list[int]
    """The guesses that stand."""
    tokens: list[int]
    """These, and the one that follows."""
    drawn: list[int]
    """What the proposer is told: a token after the row's last one, and after each guess."""
    logprobs: list[TokenLogprobs] | None = None
    failure: str | None = None
    """Why the row cannot go on."""


class Verifier:
    def __init__(self, sampler: Sampler, rules: Rules) -> None:
        self._sampler = sampler
        self._rules = rules
        self._others: dict[int, Verification] = {}
        """Rows whose rule is not coupled."""
        self._seeds: dict[int, int] = {}
        """Of these."""

    def start(self, start: SequenceStart) -> None:
        """A sequence takes up a row."""
        asked = start.params.speculation
        rule = asked.verification if asked is not None and asked.verification else self._rules.verification
        self._others.pop(start.row, None)
        if rule != "coupled":
            self._others[start.row], self._seeds[start.row] = rule, start.seed

    def rejects(self, row: int) -> bool:
        """Whether it matters what the row's guesses were drawn from."""
        return self._others.get(row) == "rejection"

    def verify(self, drawing: Drawing, guesses: Sequence[Guesses]) -> list[Outcome]:
        """What becomes of each row's guesses, which are told in the order of the draws."""
        paths = self._paths(guesses)
        draw = self._sampler.draw(*drawing, paths)
        outcomes, first = [], 0
        for one in guesses:
            count = 1 + len(one.draft)
            if len(one.draft) and one.row in self._others:
                own = {place - first: path for place, path in paths.items() if first <= place < first + count}
                outcome = self._by_distribution(one, drawing.part(first, count), own)
            else:
                outcome = _coupled(one.draft, draw, first)
            if draw.failures:
                outcome = outcome._replace(failure=_failure(draw.failures, first, outcome.path))
            outcomes.append(outcome)
            first += count
        return outcomes

    def _paths(self, guesses: Sequence[Guesses]) -> dict[int, tuple[int, ...]]:
        """By place among the draws, the guesses up to it, of rows for which they matter."""
        found, first = {}, 0
        for row, draft in guesses:
            if self._sampler.has_form(row):
                for node in range(len(draft)):
                    found[first + 1 + node] = tuple(draft.tokens[one] for one in draft.path(node))
            first += 1 + len(draft)
        return found

    def _by_distribution(self, guesses: Guesses, drawing: Drawing, paths: dict[int, tuple[int, ...]]) -> Outcome:
        row, draft = guesses
        target = self._sampler.probabilities(drawing.logits, row, drawing.positions, drawing.history, paths)
        choices = SeededChoices(self._seeds[row], int(drawing.positions[0]))
        path, token = self._judge(self._others[row], draft, target, choices)
        tokens = [*(draft.tokens[node] for node in path), token]
        # Not the draws: guesses made of these would share noise with what is drawn at their positions later on.
        likeliest = target.argmax(-1).tolist()
        return Outcome(path, tokens, likeliest, self._sampler.logprobs(drawing.logits[_told(path)], row, tokens))

    def _judge(self, rule: Verification, draft: Draft, target: Tensor, choices: Choices) -> Verdict:
        if rule == "typical":
            return self._rules.typical(draft, target, choices)
        return rejection(draft, target, _proposals(draft, target), choices)


def _coupled(draft: Draft, draw: Draw, first: int) -> Outcome:
    drawn = draw.tokens[first : first + 1 + len(draft)]
    path, token = coupled(draft, drawn)
    logprobs = [draw.logprobs[first + place] for place in _told(path)] if first in draw.logprobs else None
    return Outcome(path, [*(draft.tokens[node] for node in path), token], drawn, logprobs)


def _told(path: list[int]) -> list[int]:
    """Where each token of an outcome was drawn, among the row's own draws."""
    return [0, *(1 + node for node in path)]


def _failure(failures: dict[int, str], first: int, path: list[int]) -> str | None:
    """Of the first place at which nothing could be drawn."""
    places = [first + place for place in _told(path)]
    return next((failures[place] for place in places if place in failures), None)


def _proposals(draft: Draft, target: Tensor) -> Tensor:
    """What each guess was drawn from; a single 1 for each where none was."""
    if draft.proposals is not None:
        assert isinstance(draft.proposals, Tensor), "distributions are tensors"
        return draft.proposals.to(target)
    tokens = torch.tensor(draft.tokens, device=target.device)[:, None]
    return torch.zeros_like(target[1:]).scatter_(1, tokens, 1.0)
