"""How far sequences that are written side by side have come, and what it is worth to write more of each.

They end together only if all of them come on: a step that one of them saves is made all the same for the others. So
guesses save something as far as the slowest can be made faster, and what others write beyond that saves nothing. Where
somebody waits for the first place that becomes free, all count alike.
"""

from collections.abc import Mapping

_FAST = 1.5
"""Tokens a step, from which on a sequence is made faster by guesses; below, it costs more than it brings."""
_PRIOR = 8
"""Steps that a sequence is thought to have come on as others did, before it began."""
_WEIGHT = 0.05
"""Of a sequence that has ended against those before it."""


class Progress:
    """Of each row, in tokens written and steps made since its sequence began."""

    def __init__(self) -> None:
        self._usual = 1.0
        """Tokens a step."""
        self._began: dict[int, int] = {}
        """The step at which each row did, if it wrote a token in every step until it was first looked at."""
        self._last: dict[int, float] = {}
        """Its speed when it was last asked for."""
        self._saved = 0
        """Steps that were saved for all so far."""
        self._saved_before: dict[int, int] = {}
        """When each row began."""

    def start(self, row: int) -> None:
        """Another sequence takes up the row."""
        self._usual += _WEIGHT * (self._last.pop(row, 1.0) - self._usual)
        self._began.pop(row, None)

    def _num_steps(self, row: int, num_written: int, step: int) -> int:
        if row not in self._began:
            self._began[row], self._saved_before[row] = step - num_written, self._saved
        return step - self._began[row]

    def speed(self, row: int, num_written: int, step: int) -> float:
        """Tokens a step of a row that has written so many by now."""
        num_steps = self._num_steps(row, num_written, step)
        speed = self._last[row] = (num_written + _PRIOR * self._usual) / (num_steps + _PRIOR)
        return speed

    def saved(self, num_written: Mapping[int, int], step: int) -> int:
        """Steps that were saved since it was last asked: by which all rows that are still written are ahead."""
        ahead = [
            number - self._num_steps(row, number, step) + self._saved_before[row] for row, number in num_written.items()
        ]
        before, self._saved = self._saved, max(self._saved, min(ahead, default=0))
        return self._saved - before


def worths(left: Mapping[int, float], speeds: Mapping[int, float]) -> dict[int, float]:
    """What a token of each row is worth, as a part of what a token costs, by the tokens that are left to write."""
    if len(left) <= 1:
        return dict.fromkeys(left, 1.0)
    end = max(num_left / (speeds[row] if speeds[row] >= _FAST else 1.0) for row, num_left in left.items())
    ahead = {row: max(0.0, num_left - end) for row, num_left in left.items()}
    if not any(ahead.values()):
        return dict.fromkeys(left, 0.0)
    # Steps that are saved if all of it is written ahead; they are as long as all tokens of a step cost.
    worth = len(left) * (max(left.values()) - end) / sum(ahead.values())
    return {row: worth if num_ahead else 0.0 for row, num_ahead in ahead.items()}
