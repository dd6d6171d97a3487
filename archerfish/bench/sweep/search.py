"""Finds the highest load that holds, by measuring: doubling, then bisection. Knows nothing of servers.

Measurements are noisy, so a load is tried several times and the majority decides; a trial may also be inconclusive. A
load that holds is assumed to hold at every lower load.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Generic, Literal, TypeVar

Detail = TypeVar("Detail")

Outcome = Literal["held", "missed", "not counted"]
Ending = Literal["missed", "saturated", "not counted", "all held", "budget", "nothing held"]
"""Why the search ended: a slightly higher load missed, brought no more throughput or could not be measured; all listed
loads held; no measurements were left; or not even the lowest load held.
"""

_NO_GROWTH = 1.1
"""Growth of throughput that a doubled load must bring; below it, the server is saturated."""
_MOST_HALVINGS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTrial(Generic[Detail]):
    """One measurement at a load."""

    outcome: Outcome
    throughput: float
    """Throughput in any unit that grows with the load until saturation."""
    detail: Detail


@dataclass(frozen=True, slots=True)
class LoadPoint(Generic[Detail]):
    """A load and its trials."""

    load: float
    trials: tuple[LoadTrial[Detail], ...]

    @property
    def counted(self) -> list[LoadTrial[Detail]]:
        return [trial for trial in self.trials if trial.outcome != "not counted"]

    @property
    def outcome(self) -> Outcome:
        """The majority of conclusive trials; a tie counts as missed."""
        counted = self.counted
        if not counted:
            return "not counted"
        return "held" if 2 * sum(trial.outcome == "held" for trial in counted) > len(counted) else "missed"

    @property
    def throughput(self) -> float:
        """Mean of conclusive trials; 0 without any."""
        counted = self.counted
        return sum(trial.throughput for trial in counted) / len(counted) if counted else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    loads: tuple[float, ...] = ()
    """Loads to measure in any case. Without any, `start` is doubled while that brings more throughput."""
    start: float = 1.0
    is_whole: bool = False
    """Whether loads are whole numbers."""
    num_repeats: int = 3
    """Most trials at a load, which end when the majority is certain."""
    tolerance: float = 0.05
    """Largest gap between the best load and the next one that missed, as a share."""
    most_points: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Generic[Detail]):
    points: tuple[LoadPoint[Detail], ...]
    """Points by load, ascending."""
    best: LoadPoint[Detail] | None
    """The highest load that held, below all that did not."""
    ending: Ending


def search(measure: Callable[[float], LoadTrial[Detail]], plan: SearchPlan) -> Found[Detail]:
    """Measure loads one after another, and return the result; `measure` gets only the load."""
    walk = _Walk(measure, plan)
    top: Ending = walk.visit_all(plan.loads) if plan.loads else walk.climb()
    ending = walk.bisect() or top
    best = walk.best
    return Found(points=walk.points, best=best, ending="nothing held" if best is None else ending)


class _Walk(Generic[Detail]):
    """The state of a search."""

    def __init__(self, measure: Callable[[float], LoadTrial[Detail]], plan: SearchPlan) -> None:
        self._measure = measure
        self._plan = plan
        self._points: dict[float, LoadPoint[Detail]] = {}

    @property
    def points(self) -> tuple[LoadPoint[Detail], ...]:
        return tuple(self._points[load] for load in sorted(self._points))

    @property
    def best(self) -> LoadPoint[Detail] | None:
        lowest_missed = min((point.load for point in self.points if point.outcome == "missed"), default=inf)
        held = [point for point in self.points if point.outcome == "held" and point.load < lowest_missed]
        return held[-1] if held else None

    @property
    def _bound(self) -> LoadPoint[Detail] | None:
        """Return the lowest load above the best that did not hold. One that could not be measured counts, too."""
        reached = 0.0 if self.best is None else self.best.load
        return next((point for point in self.points if point.load > reached and point.outcome != "held"), None)

    @property
    def _is_spent(self) -> bool:
        return len(self._points) >= self._plan.most_points

    def visit(self, load: float) -> LoadPoint[Detail]:
        trials: list[LoadTrial[Detail]] = []
        for _ in range(self._plan.num_repeats):
            trials.append(self._measure(load))
            if _is_certain(trials, self._plan.num_repeats):
                break
        self._points[load] = LoadPoint(load, tuple(trials))
        return self._points[load]

    def visit_all(self, loads: Sequence[float]) -> Ending:
        for load in sorted(loads):
            self.visit(load)
        return "all held"

    def climb(self) -> Ending:
        """Double the load while it holds and brings more; halve it while nothing has held."""
        point = self.visit(self._plan.start)
        while point.outcome == "held" and not self._is_spent:
            before, point = point, self.visit(point.load * 2)
            if point.outcome == "held" and point.throughput < _NO_GROWTH * before.throughput:
                return "saturated"
        for _ in range(_MOST_HALVINGS):
            load = min(self._points) / 2
            if self.best is not None or self._is_spent or (self._plan.is_whole and load < 1):
                break
            self.visit(float(int(load)) if self._plan.is_whole else load)
        return "budget"

    def bisect(self) -> Ending | None:
        """Narrow the gap between the load that held and the one that did not; return None if there is no such gap."""
        while (best := self.best) is not None and (bound := self._bound) is not None:
            middle = self._between(best.load, bound.load)
            if middle is None:
                return "not counted" if bound.outcome == "not counted" else "missed"
            if self._is_spent:
                return "budget"
            self.visit(middle)
        return None

    def _between(self, low: float, high: float) -> float | None:
        """Return a load between two; None if they are close enough."""
        if self._plan.is_whole:
            close = high - low <= max(1.0, self._plan.tolerance * low)
            return None if close else float((int(low) + int(high)) // 2)
        return None if high <= low * (1 + self._plan.tolerance) else (low * high) ** 0.5


def _is_certain(trials: list[LoadTrial[Detail]], num_repeats: int) -> bool:
    """Return whether the remaining trials cannot change the majority."""
    held = sum(trial.outcome == "held" for trial in trials)
    missed = sum(trial.outcome == "missed" for trial in trials)
    left = num_repeats - len(trials)
    # A tie is missed, so a majority of misses needs no lead.
    return held > missed + left or missed >= held + left
