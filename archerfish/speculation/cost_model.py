"""How many draft tokens of each sequence are worth verifying: what they will probably save against what they will cost.

A draft token is worth its chance to be accepted times what a token costs; it costs what one more token adds to the
step, and what it takes to propose it. All of that is learned from the past, so the choice says nothing about the
samples to come.

What a token costs depends on the draft tokens that are chosen: with more of them tokens come cheaper, and the next one
is worth less. So the number is chosen that makes all tokens of the step cheapest.
"""

from collections.abc import Sequence
from typing import NamedTuple

from archerfish.speculation.constants import CONSTANTS
from archerfish.speculation.step_latency import StepLatencyModel


class PlannedStep(NamedTuple):
    """A step without draft tokens."""

    num_tokens: int
    num_sampled: int
    """Sequences for which it samples a token."""


class DraftOffer(NamedTuple):
    """Draft tokens that exist for a row, or could be proposed."""

    probabilities: Sequence[float]
    """The chance that each is accepted together with all its ancestors; they never rise."""
    num_uncomputed: float = 0.0
    """Tokens, or a share of them, that a drafter must compute first. 0: the draft exists already, at no cost."""
    width: int = 1
    """Tokens that each depth adds to the step."""
    value: float = 1.0
    """Value of a token written ahead for this row, as a share of what tokens cost."""
    is_trial: bool = False
    """A few depths are verified, whether they pay or not: too little is known of the drafter."""


class SpeculationCostModel:
    """Chooses draft lengths by latencies that are learned from the steps that were run.

    One model serves steps of about as many sequences: eight tokens of one sequence take less than two of each of four.
    """

    def __init__(self) -> None:
        self.plain = StepLatencyModel()
        """Steps for which no drafts were considered."""
        self.speculative = StepLatencyModel()
        """Steps for which drafts were considered, from one to the next, with proposing, but without drafter passes."""
        self.drafter_steps = StepLatencyModel()
        """Steps with drafts of a drafter, without its passes: its weights displaced the model's from caches.
        Until there was one, they are assumed to be like other speculative steps."""
        self.drafter_passes = StepLatencyModel()
        """Passes of the drafter, where there is one."""
        self.margin, self.drafter_margin = CONSTANTS.margin, CONSTANTS.drafter_margin
        self._worth = self._taken = 0.0
        """What the tokens of recent steps would have taken without speculation, and what they took, in plain steps."""
        self._num_refused = 0
        """Choices of no draft token since one was chosen."""

    def expect_step(self, num_tokens: int, seconds: float) -> None:
        """Assume a latency of all kinds of steps from a trial at the start."""
        for latency in (self.speculative, self.drafter_steps, self.plain):
            latency.expect(num_tokens, seconds)

    def for_other_batches(self) -> "SpeculationCostModel":
        """Return a model for steps of other numbers of sequences, with nothing measured but passes of the drafter."""
        other = SpeculationCostModel()
        other.margin, other.drafter_margin = self.margin, self.drafter_margin
        other.plain, other.speculative = self.plain.unmeasured(), self.speculative.unmeasured()
        other.drafter_steps, other.drafter_passes = self.drafter_steps.unmeasured(), self.drafter_passes
        return other

    def __bool__(self) -> bool:
        """Whether anything is known of steps."""
        return bool(self.plain or self.speculative or self.drafter_steps)

    def step_seconds(self, num_tokens: int) -> float:
        """Return the latency of a plain step; until one was seen, that of a step with drafts."""
        return (self.plain or self.speculative or self.drafter_steps).seconds(num_tokens)

    def verifying(self, *, is_drafted: bool) -> StepLatencyModel:
        """Return the latencies of steps that verify drafts, by a drafter or without one."""
        return self.drafter_steps if is_drafted and self.drafter_steps else self.speculative

    def extra_steps(self, step: PlannedStep, num_tokens: int, drafting_seconds: float) -> float:
        """Return what a step of `num_tokens`, drafts included, takes more than the planned one, in such steps."""
        added, latency = drafting_seconds, self.verifying(is_drafted=drafting_seconds > 0)
        if latency:
            # Prompts are left out: what steps of thousands of tokens take is not known well enough to compare.
            num_sampled = step.num_sampled
            added += latency.seconds(num_sampled + num_tokens - step.num_tokens) - self.step_seconds(num_sampled)
        plain = self.step_seconds(step.num_sampled)
        return added / plain if plain else 0.0  # A coarse clock may not see it.

    @property
    def token_price(self) -> float:
        """Recent cost of tokens as a share of their cost without speculation. A drafter's tokens save no more: where
        other methods make tokens cheap, they would have come as cheaply later."""
        prior = CONSTANTS.price_prior_steps
        return min(1.0, max(0.0, self._taken + prior) / (self._worth + prior))

    def record_steps(self, num_steps: float, worth: float, taken: float) -> None:
        """Record what the last steps were worth and took, in plain steps."""
        decay = CONSTANTS.price_decay**num_steps
        self._worth, self._taken = decay * self._worth + worth, decay * self._taken + taken

    def speedup(self, acceptance_rate: float, num_draft_tokens: int, *, is_drafted: bool) -> float:
        """Return the classical estimate for one sequence: its tokens per time with a fixed draft length, over without.

        Each draft token is accepted at the same rate, given that the one before it was.
        """
        num_tokens = 1 + sum(acceptance_rate**depth for depth in range(1, num_draft_tokens + 1))
        seconds = self.verifying(is_drafted=is_drafted).seconds(1 + num_draft_tokens)
        if is_drafted:
            # The drafter first computes what the last step wrote, which is 2 tokens without its own accepted ones.
            seconds += self.drafter_passes.seconds(2) + (num_draft_tokens - 1) * self.drafter_passes.seconds(1)
        return num_tokens * self.step_seconds(1) / seconds

    def gain(self, offer: DraftOffer) -> float:
        """Return the tokens that an offer gains, at the number of draft tokens that gains most, less what drafting
        costs, in tokens. It compares the offers of several methods for a row."""
        if not offer.num_uncomputed or not self.drafter_passes or not self.speculative:
            return sum(offer.probabilities)
        first, further = self.drafter_passes.seconds(offer.num_uncomputed), self.drafter_passes.seconds(1)
        token, margin, price = self.step_seconds(1), self.drafter_margin, self.token_price
        slowdown = max(0.0, self.verifying(is_drafted=True).seconds(2) - self.speculative.seconds(2))
        gained = best = -margin * (first + slowdown) / token
        for depth, probability in enumerate(offer.probabilities):
            gained += price * probability - (margin * further / token if depth else 0.0)
            best = max(best, gained)
        return best

    def choose_lengths(self, step: PlannedStep, offers: Sequence[DraftOffer]) -> list[int]:
        """Return how many depths of each offer to verify."""
        if not self.speculative or not step.num_sampled:
            return [min(1, len(offer.probabilities)) for offer in offers]
        price = self.token_price
        # Most valuable first; an offer's own are in order by themselves, since probabilities only fall along it.
        ranked = sorted(
            [
                (offer.value * probability * (price if offer.num_uncomputed else 1.0), -depth, index)
                for index, offer in enumerate(offers)
                for depth, probability in enumerate(offer.probabilities, 1)
            ],
            reverse=True,
        )
        # Prompts in the same step are left out: what thousands of tokens take is not known well enough to compare.
        drafting, plain = _DraftingCost(self.drafter_passes, offers), self.step_seconds(step.num_sampled)
        num_tokens, num_expected = step.num_sampled, float(step.num_sampled)
        cheapest, count = plain / num_expected, 0
        latency, margin = self.speculative, self.margin
        for number, (value, depth, index) in enumerate(ranked, 1):
            num_tokens += offers[index].width
            num_expected += value
            if offers[index].num_uncomputed:
                drafting.add(index, -depth)
                latency, margin = self.verifying(is_drafted=True), self.drafter_margin
            added = latency.seconds(num_tokens) - plain + drafting.seconds
            token = (plain + margin * added) / num_expected
            if token < cheapest:
                cheapest, count = token, number
        self._record_choice(count, step)
        lengths = [0] * len(offers)
        for _, _, index in ranked[:count]:
            lengths[index] += 1
        trial = CONSTANTS.trial_length
        return [
            min(trial, len(offer.probabilities)) if offer.is_trial and not length else length
            for offer, length in zip(offers, lengths, strict=True)
        ]

    def _record_choice(self, count: int, step: PlannedStep) -> None:
        """Forget now and then what is known of longer steps, where that is why no draft token pays."""
        self._num_refused = 0 if count else self._num_refused + 1
        if self._num_refused == CONSTANTS.forget_interval:
            self._num_refused = 0
            for latency in (self.speculative, self.drafter_steps):
                latency.forget_beyond(step.num_sampled)


class _DraftingCost:
    """Seconds of drafter passes, as more and more draft tokens are chosen."""

    def __init__(self, latency: StepLatencyModel, offers: Sequence[DraftOffer]) -> None:
        self._latency = latency
        self._offers = offers
        self._num_tokens: dict[int, float] = {}
        """Tokens that each pass reads, by depth."""
        self.seconds = 0.0

    def add(self, index: int, depth: int) -> None:
        """Add a draft token at this depth of a drafter's offer."""
        if self._latency:
            before = self._num_tokens.get(depth, 0)
            after = self._num_tokens[depth] = before + (self._offers[index].num_uncomputed if depth == 1 else 1)
            self.seconds += self._latency.seconds(after) - (self._latency.seconds(before) if before else 0.0)
