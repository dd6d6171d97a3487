"""README.md of what was trained, from what was measured. Knows no tensor."""

import textwrap
from dataclasses import dataclass

from archerfish.compress.drafters.measure import Score
from archerfish.compress.drafters.options import DrafterOptions

_KINDS = {
    "medusa": "Medusa heads: each guesses one place further ahead from the model's last state",
    "eagle": "An EAGLE-3 head: one layer that goes on by itself from states of the model",
    "draft_model": "A draft model: a smaller Llama of the same vocabulary that runs ahead",
}
_COLUMNS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFacts:
    """What the card tells beside the options."""

    target: str
    num_parameters: int
    """That were trained."""
    num_training: int
    num_held_out: int
    num_tokens: int
    """Of all samples."""
    num_steps: int
    score: Score


def write_card(options: DrafterOptions, facts: DrafterFacts) -> str:
    parts = [
        f"# Guesses for {facts.target}",
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
        "after beginnings that it drew itself at temperature 1"
        if options.prompts is None
        else f"in answer to the prompts in {options.prompts}"
    )
    return (
        f"{facts.num_training + facts.num_held_out:,} texts of up to {options.length} tokens, {facts.num_tokens:,} "
        f"tokens in all, that {facts.target} wrote {source}: half of them greedy, the others at temperatures up to "
        f"1, seed {options.seed}. {facts.num_held_out:,} of them were held out."
    )


def _training(options: DrafterOptions, facts: DrafterFacts) -> str:
    guessable = "" if options.vocabulary is None else f" It can guess the {options.vocabulary:,} most frequent tokens."
    return (
        f"{facts.num_steps:,} steps of {options.batch} texts, AdamW, learning rate up to {options.learning_rate:g}. "
        f"The loss is the share of guesses that would be refused, 1 - sum of min(p, q), with a share of "
        f"{options.divergence:g} of the Kullback-Leibler divergence, and more of it in the first quarter.{guessable}"
    )


def _how_measured(facts: DrafterFacts) -> str:
    return (
        f"On the held-out texts, {facts.score.num_guesses:,} places. Agreement: how often the likeliest guess is the "
        "model's likeliest token. Acceptance: the mean of the sum of min(p, q) at temperature 1. Both for guesses "
        "behind right ones. Tokens a step: expected if so many guesses are checked one after the other, those that "
        "stand and the one that the model draws behind them, greedy and at temperature 1."
    )


def _table(score: Score) -> str:
    lines = ["| guess | agreement | acceptance | tokens a step, greedy | at temperature 1 |", "|---|---|---|---|---|"]
    lines += [
        f"| {number} | {one.agreement:.1%} | {one.acceptance:.1%} "
        f"| {one.greedy_tokens:.2f} | {one.sampled_tokens:.2f} |"
        for number, one in enumerate(score.depths, 1)
    ]
    return "\n".join(lines)


def _filled(text: str) -> str:
    return textwrap.fill(text, _COLUMNS, break_long_words=False, break_on_hyphens=False)
