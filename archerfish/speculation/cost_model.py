"""How many guesses of each row are worth checking: what they will probably save against what they will cost.

A guess is worth its chance to stand times what a token costs; it costs what one token more adds to the step, and what
it takes to make it. All of that is learned from the past, so what is chosen says nothing about the draw to come.

What a token costs is what it costs with the guesses that are chosen: tokens come cheaper then, and another guess is
worth less. So the number is chosen that makes all tokens of the step cheapest.
"""

from collections.abc import Sequence
from typing import NamedTuple

from archerfish.speculation.step_latency import Pace, StepTimes

_LOOKED_AHEAD = 32
"""Guesses of one sequence, of which it is asked whether so many could pay."""
_PATIENCE = 64
"""Steps after which it is tried again whether guesses pay."""
_LONG_PATIENCE = 512
"""The same, and what is known of longer steps is forgotten: times that say no may have been an accident."""
_CURIOSITY = 16
"""One of so many times all guesses that are likely to stand are checked."""
_LIKELY = 0.5
_MARGIN = 1.1
"""What a guess must save of what it costs: estimates are not exact."""
_NETWORK_MARGIN = 1.2
"""The same of guesses that a network makes: its weights and those of the model push each other out of caches, and steps
that follow pay for that, too."""


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
    worth: float = 1.0
    """What a token written ahead is worth to this row, as a part of what tokens cost."""


class Lengths:
    """Chooses, and learns from what became of it."""

    def __init__(self) -> None:
        self.pace = Pace()
        self.times = StepTimes(self.pace)
        """Of steps in which somebody was asked, from one to the next, with what asking takes, but for drafting."""
        self.drafting = StepTimes(self.pace)
        """Of passes of the network that guesses, where there is one."""
        self.drafted = StepTimes(self.pace)
        """Of steps with guesses of a network, but for drafting: its weights took the place of the model's in the cache.
        As long as there was none, they are thought to be like others."""
        self.plain = StepTimes(self.pace, leads=True)
        """Of steps in which nobody was asked for guesses."""
        self.price = 1.0
        """What tokens cost lately, as a part of what they cost without guesses. What a network guesses saves no more:
        where others make tokens cheap, they would have come as cheaply later."""
        self._num_chosen = 0
        """Times that some guesses of a single offer were."""
        self._num_refused = 0
        """Steps in which no guess could have paid, since one was last tried all the same."""

    def tried(self, num_tokens: int, seconds: float) -> None:
        """A step was tried before there was anything to do. Whoever is asked takes little beside."""
        for times in (self.times, self.drafted, self.plain):
            times.expect(num_tokens, seconds)

    def _checking(self, *, is_drafted: bool) -> StepTimes:
        """Times of steps with guesses."""
        return self.drafted if is_drafted and self.drafted else self.times

    def __bool__(self) -> bool:
        """Whether anything is known of steps."""
        return bool(self.plain or self.times or self.drafted)

    def token_seconds(self, num_drawn: int) -> float:
        """What a token costs without guesses."""
        return self.step_seconds(num_drawn) / num_drawn

    def step_seconds(self, num_tokens: int) -> float:
        """Of a step without guesses; as long as none was seen, of one in which they would have been in vain."""
        return (self.plain or self.times or self.drafted).of(num_tokens)

    def speed_up(self, trust: float, num_draft_tokens: int, *, is_drafted: bool) -> float:
        """The classical estimate for one sequence: tokens of a step with so many guesses, each of which stands as often
        if the one before it did, against what the step takes; both as times of steps without."""
        num_tokens = 1 + sum(trust**depth for depth in range(1, num_draft_tokens + 1))
        seconds = self._checking(is_drafted=is_drafted).of(1 + num_draft_tokens)
        if is_drafted:
            # What was written by the step before is read first: as many tokens as a step writes, but for guesses read.
            seconds += self.drafting.of(2) + (num_draft_tokens - 1) * self.drafting.of(1)
        return num_tokens * self.token_seconds(1) / seconds

    def steps_spent(self, step: Step, num_tokens: int, drafting: float) -> float:
        """What a step with guesses usually takes more than one without, in steps without: it has so many tokens with
        them, and a network spent some seconds on it."""
        added, times = drafting / self.pace.factor, self._checking(is_drafted=drafting > 0)
        if times:
            added += times.of(num_tokens) - self.step_seconds(step.num_tokens)
        return added / self.step_seconds(step.num_drawn)

    def may_pay(self, num_drawn: int, worths: Sequence[float], surest: float, *, is_drafted: bool = False) -> bool:
        """Whether guesses for some of the sequences that a step draws for could pay, if they stand as the surest do.

        `worths` says of each of these what a token is worth to it.
        """
        if not self.times or not num_drawn:
            return True
        num_draft_tokens = len(worths)
        before, expected = self.step_seconds(num_drawn), 0.0
        worth = self.token_seconds(num_drawn) * sum(worths) * (self.price if is_drafted else 1.0)
        drafting = self.drafting.of(num_draft_tokens) if is_drafted and self.drafting else 0.0
        times, margin = self._checking(is_drafted=is_drafted), _NETWORK_MARGIN if is_drafted else _MARGIN
        for count in range(1, _LOOKED_AHEAD + 1):
            expected += surest**count
            # Not every number need be tried: where so many pay, about as many do.
            if count & (count - 1) == 0:
                added = times.of(num_drawn + num_draft_tokens * count) - before + count * drafting
                if expected * worth > margin * added:
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
        beside = max(0.0, self._checking(is_drafted=True).of(2) - self.times.of(2))
        gained = best = -_NETWORK_MARGIN * (first + beside) / token
        for depth, chance in enumerate(offer.chances):
            gained += self.price * chance - (_NETWORK_MARGIN * further / token if depth else 0.0)
            best = max(best, gained)
        return best

    def choose(self, step: Step, offers: Sequence[Offer]) -> list[int]:
        """How many of each offer to check."""
        if not self.times or not step.num_drawn:
            return [min(1, len(offer.chances)) for offer in offers]
        # What is worth most first; an offer's own are in order by themselves, since chances only fall along it.
        ranked = sorted(
            [
                (offer.worth * chance * (self.price if offer.num_unread else 1.0), -depth, place)
                for place, offer in enumerate(offers)
                for depth, chance in enumerate(offer.chances, 1)
            ],
            reverse=True,
        )
        drafting, before = _Drafting(self.drafting, offers), self.step_seconds(step.num_tokens)
        num_tokens, num_expected = step.num_tokens, float(step.num_drawn)
        plain = self.step_seconds(step.num_drawn)
        cheapest, count, times, margin = plain / num_expected, 0, self.times, _MARGIN
        for number, (worth, depth, place) in enumerate(ranked, 1):
            num_tokens += offers[place].width
            num_expected += worth
            if offers[place].num_unread:
                drafting.add(place, -depth)
                times, margin = self._checking(is_drafted=True), _NETWORK_MARGIN
            added = times.of(num_tokens) - before + drafting.seconds
            token = (plain + margin * added) / num_expected
            if token < cheapest:
                cheapest, count = token, number
        counts = [0] * len(offers)
        for _, _, place in ranked[:count]:
            counts[place] += 1
        if count and len(offers) == 1 and not offers[0].num_unread:
            counts[0] = max(count, self._curious(offers[0]))
        return counts

    def _curious(self, offer: Offer) -> int:
        """Guesses of the only offer that are checked now and then, whether they seem to pay or not: what longer steps
        take is known of those alone that are made."""
        self._num_chosen += 1
        if self._num_chosen % _CURIOSITY:
            return 0
        return sum(chance >= _LIKELY for chance in offer.chances)


class _Drafting:
    """What it takes to make guesses, as more and more of them are wanted."""

    def __init__(self, times: StepTimes, offers: Sequence[Offer]) -> None:
        self._times = times
        self._offers = offers
        self._rows_at: dict[int, float] = {}
        """By depth, how many tokens the pass reads."""
        self.seconds = 0.0
        """Of all."""

    def add(self, place: int, depth: int) -> None:
        """One guess more, at this depth of an offer that a network makes."""
        if self._times:
            before = self._rows_at.get(depth, 0)
            after = self._rows_at[depth] = before + (self._offers[place].num_unread if depth == 1 else 1)
            self.seconds += self._times.of(after) - (self._times.of(before) if before else 0.0)
