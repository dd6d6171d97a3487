"""Steps that were planned and whose results are not known yet."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from archerfish.kvcache.tables import BlockCopy
from archerfish.scheduling.plan import Chunk, Plan
from archerfish.scheduling.sequence import Sequence


class _InFlightStep(NamedTuple):
    number: int
    chunks: Mapping[Sequence, Chunk]
    """The step's chunks in the plan's order."""
    copies: list[BlockCopy]
    """The source blocks are retained until the step is done, whatever becomes of the sequences that hold them."""


class InFlightSteps:
    """Oldest first: executors run steps in the order of their plans, and results are committed in that order."""

    def __init__(self) -> None:
        self._steps: deque[_InFlightStep] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def has_draft_tokens(self) -> bool:
        """Whether a step may return more than one token for a draw."""
        return any(chunk.max_draft_tokens for step in self._steps for chunk in step.chunks.values())

    @property
    def copies(self) -> list[BlockCopy]:
        """The block copies of all steps in flight."""
        return [copy for step in self._steps for copy in step.copies]

    def push(self, number: int, chunks: Mapping[Sequence, Chunk], copies: list[BlockCopy]) -> None:
        """Add a step that was planned."""
        self._steps.append(_InFlightStep(number, chunks, copies))

    def pop(self, plan: Plan) -> Iterable[Sequence]:
        """Remove the oldest step, which is done, and return the sequences of its chunks in their order."""
        assert self._steps and self._steps[0].number == plan.step, "commit every plan once, in the order of the plans"
        return self._steps.popleft().chunks

    def clear(self) -> None:
        """Forget all steps."""
        self._steps.clear()

    def last_step(self, sequence: Sequence) -> int | None:
        """Return the last step that uses the sequence's row and blocks; None if none does."""
        return next((step.number for step in reversed(self._steps) if sequence in step.chunks), None)

    def check(self, running: Iterable[Sequence], retired: Mapping[Sequence, int]) -> None:
        """Check that sequences count on what steps in flight bring, and that none is freed before its last step."""
        numbers = [step.number for step in self._steps]
        assert numbers == sorted(set(numbers)), "steps are out of order"
        in_flight = {sequence for step in self._steps for sequence in step.chunks}
        assert in_flight <= {*running, *retired}, "a step uses a row that was released"
        for sequence in running:
            chunks = [step.chunks[sequence] for step in self._steps if sequence in step.chunks]
            num_drawn = sum(chunk.samples for chunk in chunks)
            assert sequence.length == len(sequence.tokens) + num_drawn, "a token is expected that no step draws"
            assert sequence.length <= sequence.length_limit, "a sequence is planned beyond its end"
            ends = [chunk.start + chunk.length for chunk in chunks]
            assert [chunk.start for chunk in chunks[1:]] == ends[:-1], "a chunk must continue where the last one ends"
            start, end = (chunks[0].start, ends[-1]) if chunks else (sequence.computed, sequence.computed)
            assert (sequence.stored, sequence.computed) == (start, end), "progress is not what is planned"
        for sequence, number in retired.items():
            assert sequence.ended and self.last_step(sequence) == number, "an ended sequence is freed at the wrong time"
