"""Verifies the drafts of a step, each row's by the rule that its request chose.

By `coupled` a draft token is accepted if it equals the token that is sampled at its position. The other two rules look
at distributions: those of the row's processed logits, after grammars, penalties and filters, so that no token is
accepted that any of these excludes. Rows without a draft are sampled as usual, whatever their rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from archerfish.ops.arrays import Ints
from archerfish.request import TokenLogprobs, Verification
from archerfish.sampling.sampler import DrawnTokens, Sampler
from archerfish.scheduling.plan import SequenceStart
from archerfish.speculation.draft import Draft
from archerfish.speculation.verification.rng import SeededVerificationRng, VerificationRng
from archerfish.speculation.verification.rules import AcceptedPath, TypicalAcceptance, coupled, rejection


@dataclass(frozen=True, slots=True)
class VerificationConfig:
    """The rule for requests that choose none, and the thresholds of `typical`."""

    verification: Verification = "coupled"
    typical: TypicalAcceptance = field(default_factory=TypicalAcceptance)


class DraftedRow(NamedTuple):
    """A row that samples in a step, and its draft, which may be empty."""

    row: int
    draft: Draft


class SampleInputs(NamedTuple):
    """The inputs of sampling in a step: for each row after its last token, then after each node of its draft."""

    logits: Tensor
    """[samples, vocabulary]"""
    rows: Ints
    positions: Ints
    history: Tensor
    """[all rows, max length] the rows' tokens, with the draft tokens of chains."""

    def slice(self, first: int, count: int) -> "SampleInputs":
        part = slice(first, first + count)
        return SampleInputs(self.logits[part], self.rows[part], self.positions[part], self.history)


class VerifiedTokens(NamedTuple):
    """The tokens that a row continues with."""

    path: list[int]
    """The accepted nodes of its draft."""
    tokens: list[int]
    """The accepted tokens, and the one that follows them."""
    sampled: list[int]
    """Tokens for the proposer to observe: one after the row's last token, and one after each node."""
    logprobs: list[TokenLogprobs] | None = None
    failure: str | None = None
    """Why the row cannot continue."""


class Verifier:
    """Samples a step's tokens and decides which draft tokens are accepted."""

    def __init__(self, sampler: Sampler, config: VerificationConfig) -> None:
        self._sampler = sampler
        self._config = config
        self._rules: dict[int, Verification] = {}
        """Rules of rows whose rule is not coupled."""
        self._seeds: dict[int, int] = {}
        """Seeds of these rows."""

    def start(self, start: SequenceStart) -> None:
        """Begin a sequence on its row."""
        params = start.params.speculation
        rule = params.verification if params is not None and params.verification else self._config.verification
        self._rules.pop(start.row, None)
        if rule != "coupled":
            self._rules[start.row], self._seeds[start.row] = rule, start.seed

    def uses_rejection(self, row: int) -> bool:
        """Whether the row's rule needs the distributions that draft tokens were sampled from."""
        return self._rules.get(row) == "rejection"

    def verify(self, inputs: SampleInputs, rows: Sequence[DraftedRow]) -> list[VerifiedTokens]:
        """Verify the draft of each row, in the order of the samples."""
        paths = self._grammar_paths(rows)
        draw = self._sampler.draw(*inputs, paths)
        verified, first = [], 0
        for drafted in rows:
            count = 1 + len(drafted.draft)
            if len(drafted.draft) and drafted.row in self._rules:
                own = {index - first: path for index, path in paths.items() if first <= index < first + count}
                tokens = self._by_distribution(drafted, inputs.slice(first, count), own)
            else:
                tokens = _coupled(drafted.draft, draw, first)
            if draw.failures:
                tokens = tokens._replace(failure=_failure(draw.failures, first, tokens.path))
            verified.append(tokens)
            first += count
        return verified

    def _grammar_paths(self, rows: Sequence[DraftedRow]) -> dict[int, tuple[int, ...]]:
        """Return by sample the draft tokens before it, of rows with a grammar."""
        paths, first = {}, 0
        for row, draft in rows:
            if self._sampler.has_grammar(row):
                for node in range(len(draft)):
                    paths[first + 1 + node] = tuple(draft.tokens[ancestor] for ancestor in draft.path(node))
            first += 1 + len(draft)
        return paths

    def _by_distribution(
        self, drafted: DraftedRow, inputs: SampleInputs, paths: dict[int, tuple[int, ...]]
    ) -> VerifiedTokens:
        row, draft = drafted
        target = self._sampler.probabilities(inputs.logits, row, inputs.positions, inputs.history, paths)
        rng = SeededVerificationRng(self._seeds[row], int(inputs.positions[0]))
        path, token = self._decide(self._rules[row], draft, target, rng)
        tokens = [*(draft.tokens[node] for node in path), token]
        # Not the samples: drafts made of these would share noise with what is sampled at their positions later on.
        likeliest = target.argmax(-1).tolist()
        logprobs = self._sampler.logprobs(inputs.logits[_sample_indices(path)], row, tokens)
        return VerifiedTokens(path, tokens, likeliest, logprobs)

    def _decide(self, rule: Verification, draft: Draft, target: Tensor, rng: VerificationRng) -> AcceptedPath:
        if rule == "typical":
            return self._config.typical(draft, target, rng)
        return rejection(draft, target, _proposals(draft, target), rng)


def _coupled(draft: Draft, draw: DrawnTokens, first: int) -> VerifiedTokens:
    sampled = draw.tokens[first : first + 1 + len(draft)]
    path, token = coupled(draft, sampled)
    logprobs = [draw.logprobs[first + index] for index in _sample_indices(path)] if first in draw.logprobs else None
    return VerifiedTokens(path, [*(draft.tokens[node] for node in path), token], sampled, logprobs)


def _sample_indices(path: list[int]) -> list[int]:
    """Return the index of each resulting token among the row's own samples."""
    return [0, *(1 + node for node in path)]


def _failure(failures: dict[int, str], first: int, path: list[int]) -> str | None:
    """Return why the first of the resulting tokens that could not be sampled failed."""
    indices = [first + index for index in _sample_indices(path)]
    return next((failures[index] for index in indices if index in failures), None)


def _proposals(draft: Draft, target: Tensor) -> Tensor:
    """Return the distributions that the nodes were sampled from; a single 1 for each if they are certain."""
    if draft.proposals is not None:
        assert isinstance(draft.proposals, Tensor), "distributions are tensors"
        return draft.proposals.to(target)
    tokens = torch.tensor(draft.tokens, device=target.device)[:, None]
    return torch.zeros_like(target[1:]).scatter_(1, tokens, 1.0)
