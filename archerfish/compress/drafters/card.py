"""Writes the README.md of a trained drafter from its options and measurements."""

import textwrap
from dataclasses import dataclass

from archerfish.compress.drafters.measure import Score
from archerfish.compress.drafters.options import DrafterOptions

_KINDS = {
    "medusa": "Medusa heads: each predicts one position further ahead from the model's last hidden state",
    "eagle": "An EAGLE-3 head: one autoregressive layer over the model's hidden states",
    "draft_model": "A draft model: a smaller Llama with the same vocabulary",
}
_COLUMNS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFacts:
    """What the card says besides the options."""

    target: str
    num_parameters: int
    """Number of trained parameters."""
    num_training: int
    num_held_out: int
    num_tokens: int
    """Tokens of all samples."""
    num_steps: int
    score: Score


def write_card(options: DrafterOptions, facts: DrafterFacts) -> str:
    parts = [
        f"# Drafter for {facts.target}",
        _filled(
            f"{_KINDS[options.method]}. {facts.num_parameters:,} parameters were trained with `archerfish train-draft`."
        ),
        f"## Data\n\n{_filled(_data(options, facts))}",
        f"## Training\n\n{_filled(_training(options, facts))}",
        f"## Measured\n\n{_filled(_how_measured(facts))}\n\n{_table(facts.score)}",
    ]
    return "\n\n".join(parts) + "\n"


def _data(options: DrafterOptions, facts: DrafterFacts) -> str:
    source = (
        "after openings that it drew itself at temperature 1"
        if options.prompts is None
        else f"in answer to the prompts in {options.prompts}"
    )
    return (
        f"{facts.num_training + facts.num_held_out:,} texts of up to {options.length} tokens, {facts.num_tokens:,} "
        f"tokens in all, that {facts.target} wrote {source}: half of them greedy, the others at temperatures up to "
        f"1, seed {options.seed}. {facts.num_held_out:,} of them were held out."
    )


def _training(options: DrafterOptions, facts: DrafterFacts) -> str:
    restriction = "" if options.vocabulary is None else f" It drafts the {options.vocabulary:,} most frequent tokens."
    return (
        f"{facts.num_steps:,} steps of {options.batch} texts, AdamW, learning rate up to {options.learning_rate:g}. "
        f"The loss is the share of draft tokens that would be rejected, 1 - sum of min(p, q), plus "
        f"{options.divergence:g} of the Kullback-Leibler divergence, more of it in the first quarter.{restriction}"
    )


def _how_measured(facts: DrafterFacts) -> str:
    return (
        f"On the held-out texts, {facts.score.num_predictions:,} positions. Agreement: how often the likeliest draft "
        "token is the model's likeliest token. Acceptance: the mean of the sum of min(p, q) at temperature 1. Both are "
        "for draft tokens that follow accepted ones. Tokens per step: the expected number of accepted draft tokens and "
        "the token that the model draws after them, if a chain of this length is verified."
    )


def _table(score: Score) -> str:
    lines = [
        "| draft token | agreement | acceptance | tokens per step, greedy | at temperature 1 |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {number} | {depth.agreement:.1%} | {depth.acceptance:.1%} "
        f"| {depth.greedy_tokens:.2f} | {depth.sampled_tokens:.2f} |"
        for number, depth in enumerate(score.depths, 1)
    ]
    return "\n".join(lines)


def _filled(text: str) -> str:
    return textwrap.fill(text, _COLUMNS, break_long_words=False, break_on_hyphens=False)
