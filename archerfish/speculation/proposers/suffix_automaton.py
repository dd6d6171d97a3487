"""A suffix automaton: an index of every string that occurs in texts which still grow.

A state represents strings that end at the same positions of the texts; its longest one has `length[state]` tokens, and
each of the others is a suffix of it. `link[state]` has the longest suffix that also ends elsewhere. So the state at the
end of a text links to the longest suffix that occurred before, and following transitions from there reads what came
after it: both without a search.

States are numbers into flat arrays: a prompt of 100,000 tokens makes up to twice as many of them.
"""

from array import array
from collections.abc import Iterable
from typing import NamedTuple

EMPTY = 0
"""The state of the empty string: where every text begins."""

COUNTED_SUFFIXES = 32
"""Suffixes of each token written whose occurrence is counted, longest first.

Ordinary text has a handful of suffixes that occurred before; a line repeated all over has as many as it has tokens.
Beyond the bound the counts of short suffixes lag behind, and they are used only where no longer one is found.
"""

_NOTHING = -1  # Nothing followed the state; no token is negative.
_SEVERAL = -2  # Several tokens followed the state: they are in a dict of their own.


class Follower(NamedTuple):
    """A token that followed a string, and the state of both together."""

    token: int
    state: int


class SuffixAutomaton:
    """An automaton of any number of texts, which grow at their ends. Nothing is ever removed."""

    __slots__ = ("_forks", "_target", "_token", "length", "link", "num_tokens", "occurred", "recent")

    def __init__(self) -> None:
        self.num_tokens = 0
        """Tokens of all texts."""
        self.length = array("i", [0])
        """Tokens of each state's longest string."""
        self.link = array("i", [EMPTY])
        """Each state's longest suffix that also ends elsewhere. The empty string is its own."""
        self.occurred = array("i", [0])
        """How often each state's strings occurred, all equally often. See COUNTED_SUFFIXES."""
        self.recent = array("i", [0])
        """The number of tokens of all texts when each state's strings occurred last. For one text that is where."""
        # Most states have one follower: it needs no dict, which would weigh more than all the rest of the state.
        self._token = array("i", [_NOTHING])
        self._target = array("i", [EMPTY])
        self._forks: dict[int, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self.length)

    def extend(self, end: int, tokens: Iterable[int]) -> int:
        """Append tokens to the text that ends in this state (EMPTY begins one), and return the state at its new end."""
        for token in tokens:
            known = self.follow(end, token)
            if known is None:
                end = self._grow(end, token)
            elif self.length[known] == self.length[end] + 1:
                end = known
            else:
                end = self._split(end, token, known)
            self.num_tokens += 1
            self._count(end)
        return end

    def follow(self, state: int, token: int) -> int | None:
        """Return the state of its strings with this token after them, if it ever followed them."""
        only = self._token[state]
        if only == token:
            return self._target[state]
        return self._forks[state].get(token) if only == _SEVERAL else None

    def followers(self, state: int) -> list[Follower]:
        only = self._token[state]
        if only == _SEVERAL:
            return [Follower(token, target) for token, target in self._forks[state].items()]
        return [] if only == _NOTHING else [Follower(only, self._target[state])]

    def likeliest(self, state: int) -> tuple[Follower, float]:
        """Return the token that followed a continued state most often, the latest of several, and its share."""
        only = self._token[state]
        if only != _SEVERAL:
            return Follower(only, self._target[state]), 1.0
        occurred, recent = self.occurred, self.recent
        forks = self._forks[state].items()
        token, following = max(forks, key=lambda fork: (occurred[fork[1]], recent[fork[1]]))
        return Follower(token, following), occurred[following] / sum(occurred[target] for _, target in forks)

    def num_followers(self, state: int) -> int:
        only = self._token[state]
        return len(self._forks[state]) if only == _SEVERAL else int(only != _NOTHING)

    def continued(self, state: int) -> int:
        """Return the state of the longest suffix that something followed: this one if a text continued it."""
        token, link = self._token, self.link
        while state and token[state] == _NOTHING:
            state = link[state]
        return state

    # -- growing --------------------------------------------------------------------------------------------------

    def _grow(self, end: int, token: int) -> int:
        """Add a state for a new string. Every suffix of it that is new leads there, too."""
        only, targets, forks, link = self._token, self._target, self._forks, self.link
        added = self._add(self.length[end] + 1)
        state = end
        while True:
            follower = only[state]
            if follower == _NOTHING:
                only[state], targets[state] = token, added
            elif follower == _SEVERAL:
                fork = forks[state]
                known = fork.get(token)
                if known is not None:
                    break
                fork[token] = added
            elif follower == token:
                known = targets[state]
                break
            else:
                forks[state] = {follower: targets[state], token: added}
                only[state] = _SEVERAL
            if state == EMPTY:
                return added
            state = link[state]
        if self.length[known] != self.length[state] + 1:
            known = self._split(state, token, known)
        link[added] = known
        return added

    def _split(self, state: int, token: int, known: int) -> int:
        """Split the short strings of a state from its long ones, which do not end where the short ones do now."""
        only, targets, forks = self._token, self._target, self._forks
        short = self._add(self.length[state] + 1)
        self.occurred[short], self.recent[short] = self.occurred[known], self.recent[known]
        only[short], targets[short] = only[known], targets[known]
        if only[known] == _SEVERAL:
            forks[short] = forks[known].copy()
        self.link[short], self.link[known] = self.link[known], short
        while self.follow(state, token) == known:
            if only[state] == _SEVERAL:
                forks[state][token] = short
            else:
                targets[state] = short
            if state == EMPTY:
                break
            state = self.link[state]
        return short

    def _add(self, length: int) -> int:
        self.length.append(length)
        self.link.append(EMPTY)
        self.occurred.append(0)
        self.recent.append(0)
        self._token.append(_NOTHING)
        self._target.append(EMPTY)
        return len(self.length) - 1

    def _count(self, state: int) -> None:
        occurred, recent, link, now = self.occurred, self.recent, self.link, self.num_tokens
        for _ in range(COUNTED_SUFFIXES):
            if state == EMPTY:
                return
            occurred[state] += 1
            recent[state] = now
            state = link[state]
