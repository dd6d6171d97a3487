"""Steps that were planned and whose results are not known yet. Knows who is in them; decides nothing."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from archerfish.kvcache.tables import BlockCopy
from archerfish.scheduling.plan import Chunk, Plan
from archerfish.scheduling.sequence import Sequence


class _Flight(NamedTuple):
    step: int
    chunks: Mapping[Sequence, Chunk]
    """In the plan's order."""
    copies: list[BlockCopy]
    """The source blocks are retained until the step is done, whatever becomes of the sequences that hold them."""


class Flights:
    """Oldest first: executors run steps in the order of their plans, and results are committed in that order."""

    def __init__(self) -> None:
        self._flights: deque[_Flight] = deque()

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def has_draft_tokens(self) -> bool:
        """Whether a step may bring more than one token for a draw."""
        return any(chunk.max_draft_tokens for flight in self._flights for chunk in flight.chunks.values())

    def take_off(self, step: int, chunks: Mapping[Sequence, Chunk], copies: list[BlockCopy]) -> None:
        """Add a step that was planned."""
        self._flights.append(_Flight(step, chunks, copies))

    def land(self, plan: Plan) -> Iterable[Sequence]:
        """The oldest step is done: whose chunks it had, in their order."""
        assert self._flights and self._flights[0].step == plan.step, "commit every plan once, in the order of the plans"
        return self._flights.popleft().chunks

    @property
    def copies(self) -> list[BlockCopy]:
        """The copies of all steps in flight."""
        return [copy for flight in self._flights for copy in flight.copies]

    def clear(self) -> None:
        self._flights.clear()

    def last_step(self, sequence: Sequence) -> int | None:
        """The last step that uses the sequence's row and blocks; None if none does."""
        return next((flight.step for flight in reversed(self._flights) if sequence in flight.chunks), None)

    def check(self, running: Iterable[Sequence], leaving: Mapping[Sequence, int]) -> None:
        """What sequences count on is what steps in flight will bring, and none is let go before its last step."""
        steps = [flight.step for flight in self._flights]
        assert steps == sorted(set(steps)), "steps are out of order"
        aboard = {sequence for flight in self._flights for sequence in flight.chunks}
        assert aboard <= {*running, *leaving}, "a step uses a row that was given back"
        for sequence in running:
            chunks = [flight.chunks[sequence] for flight in self._flights if sequence in flight.chunks]
            num_drawn = sum(chunk.samples for chunk in chunks)
            assert sequence.length == len(sequence.tokens) + num_drawn, "a token is expected that nobody draws"
            assert sequence.length <= sequence.length_limit, "a sequence is planned beyond its end"
            ends = [chunk.start + chunk.length for chunk in chunks]
            assert [chunk.start for chunk in chunks[1:]] == ends[:-1], "a chunk must continue where the last one ends"
            start, end = (chunks[0].start, ends[-1]) if chunks else (sequence.computed, sequence.computed)
            assert (sequence.stored, sequence.computed) == (start, end), "progress is not what is planned"
        for sequence, step in leaving.items():
            assert sequence.ended and self.last_step(sequence) == step, "an ended sequence leaves at the wrong time"
