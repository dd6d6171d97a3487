"""How many draft tokens of each row are worth verifying: what they will probably save against what they will cost.

A draft token is worth its chance to be accepted times what a token costs; it costs what one more token adds to the
step, and what it takes to propose it. All of that is learned from the past, so the choice says nothing about the
samples to come.

What a token costs depends on the draft tokens that are chosen: with more of them tokens come cheaper, and the next one
is worth less. So the number is chosen that makes all tokens of the step cheapest.
"""

from collections.abc import Sequence
from typing import NamedTuple

from archerfish.speculation.step_latency import MachineSlowdown, StepLatencyModel

_MAX_DEPTH_CONSIDERED = 32
"""Draft tokens per sequence up to which it is considered whether so many could pay."""
_RETRY_INTERVAL = 64
"""Steps after which it is tried again whether drafts pay."""
_FORGET_INTERVAL = 512
"""Steps after which what is known of longer steps is forgotten, too: latencies that say no may have been accidents."""
_EXPLORATION_INTERVAL = 16
"""One of so many times all draft tokens that are likely to be accepted are verified."""
_LIKELY = 0.5
_MARGIN = 1.1
"""Multiple of its cost that a draft token must save, because estimates are not exact."""
_DRAFTER_MARGIN = 1.2
"""Margin for drafters: their weights and the model's evict each other from caches, which slows later steps, too."""


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


class SpeculationCostModel:
    """Chooses draft lengths, and learns latencies from what became of them."""

    def __init__(self) -> None:
        self.slowdown = MachineSlowdown()
        self.speculative = StepLatencyModel(self.slowdown)
        """Steps for which drafts were considered, from one to the next, with proposing, but without drafter passes."""
        self.drafter_passes = StepLatencyModel(self.slowdown)
        """Passes of the drafter, where there is one."""
        self.drafter_steps = StepLatencyModel(self.slowdown)
        """Steps with drafts of a drafter, without its passes: its weights displaced the model's from caches.
        Until there was one, they are assumed to be like other speculative steps."""
        self.plain = StepLatencyModel(self.slowdown, sets_slowdown=True)
        """Steps for which no drafts were considered."""
        self.token_price = 1.0
        """Recent cost of tokens as a share of their cost without speculation. A drafter's tokens save no more:
        where others make tokens cheap, they would have come as cheaply later."""
        self._num_chosen = 0
        """Times that draft tokens of a single offer were chosen."""
        self._num_refused = 0
        """Consecutive refusals by `may_pay`."""

    def expect_step(self, num_tokens: int, seconds: float) -> None:
        """Assume a latency of all kinds of steps from a trial at the start."""
        for latency in (self.speculative, self.drafter_steps, self.plain):
            latency.expect(num_tokens, seconds)

    def _verifying(self, *, is_drafted: bool) -> StepLatencyModel:
        """Return the latencies of steps that verify drafts."""
        return self.drafter_steps if is_drafted and self.drafter_steps else self.speculative

    def __bool__(self) -> bool:
        """Whether anything is known of steps."""
        return bool(self.plain or self.speculative or self.drafter_steps)

    def token_seconds(self, num_sampled: int) -> float:
        """Return what a token costs without speculation."""
        return self.step_seconds(num_sampled) / num_sampled

    def step_seconds(self, num_tokens: int) -> float:
        """Return the latency of a plain step; until one was seen, that of a step with drafts."""
        return (self.plain or self.speculative or self.drafter_steps).seconds(num_tokens)

    def speedup(self, acceptance_rate: float, num_draft_tokens: int, *, is_drafted: bool) -> float:
        """Return the classical estimate for one sequence: its tokens per time with a fixed draft length, over without.

        Each draft token is accepted at the same rate, given that the one before it was.
        """
        num_tokens = 1 + sum(acceptance_rate**depth for depth in range(1, num_draft_tokens + 1))
        seconds = self._verifying(is_drafted=is_drafted).seconds(1 + num_draft_tokens)
        if is_drafted:
            # The drafter first computes what the last step wrote, which is 2 tokens without its own accepted ones.
            seconds += self.drafter_passes.seconds(2) + (num_draft_tokens - 1) * self.drafter_passes.seconds(1)
        return num_tokens * self.token_seconds(1) / seconds

    def extra_steps(self, step: PlannedStep, num_tokens: int, drafting_seconds: float) -> float:
        """Return what a step of `num_tokens`, drafts included, takes more than the planned one, in such steps."""
        added, latency = drafting_seconds / self.slowdown.factor, self._verifying(is_drafted=drafting_seconds > 0)
        if latency:
            added += latency.seconds(num_tokens) - self.step_seconds(step.num_tokens)
        return added / self.step_seconds(step.num_sampled)

    def may_pay(
        self, num_sampled: int, values: Sequence[float], max_acceptance: float, *, is_drafted: bool = False
    ) -> bool:
        """Whether drafts for some of a step's sequences could pay at the best acceptance rate.

        `values` has what a token is worth to each of these sequences.
        """
        if not self.speculative or not num_sampled:
            return True
        num_drafted = len(values)
        before, expected = self.step_seconds(num_sampled), 0.0
        value = self.token_seconds(num_sampled) * sum(values) * (self.token_price if is_drafted else 1.0)
        drafting = self.drafter_passes.seconds(num_drafted) if is_drafted and self.drafter_passes else 0.0
        latency, margin = self._verifying(is_drafted=is_drafted), _DRAFTER_MARGIN if is_drafted else _MARGIN
        for count in range(1, _MAX_DEPTH_CONSIDERED + 1):
            expected += max_acceptance**count
            # Powers of two suffice: where some number pays, about as many do.
            if count & (count - 1) == 0:
                added = latency.seconds(num_sampled + num_drafted * count) - before + count * drafting
                if expected * value > margin * added:
                    return True
        return False

    def record_refusal(self, num_sampled: int) -> bool:
        """Count that `may_pay` was false, and return whether it is time to try all the same."""
        self._num_refused += 1
        if self._num_refused % _RETRY_INTERVAL:
            return False
        if self._num_refused >= _FORGET_INTERVAL:
            self._num_refused = 0
            self.speculative.forget_beyond(num_sampled)
        return True

    def gain(self, offer: DraftOffer) -> float:
        """Return what an offer gains by itself, in tokens, before verification: to compare offers for a row."""
        if not offer.num_uncomputed or not self.drafter_passes or not self.speculative:
            return sum(offer.probabilities)
        first, further = self.drafter_passes.seconds(offer.num_uncomputed), self.drafter_passes.seconds(1)
        token = self.token_seconds(1)
        slowdown = max(0.0, self._verifying(is_drafted=True).seconds(2) - self.speculative.seconds(2))
        gained = best = -_DRAFTER_MARGIN * (first + slowdown) / token
        for depth, probability in enumerate(offer.probabilities):
            gained += self.token_price * probability - (_DRAFTER_MARGIN * further / token if depth else 0.0)
            best = max(best, gained)
        return best

    def choose_lengths(self, step: PlannedStep, offers: Sequence[DraftOffer]) -> list[int]:
        """Return how many depths of each offer to verify."""
        if not self.speculative or not step.num_sampled:
            return [min(1, len(offer.probabilities)) for offer in offers]
        # Most valuable first; an offer's own are in order by themselves, since probabilities only fall along it.
        ranked = sorted(
            [
                (offer.value * probability * (self.token_price if offer.num_uncomputed else 1.0), -depth, index)
                for index, offer in enumerate(offers)
                for depth, probability in enumerate(offer.probabilities, 1)
            ],
            reverse=True,
        )
        drafting, before = _DraftingCost(self.drafter_passes, offers), self.step_seconds(step.num_tokens)
        num_tokens, num_expected = step.num_tokens, float(step.num_sampled)
        plain = self.step_seconds(step.num_sampled)
        cheapest, count, latency, margin = plain / num_expected, 0, self.speculative, _MARGIN
        for number, (value, depth, index) in enumerate(ranked, 1):
            num_tokens += offers[index].width
            num_expected += value
            if offers[index].num_uncomputed:
                drafting.add(index, -depth)
                latency, margin = self._verifying(is_drafted=True), _DRAFTER_MARGIN
            added = latency.seconds(num_tokens) - before + drafting.seconds
            token = (plain + margin * added) / num_expected
            if token < cheapest:
                cheapest, count = token, number
        lengths = [0] * len(offers)
        for _, _, index in ranked[:count]:
            lengths[index] += 1
        if count and len(offers) == 1 and not offers[0].num_uncomputed:
            lengths[0] = max(count, self._exploration_length(offers[0]))
        return lengths

    def _exploration_length(self, offer: DraftOffer) -> int:
        """Return how many tokens of the only offer to verify now and then, whether they seem to pay or not.

        The latency of longer steps is known only if they are run.
        """
        self._num_chosen += 1
        if self._num_chosen % _EXPLORATION_INTERVAL:
            return 0
        return sum(probability >= _LIKELY for probability in offer.probabilities)


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
