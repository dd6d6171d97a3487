"""Finds the lines that the engine fails with among those that were in flight when it failed."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

_Line = TypeVar("_Line")

Trial = Callable[[Sequence[_Line]], Awaitable[list[_Line]]]
"""Has a group answered with nothing else in flight, and returns those of its lines that got no answer because the
engine failed.

A group of a single line ends the search: the trial itself records what became of it.
"""


async def isolate(group: Sequence[_Line], trial: Trial[_Line]) -> None:
    """Try the lines of a group that failed as a whole, until each is answered or has failed alone.

    An engine failure costs much more than a successful trial, so the halves are not both tried: if the first succeeds,
    the second is to blame. One bad line of 256 costs four failures on average before it is found, and eight at most.
    """
    if len(group) <= 1:
        await trial(group)
        return
    half = len(group) // 2
    first, second = group[:half], group[half:]
    left = await trial(first)
    if not left:
        await isolate(second, trial)
        return
    if half > 1:
        await isolate(left, trial)
    left = await trial(second)
    if left and len(second) > 1:
        await isolate(left, trial)
