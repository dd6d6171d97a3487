"""Guesses copied from texts: a sequence goes on as it, or another of its tenant, went on before. Knows no model.

The longest suffix of a sequence that occurred before is found in a suffix automaton, and what followed it there is the
guess. That a copy of n tokens goes on for one more has the chance n / (n + 1), to begin with: a match of n tokens is as
likely as not to be followed by n that fit. So drafts are as long as their matches deserve. At which lengths copies end
is learned from all of them, and every row learns how much more or less its own are to be doubted: from how they went,
or would have gone had anybody checked them. Looking up n-grams is the special case of short matches.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from math import exp, log
from typing import NamedTuple

from archerfish.speculation.draft import MOST_NODES, NO_DRAFT, ROOT, Draft
from archerfish.speculation.proposer import Ask
from archerfish.speculation.proposers.suffix_automaton import EMPTY, SuffixAutomaton

FIRST_DOUBT = 1.0
LEAST_DOUBT, MOST_DOUBT = 0.05, 8.0
"""What experience may make of it: whoever copied for pages will end one day, and whoever never did may begin."""
LEARNING, GENERAL_LEARNING = 0.25, 0.1
"""How far a failure that nobody expected moves the logarithm of a row's doubt, and of that in matches of its length."""
LONGEST_KNOWN = 64
"""Tokens of a match: longer ones end as seldom as these."""
LONG_MATCH = 8
"""Tokens of a match by which copies are worth looking for."""
MANY_WAYS = 64
"""A string that went on in more ways than this tells nothing, and looking through them takes time."""
SHARED_TOKENS = 65_536
"""Written tokens that are remembered of a tenant. The older half of them is forgotten at once."""
MOST_TENANTS = 16
"""Whose written tokens are remembered: those that started something last."""
RESUMED_TOKENS = 16
"""Of an answer that was preempted, how many are read again to find its place in the memory."""


Odds = Sequence[float]
"""That a copy ends after a match of so many tokens, against that it goes on."""


class Match(NamedTuple):
    """A string that occurred in a text: the last tokens of a sequence, or of a guess that goes on with it."""

    text: SuffixAutomaton
    state: int
    length: int

    def continued(self) -> "Match":
        """The longest suffix that something followed."""
        state = self.text.continued(self.state)
        return self if state == self.state else Match(self.text, state, min(self.length, self.text.length[state]))

    def read(self, token: int) -> "Match":
        """The longest suffix of string and token that occurred."""
        text, state, length = self
        while (following := text.follow(state, token)) is None:
            if state == EMPTY:
                return Match(text, EMPTY, 0)
            state = text.link[state]
            length = text.length[state]
        return Match(text, following, length + 1)

    def within(self, longest: int | None) -> "Match":
        """Of no more than so many tokens: the end of the string, and everything that followed that."""
        text, state, length = self
        if longest is None or length <= longest:
            return self
        while text.length[text.link[state]] >= longest:
            state = text.link[state]
        return Match(text, state, longest)


class Memory:
    """What one tenant's sequences wrote lately, in two generations: when the young is full, the old is forgotten."""

    def __init__(self) -> None:
        self.generation = 0
        self.old, self.young = SuffixAutomaton(), SuffixAutomaton()

    def make_room(self) -> None:
        if self.young.num_tokens >= SHARED_TOKENS // 2:
            self.old, self.young = self.young, SuffixAutomaton()
            self.generation += 1


class Page:
    """The answer of one sequence in its tenant's memory: where it is written to, and where else it occurs."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._generation = memory.generation
        self._end = EMPTY
        self._old = Match(memory.old, EMPTY, 0)

    def write(self, tokens: Sequence[int]) -> None:
        self._memory.make_room()
        if self._generation != self._memory.generation:
            self._turn()
        self._end = self._memory.young.extend(self._end, tokens)
        for token in tokens:
            self._old = self._old.read(token)

    def _turn(self) -> None:
        """Begin again in the young generation. What was written last has become old, unless it was forgotten, too."""
        old, just_turned = self._memory.old, self._generation + 1 == self._memory.generation
        self._old = Match(old, self._end, old.length[self._end]) if just_turned else Match(old, EMPTY, 0)
        self._end, self._generation = EMPTY, self._memory.generation

    def matches(self) -> list[Match]:
        if self._generation != self._memory.generation:
            return []  # Others have turned the page; this one turns with its next token.
        young = self._memory.young
        return [Match(young, self._end, young.length[self._end]).continued(), self._old.continued()]


class Ends:
    """How likely copies are to end, by the tokens of their match so far: learned from all rows."""

    def __init__(self) -> None:
        self._doubts = [FIRST_DOUBT] * (LONGEST_KNOWN.bit_length() + 1)
        """In matches whose length has so many bits: copies that are twice as long are something else."""
        self.odds: list[float] = [0.0] * (LONGEST_KNOWN + 1)
        """For a row with a doubt of one."""
        for size in range(1, len(self._doubts)):
            self._tell(size)

    def learn(self, length: int, num_accepted_tokens: int, failed: bool, doubt: float) -> float:
        """What came of a match of this length: so many tokens fitted, and then, perhaps, one did not.

        One step up the slope of the likelihood of that, in the logarithm of what is doubted. Returns the slope: more
        than nothing if it went worse than this doubt of the row's led to expect.
        """
        slopes: dict[int, float] = {}
        for tried in range(length, length + num_accepted_tokens + failed):
            known = min(tried, LONGEST_KNOWN)
            odds = doubt * self.odds[known]
            size = known.bit_length()
            slopes[size] = slopes.get(size, 0.0) - odds / (1 + odds)
        if failed:
            slopes[size] += 1
        for size, slope in slopes.items():
            self._doubts[size] = _moved(self._doubts[size], GENERAL_LEARNING * slope)
            self._tell(size)
        return sum(slopes.values())

    def _tell(self, size: int) -> None:
        for length in range(1 << size - 1, min(1 << size, LONGEST_KNOWN + 1)):
            self.odds[length] = self._doubts[size] / length


class _Row:
    """One sequence: its own text, its answer in the tenant's memory, and how its copies went.

    The automaton is made when two tokens have followed each other before as the last two do: for answers that repeat
    nothing it never is.
    """

    def __init__(self, tokens: Sequence[int], page: Page | None, ends: Ends, longest: int | None = None) -> None:
        self._text = SuffixAutomaton()
        self._end = EMPTY
        self._unread = list(tokens)
        """Tokens that are not in the automaton yet."""
        self._last = tokens[-1]
        *earlier, last = pairwise((None, *tokens))
        self._pairs = set(earlier)
        """Tokens that followed each other."""
        self.repeats = self._has_repeated = last in self._pairs
        """Whether the last two tokens followed each other before; and whether any did."""
        self._pairs.add(last)
        self._page = page
        self._ends = ends
        self._longest = longest
        self.doubt = FIRST_DOUBT
        """In its copies, beside what is doubted in those of all rows."""
        self.unchecked: tuple[Draft, int] | None = None
        """The last draft, and the tokens of its match, unless something was heard of it since."""

    def extend(self, tokens: Sequence[int]) -> None:
        last, pairs = self._last, self._pairs
        for token in tokens:
            pair = last, token
            self.repeats = pair in pairs
            if self.repeats:
                self._has_repeated = True
            else:
                pairs.add(pair)
            last = token
        self._last = last
        self._unread += tokens
        if self._page is not None:
            self._page.write(tokens)

    @property
    def is_known_to_others(self) -> bool:
        """Whether the last two tokens are in the tenant's memory."""
        return self._page is not None and any(match.length > 1 for match in self._page.matches())

    def match(self) -> Match:
        """The longest there is, the sequence's own before others of the same length."""
        own = self._own_match() if self._has_repeated else Match(self._text, EMPTY, 0)
        others = self._page.matches() if self._page is not None else []
        found = max(own, *others, key=lambda match: match.length) if others else own
        return found.within(self._longest)

    def _own_match(self) -> Match:
        if self._unread:
            self._end = self._text.extend(self._end, self._unread)
            self._unread.clear()
        return Match(self._text, self._end, self._text.length[self._end]).continued()

    def learn(self, draft: Draft, drawn: Sequence[int]) -> None:
        """What a draft came to, by what was drawn after the last token and after each guess."""
        self.unchecked = None
        self._learn(draft, self.match().length, lambda node, depth: drawn[node + 1])

    def overhear(self, tokens: Sequence[int]) -> None:
        """The same of a draft that nobody checked, if there was one, by what was written instead."""
        if self.unchecked is not None and tokens:
            (draft, length), self.unchecked = self.unchecked, None
            self._learn(draft, length, lambda node, depth: tokens[depth] if depth < len(tokens) else None)

    def _learn(self, draft: Draft, length: int, following: Callable[[int, int], int | None]) -> None:
        """The match had this length. What followed is told for a guess, or ROOT, and its depth; None is not known."""
        node, num_accepted_tokens, failed = ROOT, 0, False
        for place, parent in enumerate(draft.parents):
            if parent != node:
                continue
            token = following(node, num_accepted_tokens)
            if token is None:
                break
            failed = draft.tokens[place] != token
            if not failed:
                node, num_accepted_tokens = place, num_accepted_tokens + 1
        self.doubt = _moved(self.doubt, LEARNING * self._ends.learn(length, num_accepted_tokens, failed, self.doubt))


def _moved(doubt: float, step: float) -> float:
    return min(max(exp(log(doubt) + step), LEAST_DOUBT), MOST_DOUBT)


class _Guess(NamedTuple):
    """A token that may follow, in the order in which guesses are made: the likeliest first, then the first found."""

    unlikely: float
    """Less than nothing: the chance that it stands, with everything it hangs on, times minus one."""
    order: int
    parent: int
    token: int
    state: int
    length: int


class _Growth:
    """A draft that grows where it is likeliest to stand."""

    def __init__(self, text: SuffixAutomaton, odds: Odds, doubt: float, branches: int, least: float) -> None:
        self._text = text
        self._odds = odds
        self._doubt = doubt
        self._branches = branches
        self._least = least
        self._open: list[_Guess] = []
        self._num_found = 0

    def grow(self, match: Match, most: int) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        self._look(ROOT, match.state, match.length, 1.0)
        while self._open and len(tokens) < most:
            unlikely, _, parent, token, state, length = heappop(self._open)
            tokens.append(token)
            parents.append(parent)
            chances.append(-unlikely)
            self._look(len(tokens) - 1, state, length, -unlikely)
        return Draft(tuple(tokens), tuple(parents), tuple(chances))

    def _look(self, parent: int, state: int, length: int, chance: float) -> None:
        """What followed a string, the most frequent first, then the latest. What a text ends with follows itself."""
        text = self._text
        if (state := text.continued(before := state)) != before:
            length = min(length, text.length[state])
        chance /= 1 + self._doubt * self._odds[min(length, LONGEST_KNOWN)]
        if chance < self._least:
            return
        followers = text.followers(state)
        if len(followers) > MANY_WAYS:
            return
        occurred, recent = text.occurred, text.recent
        if len(followers) > 1:
            chance /= sum(occurred[follower.state] for follower in followers)
            followers.sort(key=lambda follower: (occurred[follower.state], recent[follower.state]), reverse=True)
        else:
            chance /= occurred[followers[0].state]
        for token, following in followers[: self._branches]:
            likely = chance * occurred[following]
            if likely >= self._least:
                heappush(self._open, _Guess(-likely, self._num_found, parent, token, following, length + 1))
                self._num_found += 1


def _chain(match: Match, odds: Odds, doubt: float, least: float, most: int) -> Draft:
    """What a draft with a single branch grows to, found without choosing between branches."""
    text, state, length = match
    tokens: list[int] = []
    chances: list[float] = []
    chance = 1.0
    while len(tokens) < most:
        if (state := text.continued(before := state)) != before:
            length = min(length, text.length[state])
        if text.num_followers(state) > MANY_WAYS:
            break
        (token, state), share = text.likeliest(state)
        chance *= share / (1 + doubt * odds[min(length, LONGEST_KNOWN)])
        if chance < least:
            break
        tokens.append(token)
        chances.append(chance)
        length += 1
    return Draft(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)), tuple(chances))


class SuffixProposer:
    """Copies for every row.

    One token is enough of a match: where it is no hint, doubt says so, and after a change a copy goes on sooner than
    with two (measured on edited text: 8.3 tokens a pass instead of 7.7, on ordinary text no more guesses that fail).
    """

    def __init__(
        self,
        *,
        shortest: int = 1,
        longest: int | None = None,
        branches: int = 1,
        least: float = 0.25,
        shared: bool = False,
    ) -> None:
        """
        shortest: tokens of a match that is worth a guess.
        longest: tokens at the end of a sequence that are looked up, at most; None any number.
        branches: in how many ways a draft may go on after each token; with one it is a chain.
        least: the chance to stand that a guess must have.
        shared: copy from what other sequences of the tenant wrote, too.
        """
        assert shortest >= 1 and branches >= 1 and 0 < least <= 1
        self._shortest = shortest
        self._longest = longest
        self._branches = branches
        self._least = least
        self._rows: dict[int, _Row] = {}
        self._ends = Ends()
        self._memories: OrderedDict[str, Memory] | None = OrderedDict() if shared else None

    @property
    def surest(self) -> float:
        """Most matches are short and end soon, so that experience with them says nothing of a long one."""
        return 1 / (1 + self._ends.odds[LONG_MATCH])

    def start(self, row: int, tokens: Sequence[int], num_prompt_tokens: int, tenant: str) -> None:
        page = None
        if self._memories is not None:
            page = Page(self._remembered(self._memories, tenant))
            page.write(tokens[max(num_prompt_tokens, len(tokens) - RESUMED_TOKENS) :])
        self._rows[row] = _Row(tokens, page, self._ends, self._longest)

    def _remembered(self, memories: OrderedDict[str, Memory], tenant: str) -> Memory:
        memory = memories.setdefault(tenant, Memory())
        memories.move_to_end(tenant)
        if len(memories) > MOST_TENANTS:
            memories.popitem(last=False)
        return memory

    def extend(self, row: int, tokens: Sequence[int]) -> None:
        found = self._rows[row]
        found.overhear(tokens)
        found.extend(tokens)

    def hints(self, row: int) -> bool:
        """Two tokens that followed each other before. One alone is enough only where copies went on just now."""
        found = self._rows[row]
        return found.repeats or found.is_known_to_others

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._draft(self._rows[ask.row], min(ask.most, MOST_NODES)) for ask in asks]

    def _draft(self, row: _Row, most: int) -> Draft:
        match = row.match()
        if match.length < self._shortest:
            return NO_DRAFT
        if self._branches == 1:
            draft = _chain(match, self._ends.odds, row.doubt, self._least, most)
        else:
            draft = _Growth(match.text, self._ends.odds, row.doubt, self._branches, self._least).grow(match, most)
        row.unchecked = (draft, match.length)
        return draft

    def saw(self, row: int, draft: Draft, drawn: Sequence[int]) -> None:
        if len(draft):
            self._rows[row].learn(draft, drawn)
