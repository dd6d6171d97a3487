"""The lanes of the suite: `quick` proves every behaviour once, `full` adds the grids and the long runs.

`make test` runs the quick lane, `make test-full` everything that it leaves out, with more examples of each property.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any

import pytest
from hypothesis import settings

LANES = ("quick", "full", "all")

EXAMPLES = {"quick": 20, "full": 100}
"""Examples of a property that names no number of its own."""

for _lane, _count in EXAMPLES.items():
    settings.register_profile(_lane, max_examples=_count, derandomize=True, deadline=None, database=None)


def load_profile(lane: str) -> None:
    """Make tests imported from now on try as many examples as the lane has time for."""
    settings.load_profile("quick" if lane == "quick" else "full")


def examples(count: int, **more: Any) -> settings:
    """Return settings that try `count` examples in the full lane and a fifth of them in the quick one."""
    share = settings.default.max_examples / EXAMPLES["full"]  # type: ignore[attr-defined]
    return settings(max_examples=min(count, max(10, ceil(count * share))), **more)


def full(*values: Any) -> list[Any]:
    """Return values of one parameter whose cases run in the full lane alone."""
    return [pytest.param(value, marks=pytest.mark.full) for value in values]


def select(items: Sequence[pytest.Item], lane: str) -> list[bool]:
    """Return for each test whether it runs in the lane."""
    if lane == "all":
        return [True] * len(items)
    quick = [item.get_closest_marker("full") is None for item in items]
    grids: dict[str, list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        if quick[index] and hasattr(item, "callspec") and item.get_closest_marker("each_choice"):
            grids[item.nodeid.partition("[")[0]].append(index)
    for indices in grids.values():
        cases = [items[index].callspec.params for index in indices]  # type: ignore[attr-defined]
        for index, chosen in zip(indices, each_choice(cases), strict=True):
            quick[index] = chosen
    if lane == "quick":
        return quick
    return [not now or is_property(item) for item, now in zip(items, quick, strict=True)]


def each_choice(cases: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Return which cases of a grid to take so that every value of every parameter occurs, in few cases.

    Each case is the one with the most values that do not occur yet. Values are the same when they are the same object,
    as those are that pytest combines.
    """
    left = {index: {(name, id(value)) for name, value in case.items()} for index, case in enumerate(cases)}
    chosen = [False] * len(cases)
    while left:
        best = max(left, key=lambda index: len(left[index]))
        chosen[best] = True
        covered = left[best]
        left = {index: rest for index, values in left.items() if (rest := values - covered)}
    return chosen


def is_property(item: pytest.Item) -> bool:
    return bool(getattr(getattr(item, "function", None), "is_hypothesis_test", False))


def left_out(items: Iterable[pytest.Item], selected: Iterable[bool]) -> list[str]:
    """Return the files of which no test is selected."""
    files: dict[str, bool] = {}
    for item, chosen in zip(items, selected, strict=True):
        files[str(item.path)] = files.get(str(item.path), False) or chosen
    return [path for path, any_chosen in files.items() if not any_chosen]
