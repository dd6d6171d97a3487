"""Counts what happened, and judges it in the end."""

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

MOST_GROWTH = 0.03
"""Of the memory after the first tenth."""
LEAST_SAMPLES = 20
"""With fewer, nothing is said of memory."""
_MOST_KEPT = 20
"""Failures whose words are kept."""


class Finding(NamedTuple):
    """One line of the verdict."""

    what: str
    found: str
    is_good: bool


@dataclass(slots=True)
class Ledger:
    answered: Counter[str] = field(default_factory=Counter)
    """By kind, answers that were right."""
    excused: Counter[str] = field(default_factory=Counter)
    """By reason, requests that got none because something was killed."""
    killed: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Answers that differ from the expected ones."""
    lost: list[str] = field(default_factory=list)
    """Requests and batch lines that got no answer, and no excuse."""
    doubled: list[str] = field(default_factory=list)
    """Batch lines that were answered more than once."""
    refused: list[str] = field(default_factory=list)
    """Requests in order that were refused, and errors that no service in order gives."""
    leftovers: list[str] = field(default_factory=list)
    """What was still there at the end: open requests, blocks in use, processes."""
    num_batches: int = 0
    num_lines: int = 0
    memory: dict[str, list[float]] = field(default_factory=dict)
    """By process, megabytes at even intervals while nothing is killed, after the first tenth."""

    @property
    def num_answered(self) -> int:
        return sum(self.answered.values())

    def note(self, failures: list[str], words: str) -> None:
        """Keep one more failure; of many of a kind, only the first ones with their words."""
        failures.append(words if len(failures) < _MOST_KEPT else "...")

    def growth(self, process: str) -> float | None:
        """Of the memory, from the first fifth of its samples to the last; None with too few."""
        samples = self.memory[process]
        if len(samples) < LEAST_SAMPLES:
            return None
        part = len(samples) // 5
        return median(samples[-part:]) / median(samples[:part]) - 1

    def findings(self) -> list[Finding]:
        """The verdict, line by line."""
        lists = {
            "wrong answers": self.wrong,
            "lost requests and lines": self.lost,
            "doubled lines": self.doubled,
            "refused or broken": self.refused,
            "left over at the end": self.leftovers,
        }
        found = [Finding(what, str(len(failures)), not failures) for what, failures in lists.items()]
        for process in self.memory:
            growth = self.growth(process)
            words = "too few samples" if growth is None else f"{growth:+.1%}, {_megabytes(self.memory[process])}"
            found.append(Finding(f"memory: {process}", words, growth is None or growth <= MOST_GROWTH))
        found.append(Finding("answers", f"{self.num_answered:,}", self.num_answered > 0))
        found.append(Finding("batches", f"{self.num_batches} of {self.num_lines} lines", self.num_batches > 0))
        return found

    @property
    def is_good(self) -> bool:
        return all(finding.is_good for finding in self.findings())


def _megabytes(samples: list[float]) -> str:
    return f"{samples[0]:.0f} to {samples[-1]:.0f} MB"
