"""Suffix decoding: draft tokens copied from texts, as the sequence or another of its tenant went on before.

The longest suffix of a sequence that occurred before is found in a suffix automaton, and what followed it there is the
draft. Initially a copy of n tokens is assumed to go on for one more with probability n / (n + 1): a match of n tokens
is as likely as not to be followed by n that fit. So drafts are as long as their matches deserve. At which lengths
copies end is learned from all of them, and every row learns how much more or less its own are to be doubted: from how
its drafts went, or would have gone had they been verified. Looking up n-grams is the special case of short matches.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from math import exp, log
from typing import NamedTuple

from archerfish.speculation.draft import MAX_NODES, NO_DRAFT, ROOT, Draft
from archerfish.speculation.proposer import DraftRequest
from archerfish.speculation.proposers.suffix_automaton import EMPTY, SuffixAutomaton

INITIAL_DOUBT = 1.0
MIN_DOUBT, MAX_DOUBT = 0.05, 8.0
"""Bounds of learned doubt: a row that copied for pages will end one day, and one that never did may begin."""
ROW_LEARNING_RATE, LENGTH_LEARNING_RATE = 0.25, 0.1
"""How far an unexpected failure moves the logarithm of a row's doubt, and of the doubt in matches of its length."""
MAX_KNOWN_LENGTH = 64
"""Tokens of a match beyond which longer ones end as seldom."""
MAX_FOLLOWERS = 64
"""A string that more tokens have followed predicts nothing, and ranking them takes time."""
MAX_SHARED_TOKENS = 65_536
"""Generated tokens that are stored for a tenant. The older half of them is dropped at once."""
MAX_TENANTS = 16
"""Tenants whose generated tokens are stored: those that started a sequence last."""
RESUMED_TOKENS = 16
"""Tokens of a preempted answer that are read again to find it in the tenant's texts."""


Odds = Sequence[float]
"""The odds that a copy ends after a match, by its length."""


class Match(NamedTuple):
    """A string that occurred in a text: the last tokens of a sequence, or of a draft that continues it."""

    text: SuffixAutomaton
    state: int
    length: int

    def continued(self) -> "Match":
        """Return the longest suffix that something followed."""
        state = self.text.continued(self.state)
        return self if state == self.state else Match(self.text, state, min(self.length, self.text.length[state]))

    def read(self, token: int) -> "Match":
        """Return the longest suffix of string and token that occurred."""
        text, state, length = self
        while (following := text.follow(state, token)) is None:
            if state == EMPTY:
                return Match(text, EMPTY, 0)
            state = text.link[state]
            length = text.length[state]
        return Match(text, following, length + 1)

    def within(self, max_length: int | None) -> "Match":
        """Return the end of the string, of no more than so many tokens, with everything that followed that."""
        text, state, length = self
        if max_length is None or length <= max_length:
            return self
        while text.length[text.link[state]] >= max_length:
            state = text.link[state]
        return Match(text, state, max_length)


class TenantTexts:
    """Recent answers of one tenant in two generations: when the young one is full, the old one is dropped."""

    def __init__(self) -> None:
        self.generation = 0
        self.old, self.young = SuffixAutomaton(), SuffixAutomaton()

    def rotate_if_full(self) -> None:
        """Drop the old generation if the young one is full, which then becomes the old one."""
        if self.young.num_tokens >= MAX_SHARED_TOKENS // 2:
            self.old, self.young = self.young, SuffixAutomaton()
            self.generation += 1


class SharedAnswer:
    """The answer of one sequence in its tenant's texts: where it is written to, and where else it occurs."""

    def __init__(self, texts: TenantTexts) -> None:
        self._texts = texts
        self._generation = texts.generation
        self._end = EMPTY
        self._old = Match(texts.old, EMPTY, 0)

    def write(self, tokens: Sequence[int]) -> None:
        """Append tokens of the answer."""
        self._texts.rotate_if_full()
        if self._generation != self._texts.generation:
            self._follow_rotation()
        self._end = self._texts.young.extend(self._end, tokens)
        for token in tokens:
            self._old = self._old.read(token)

    def _follow_rotation(self) -> None:
        """Begin again in the young generation. What was written last is in the old one, unless it was dropped, too."""
        old, just_rotated = self._texts.old, self._generation + 1 == self._texts.generation
        self._old = Match(old, self._end, old.length[self._end]) if just_rotated else Match(old, EMPTY, 0)
        self._end, self._generation = EMPTY, self._texts.generation

    def matches(self) -> list[Match]:
        """Return where the answer's last tokens occur in the tenant's texts."""
        if self._generation != self._texts.generation:
            return []  # Another sequence has rotated the texts; this one follows with its next token.
        young = self._texts.young
        return [Match(young, self._end, young.length[self._end]).continued(), self._old.continued()]


class CopyEndModel:
    """How likely copies are to end, by the length of their match so far: learned from all rows."""

    def __init__(self) -> None:
        self._doubts = [INITIAL_DOUBT] * (MAX_KNOWN_LENGTH.bit_length() + 1)
        """Doubt in matches whose length has so many bits: copies that are twice as long are something else."""
        self.odds: list[float] = [0.0] * (MAX_KNOWN_LENGTH + 1)
        """The odds that a copy ends, for a row with a doubt of one."""
        for size in range(1, len(self._doubts)):
            self._update_odds(size)

    def learn(self, length: int, num_fitting: int, failed: bool, doubt: float) -> float:
        """Learn from a match of this length: so many tokens fitted, and then, perhaps, one did not.

        Takes one step up the slope of its log-likelihood by the logarithm of doubt. Returns the slope: positive if it
        went worse than this doubt of the row's predicts.
        """
        slopes: dict[int, float] = {}
        for matched in range(length, length + num_fitting + failed):
            known = min(matched, MAX_KNOWN_LENGTH)
            odds = doubt * self.odds[known]
            size = known.bit_length()
            slopes[size] = slopes.get(size, 0.0) - odds / (1 + odds)
        if failed:
            slopes[size] += 1
        for size, slope in slopes.items():
            self._doubts[size] = _moved(self._doubts[size], LENGTH_LEARNING_RATE * slope)
            self._update_odds(size)
        return sum(slopes.values())

    def _update_odds(self, size: int) -> None:
        for length in range(1 << size - 1, min(1 << size, MAX_KNOWN_LENGTH + 1)):
            self.odds[length] = self._doubts[size] / length


class _Row:
    """One sequence: its own text, its answer in the tenant's texts, and how its copies went.

    The automaton is built when two tokens have followed each other before as the last two do: for answers that repeat
    nothing it never is.
    """

    def __init__(
        self, tokens: Sequence[int], shared: SharedAnswer | None, ends: CopyEndModel, max_length: int | None = None
    ) -> None:
        self._text = SuffixAutomaton()
        self._end = EMPTY
        self._unread = list(tokens)
        """Tokens that are not in the automaton yet."""
        self._last = tokens[-1]
        *earlier, last = pairwise((None, *tokens))
        self._pairs = set(earlier)
        """Pairs of tokens that followed each other."""
        self.repeats = self._has_repeated = last in self._pairs
        """Whether the last two tokens followed each other before; and whether any did."""
        self._pairs.add(last)
        self._shared = shared
        self._ends = ends
        self._max_length = max_length
        self.doubt = INITIAL_DOUBT
        """Doubt in its copies, as a multiple of that in those of all rows."""
        self.unverified: tuple[Draft, int] | None = None
        """The last draft and the length of its match, until something is learned of it."""

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
        if self._shared is not None:
            self._shared.write(tokens)

    @property
    def occurs_in_shared(self) -> bool:
        """Whether the last two tokens occur in the tenant's texts."""
        return self._shared is not None and any(match.length > 1 for match in self._shared.matches())

    def match(self) -> Match:
        """Return the longest match, the sequence's own before others of the same length."""
        own = self._own_match() if self._has_repeated else Match(self._text, EMPTY, 0)
        others = self._shared.matches() if self._shared is not None else []
        longest = max(own, *others, key=lambda match: match.length) if others else own
        return longest.within(self._max_length)

    def _own_match(self) -> Match:
        if self._unread:
            self._end = self._text.extend(self._end, self._unread)
            self._unread.clear()
        return Match(self._text, self._end, self._text.length[self._end]).continued()

    def learn(self, draft: Draft, sampled: Sequence[int]) -> None:
        """Learn from a verified draft, given what was sampled after the last token and after each node."""
        self.unverified = None
        self._learn(draft, self.match().length, lambda node, depth: sampled[node + 1])

    def learn_unverified(self, tokens: Sequence[int]) -> None:
        """Learn from a draft that was not verified, if there is one, given what was written instead."""
        if self.unverified is not None and tokens:
            (draft, length), self.unverified = self.unverified, None
            self._learn(draft, length, lambda node, depth: tokens[depth] if depth < len(tokens) else None)

    def _learn(self, draft: Draft, length: int, following: Callable[[int, int], int | None]) -> None:
        """Learn from a match of this length. `following` returns the token after a node of a depth, if known."""
        node, num_fitting, failed = ROOT, 0, False
        for child, parent in enumerate(draft.parents):
            if parent != node:
                continue
            token = following(node, num_fitting)
            if token is None:
                break
            failed = draft.tokens[child] != token
            if not failed:
                node, num_fitting = child, num_fitting + 1
        self.doubt = _moved(self.doubt, ROW_LEARNING_RATE * self._ends.learn(length, num_fitting, failed, self.doubt))


def _moved(doubt: float, step: float) -> float:
    return min(max(exp(log(doubt) + step), MIN_DOUBT), MAX_DOUBT)


class _Candidate(NamedTuple):
    """A token that may follow, ordered as drafts grow: the likeliest first, then the first found."""

    negated_probability: float
    """Negated joint acceptance probability of this token and its ancestors, so that heapq pops the likeliest first."""
    order: int
    parent: int
    token: int
    state: int
    length: int


class _TreeGrowth:
    """A draft tree that grows where it is likeliest to be accepted."""

    def __init__(self, text: SuffixAutomaton, odds: Odds, doubt: float, branches: int, min_probability: float) -> None:
        self._text = text
        self._odds = odds
        self._doubt = doubt
        self._branches = branches
        self._min_probability = min_probability
        self._open: list[_Candidate] = []
        self._num_candidates = 0

    def grow(self, match: Match, max_tokens: int) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        probabilities: list[float] = []
        self._add_followers(ROOT, match.state, match.length, 1.0)
        while self._open and len(tokens) < max_tokens:
            negated, _, parent, token, state, length = heappop(self._open)
            tokens.append(token)
            parents.append(parent)
            probabilities.append(-negated)
            self._add_followers(len(tokens) - 1, state, length, -negated)
        return Draft(tuple(tokens), tuple(parents), tuple(probabilities))

    def _add_followers(self, parent: int, state: int, length: int, probability: float) -> None:
        """Add what followed a string, the most frequent first, then the latest. The end of a text follows itself."""
        text = self._text
        if (state := text.continued(before := state)) != before:
            length = min(length, text.length[state])
        probability /= 1 + self._doubt * self._odds[min(length, MAX_KNOWN_LENGTH)]
        if probability < self._min_probability:
            return
        followers = text.followers(state)
        if len(followers) > MAX_FOLLOWERS:
            return
        occurred, recent = text.occurred, text.recent
        if len(followers) > 1:
            probability /= sum(occurred[follower.state] for follower in followers)
            followers.sort(key=lambda follower: (occurred[follower.state], recent[follower.state]), reverse=True)
        else:
            probability /= occurred[followers[0].state]
        for token, following in followers[: self._branches]:
            joint = probability * occurred[following]
            if joint >= self._min_probability:
                heappush(self._open, _Candidate(-joint, self._num_candidates, parent, token, following, length + 1))
                self._num_candidates += 1


def _chain(match: Match, odds: Odds, doubt: float, min_probability: float, max_tokens: int) -> Draft:
    """Return what a tree with a single branch grows to, without choosing between branches."""
    text, state, length = match
    tokens: list[int] = []
    probabilities: list[float] = []
    probability = 1.0
    while len(tokens) < max_tokens:
        if (state := text.continued(before := state)) != before:
            length = min(length, text.length[state])
        if text.num_followers(state) > MAX_FOLLOWERS:
            break
        (token, state), share = text.likeliest(state)
        probability *= share / (1 + doubt * odds[min(length, MAX_KNOWN_LENGTH)])
        if probability < min_probability:
            break
        tokens.append(token)
        probabilities.append(probability)
        length += 1
    return Draft(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)), tuple(probabilities))


class SuffixProposer:
    """Copies for every row.

    A match of one token is enough: where it is no hint, doubt says so, and after a change a copy goes on sooner than
    with two (measured on edited text: 8.3 tokens a pass instead of 7.7, on ordinary text no more rejected tokens).
    """

    def __init__(
        self,
        *,
        min_length: int = 1,
        max_length: int | None = None,
        branches: int = 1,
        min_probability: float = 0.25,
        shared: bool = False,
    ) -> None:
        """
        min_length: tokens of a match that is worth a draft.
        max_length: tokens at the end of a sequence that are looked up, at most; None for any number.
        branches: children of each node of a draft; with one it is a chain.
        min_probability: joint acceptance probability that a draft token must have.
        shared: copy from what other sequences of the tenant generated, too.
        """
        assert min_length >= 1 and branches >= 1 and 0 < min_probability <= 1
        self._min_length = min_length
        self._max_length = max_length
        self._branches = branches
        self._min_probability = min_probability
        self._rows: dict[int, _Row] = {}
        self._ends = CopyEndModel()
        self._tenants: OrderedDict[str, TenantTexts] | None = OrderedDict() if shared else None

    def start(self, row: int, tokens: Sequence[int], num_prompt_tokens: int, tenant: str) -> None:
        shared = None
        if self._tenants is not None:
            shared = SharedAnswer(self._texts_of(self._tenants, tenant))
            shared.write(tokens[max(num_prompt_tokens, len(tokens) - RESUMED_TOKENS) :])
        self._rows[row] = _Row(tokens, shared, self._ends, self._max_length)

    def _texts_of(self, tenants: OrderedDict[str, TenantTexts], tenant: str) -> TenantTexts:
        texts = tenants.setdefault(tenant, TenantTexts())
        tenants.move_to_end(tenant)
        if len(tenants) > MAX_TENANTS:
            tenants.popitem(last=False)
        return texts

    def extend(self, row: int, tokens: Sequence[int]) -> None:
        sequence = self._rows[row]
        sequence.learn_unverified(tokens)
        sequence.extend(tokens)

    def has_hint(self, row: int) -> bool:
        """Whether the last two tokens followed each other before. One alone is enough only after recent success."""
        sequence = self._rows[row]
        return sequence.repeats or sequence.occurs_in_shared

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(self._rows[request.row], min(request.max_tokens, MAX_NODES)) for request in requests]

    def _draft(self, row: _Row, max_tokens: int) -> Draft:
        match = row.match()
        if match.length < self._min_length:
            return NO_DRAFT
        odds, doubt = self._ends.odds, row.doubt
        if self._branches == 1:
            draft = _chain(match, odds, doubt, self._min_probability, max_tokens)
        else:
            growth = _TreeGrowth(match.text, odds, doubt, self._branches, self._min_probability)
            draft = growth.grow(match, max_tokens)
        row.unverified = (draft, match.length)
        return draft

    def observe(self, row: int, draft: Draft, sampled: Sequence[int]) -> None:
        if len(draft):
            self._rows[row].learn(draft, sampled)
