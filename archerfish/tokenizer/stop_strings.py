"""Finds stop strings in text that arrives in pieces."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple


class StopMatch(NamedTuple):
    """A stop string found in a piece of text."""

    stop: str
    end: int
    """Where it ends, counted from the start of the piece. It may have begun in an earlier piece."""


class StopStrings:
    """Reads text character by character and tracks how much of each stop string is at its end.

    This is the search of Knuth, Morris and Pratt, so a character costs the same however long the stop strings are, and
    the result does not depend on how the text is divided into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string is found everywhere"
        # Longest first: of two that end at the same character, the longer one began earlier.
        self._stops = sorted(set(stops), key=lambda stop: (-len(stop), stop))
        self._fallbacks = [_fallbacks(stop) for stop in self._stops]
        self._num_matched = [0] * len(self._stops)

    @property
    def num_open(self) -> int:
        """How many characters at the end of the text may still become a stop string."""
        return max(self._num_matched, default=0)

    def find(self, piece: str, *, may_stop: bool = True) -> StopMatch | None:
        """Read a piece and return the stop string that is complete first, if any. What follows it is not read.

        Without `may_stop` the text is read all the same: a stop string may begin here and end in a later piece.
        """
        if not self._stops:
            return None
        for position, character in enumerate(piece):
            for index, stop in enumerate(self._stops):
                if self._advance(index, stop, character) and may_stop:
                    return StopMatch(stop, position + 1)
        return None

    def _advance(self, index: int, stop: str, character: str) -> bool:
        """Return whether the stop string is complete with this character."""
        fallbacks, matched = self._fallbacks[index], self._num_matched[index]
        while matched and stop[matched] != character:
            matched = fallbacks[matched - 1]
        if stop[matched] == character:
            matched += 1
        is_complete = matched == len(stop)
        self._num_matched[index] = fallbacks[matched - 1] if is_complete else matched
        return is_complete


@lru_cache(maxsize=1024)
def _fallbacks(stop: str) -> list[int]:
    """Return for each prefix of the stop string the length of its longest proper suffix that is also a prefix.

    The lists are shared by all answers with the same stop strings and must not be changed.
    """
    fallbacks = [0]
    length = 0
    for character in stop[1:]:
        while length and stop[length] != character:
            length = fallbacks[length - 1]
        if stop[length] == character:
            length += 1
        fallbacks.append(length)
    return fallbacks
