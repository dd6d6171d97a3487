"""How many guesses of each row are worth checking: what they will probably save against what they will cost.

A guess is worth its chance to stand times what a token costs; it costs what one token more adds to the step, and what
it takes to make it. All of that is learned from the past, so what is chosen says nothing about the draw to come.

What a token costs is what it costs with the guesses that are chosen: tokens come cheaper then, and another guess is
worth less. The number that makes tokens cheapest is found in a few rounds, each with what a token costs after the one
before (Dinkelbach's way to maximize a ratio).
"""

from collections.abc import Sequence
from typing import NamedTuple

from archerfish.speculation.times import Pace, StepTimes

_MOST_ROUNDS = 8
_LOOKED_AHEAD = 16
"""Guesses of one sequence, of which it is asked whether so many could pay."""
_PATIENCE = 64
"""Steps after which it is tried again whether guesses pay."""
_LONG_PATIENCE = 512
"""The same, and what is known of longer steps is forgotten: times that say no may have been an accident."""
_EXCESS_WEIGHT = 0.1
_MARGIN = 1.1
"""What a guess must save of what it costs: estimates are not exact."""


class Step(NamedTuple):
    """What a step has without guesses."""

    num_tokens: int
    num_drawn: int
    """Sequences that it draws a token for."""


class Offer(NamedTuple):
    """Guesses that there are for a row, or could be made."""

    chances: Sequence[float]
    """That each stands, with all it hangs on; they never rise."""
    num_unread: float = 0.0
    """Tokens to be read before guesses can be made, or a part of them. 0: guesses are there, and cost nothing."""
    width: int = 1
    """Tokens that each of them adds to the step."""


class Lengths:
    """Chooses, and learns from what became of it."""

    def __init__(self) -> None:
        self.pace = Pace()
        self.times = StepTimes(self.pace, leads=True)
        """Of steps in which somebody was asked, from one to the next, with what asking takes, but for drafting."""
        self.drafting = StepTimes(self.pace)
        """Of passes of the network that guesses, where there is one."""
        self.excess = 0.0
        """Seconds that a step with a network's guesses takes beyond what its tokens and drafting do: the network's
        weights took the place of the model's in the cache."""
        self.plain = StepTimes(self.pace, leads=True)
        """Of steps in which nobody was asked for guesses."""
        self._num_refused = 0
        """Steps in which no guess could have paid, since one was last tried all the same."""

    def tried(self, num_tokens: int, seconds: float) -> None:
        """A step was tried before there was anything to do. Whoever is asked takes little beside."""
        self.times.record(num_tokens, seconds)
        self.plain.record(num_tokens, seconds)

    def drafted(self, num_tokens: int, seconds: float) -> None:
        """A step with guesses of a network took so long, drafting aside."""
        if not self.times:
            self.times.record(num_tokens, seconds)
        usual = self.times.of(num_tokens)
        self.excess += _EXCESS_WEIGHT * (min(seconds / self.pace.factor - usual, usual) - self.excess)

    def token_seconds(self, num_drawn: int) -> float:
        """What a token costs without guesses."""
        return self.step_seconds(num_drawn) / num_drawn

    def step_seconds(self, num_tokens: int) -> float:
        """Of a step without guesses; as long as none was seen, of one in which they would have been in vain."""
        return (self.plain or self.times).of(num_tokens)

    def speed_up(self, trust: float, num_guesses: int, *, is_drafted: bool) -> float:
        """The classical estimate for one sequence: tokens of a step with so many guesses, each of which stands as often
        if the one before it did, against what the step takes; both as times of steps without."""
        num_tokens = 1 + sum(trust**depth for depth in range(1, num_guesses + 1))
        seconds = self.times.of(1 + num_guesses)
        if is_drafted:
            # What was written by the step before is read first: as many tokens as a step writes, but for guesses read.
            seconds += self.drafting.of(2) + (num_guesses - 1) * self.drafting.of(1) + self.excess
        return num_tokens * self.token_seconds(1) / seconds

    def may_pay(self, num_drawn: int, surest: float, *, is_drafted: bool = False) -> bool:
        """Whether a guess could pay in a step that draws for so many sequences, if it stands as the surest do."""
        if not self.times or not num_drawn:
            return True
        before, worth, expected = self.step_seconds(num_drawn), self.token_seconds(num_drawn), 0.0
        drafting, excess = (self.drafting.of(1), self.excess) if is_drafted and self.drafting else (0.0, 0.0)
        for count in range(1, _LOOKED_AHEAD + 1):
            expected += surest**count
            # Not every number need be tried: where so many pay, about as many do.
            if count & (count - 1) == 0:
                added = self.times.of(num_drawn + count) - before + count * drafting + excess
                if expected * worth > _MARGIN * added:
                    return True
        self._num_refused += 1
        if self._num_refused % _PATIENCE:
            return False
        if self._num_refused >= _LONG_PATIENCE:
            self._num_refused = 0
            self.times.forget_beyond(num_drawn)
        return True

    def gain(self, offer: Offer) -> float:
        """What an offer brings by itself, in tokens, before they are checked: to tell which of several is best."""
        if not offer.num_unread or not self.drafting or not self.times:
            return sum(offer.chances)
        first, further = self.drafting.of(offer.num_unread), self.drafting.of(1)
        token = self.token_seconds(1)
        gained = best = -(first + self.excess) / token
        for depth, chance in enumerate(offer.chances):
            gained += chance - (further / token if depth else 0.0)
            best = max(best, gained)
        return best

    def choose(self, step: Step, offers: Sequence[Offer]) -> list[int]:
        """How many of each offer to check."""
        if not self.times or not step.num_drawn:
            return [min(1, len(offer.chances)) for offer in offers]
        # Likeliest first; an offer's own are in order by themselves, since chances only fall along it.
        ranked = sorted(
            [
                (chance, -depth, place)
                for place, offer in enumerate(offers)
                for depth, chance in enumerate(offer.chances, 1)
            ],
            reverse=True,
        )
        drafting, before = _Drafting(self.drafting, offers, self.excess), self.step_seconds(step.num_tokens)
        expected, costs, num_tokens = [0.0], [0.0], step.num_tokens
        for chance, depth, place in ranked:
            num_tokens += offers[place].width
            expected.append(expected[-1] + chance)
            costs.append(_MARGIN * (self.times.of(num_tokens) - before + drafting.add(place, -depth)))
        count = _cheapest(expected, costs, step.num_drawn, self.token_seconds(step.num_drawn))
        counts = [0] * len(offers)
        for _, _, place in ranked[:count]:
            counts[place] += 1
        return counts


def _cheapest(expected: Sequence[float], costs: Sequence[float], num_drawn: int, plain: float) -> int:
    """How many of some guesses, in their order, make tokens cheapest, given what the first of them bring and cost."""
    chosen, worth = 0, plain
    for _ in range(_MOST_ROUNDS):
        found = max(range(len(costs)), key=lambda count: expected[count] * worth - costs[count])
        if found == chosen:
            break
        chosen = found
        worth = (plain * num_drawn + costs[chosen]) / (num_drawn + expected[chosen])
    return chosen


class _Drafting:
    """What it takes to make guesses, as more and more of them are wanted."""

    def __init__(self, times: StepTimes, offers: Sequence[Offer], excess: float) -> None:
        self._times = times
        self._offers = offers
        self._excess = excess
        """Seconds that are added once, with the first guess."""
        self._rows_at: dict[int, float] = {}
        """By depth, how many tokens the pass reads."""
        self._seconds = 0.0

    def add(self, place: int, depth: int) -> float:
        """One guess more, at this depth of an offer. Seconds of all."""
        unread = self._offers[place].num_unread
        if unread and self._times:
            self._seconds += 0.0 if self._rows_at else self._excess
            before = self._rows_at.get(depth, 0)
            after = self._rows_at[depth] = before + (unread if depth == 1 else 1)
            self._seconds += self._times.of(after) - (self._times.of(before) if before else 0.0)
        return self._seconds
