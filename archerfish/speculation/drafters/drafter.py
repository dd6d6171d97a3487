"""Networks that guess tokens for the model: what their passes have in common. Knows neither requests nor choices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step.model import ForwardOutput, RunnableModel
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.storage import KVStorage
from archerfish.kvcache.tables import BlockCopy
from archerfish.ops.arrays import Ints
from archerfish.ops.cpu.drafting import Drafted
from archerfish.ops.signatures import DrawRows
from archerfish.speculation.drafters.feature_store import FeatureStore


class Network(Protocol):
    """Guesses token after token. What it keeps of tokens it has read lies in blocks of the model's cache."""

    @property
    def lag(self) -> int:
        """How many tokens at a sequence's end are not read as such: it reads places up to `end - lag`."""

    @property
    def keeps(self) -> bool:
        """It remembers tokens it has read; else it looks at the last one only."""

    @property
    def trusts_guesses(self) -> bool:
        """What it keeps of its own guesses is right where they stand."""

    def read(self, batch: StepBatch) -> Tensor:
        """Read tokens that stand in rows. Logits [picked, vocabulary] of what follows the picked ones."""

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Blocks that it keeps something in."""

    def go_on(self, batch: StepBatch, kept: list[int]) -> Tensor:
        """The same for one token of each row, guessed by the pass before; `kept` are the rows' places in that pass."""

    def draft(self, batch: StepBatch, draw_rows: DrawRows, counts: Ints) -> Drafted | None:
        """Read, draw and go on until each picked row has `counts` guesses, in one call; None if it cannot.

        The first of them are drawn as `draw_rows`, each further one a position on. Those that are read are on the rows.
        """


class DraftsAtOnce(Protocol):
    def __call__(self, batch: StepBatch, draw_rows: DrawRows, counts: Ints, *given: Tensor) -> Drafted:
        """As a network's `draft`; given is what its first pass takes beside tokens, [T, width] each."""


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A whole model, smaller than the one it guesses for."""

    model: RunnableModel
    storage: KVStorage
    rows: Rows
    at_once: DraftsAtOnce | None = None
    lag: int = 0
    keeps: bool = True
    trusts_guesses: bool = True

    def read(self, batch: StepBatch) -> Tensor:
        return self.model.run(batch, self.rows).logits

    def go_on(self, batch: StepBatch, kept: list[int]) -> Tensor:
        return self.read(batch)

    def draft(self, batch: StepBatch, draw_rows: DrawRows, counts: Ints) -> Drafted | None:
        return None if self.at_once is None else self.at_once(batch, draw_rows, counts)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        self.storage.copy(copies)


class Vocabulary:
    """The tokens that a head can guess, among all of the target's."""

    def __init__(self, size: int, target_ids: Tensor | None) -> None:
        self.size = size
        self.target_ids = target_ids
        """[tokens it can guess], or None: all of them."""

    def spread(self, logits: Tensor) -> Tensor:
        """[rows, tokens it can guess] -> [rows, vocabulary], where what it cannot guess is impossible."""
        if self.target_ids is None:
            return logits
        found = logits.new_full((len(logits), self.size), -torch.inf)
        found[:, self.target_ids] = logits
        return found


class HeadPass(Protocol):
    def run(self, batch: StepBatch, rows: Rows, given: Tensor) -> ForwardOutput:
        """Over tokens of rows, and for each of them [width] of something else."""


class EagleNetwork:
    """EAGLE-3: reads a token beside what the target made of the one before; further on, what it made of that itself."""

    lag = 1
    keeps = True
    trusts_guesses = False  # Where a guess stands, the target's own features are better.

    def __init__(
        self,
        first: HeadPass,
        further: HeadPass,
        storage: KVStorage,
        features: FeatureStore,
        rows: Rows,
        vocabulary: Vocabulary,
        at_once: DraftsAtOnce | None = None,
    ) -> None:
        """`first` takes features, `further` states. Rows have the token after each place in it."""
        self._first = first
        self._further = further
        self._storage = storage
        self._features = features
        self._rows = rows
        self._vocabulary = vocabulary
        self._at_once = at_once
        self._states: Tensor | None = None
        """Of the tokens that were picked last."""

    def read(self, batch: StepBatch) -> Tensor:
        passed = self._first.run(batch, self._rows, self._features.of(batch))
        return self._scored(batch, passed)

    def go_on(self, batch: StepBatch, kept: list[int]) -> Tensor:
        assert self._states is not None
        return self._scored(batch, self._further.run(batch, self._rows, self._states[kept]))

    def draft(self, batch: StepBatch, draw_rows: DrawRows, counts: Ints) -> Drafted | None:
        return None if self._at_once is None else self._at_once(batch, draw_rows, counts, self._features.of(batch))

    def _scored(self, batch: StepBatch, passed: ForwardOutput) -> Tensor:
        self._states = passed.hidden[torch.from_numpy(batch.logit_indices).to(passed.hidden.device)]
        return self._vocabulary.spread(passed.logits)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        self._storage.copy(copies)


class MedusaNetwork:
    """Medusa: each head guesses a place further on, from the target's last state alone."""

    lag = 1
    keeps = False
    trusts_guesses = False

    def __init__(self, heads: Callable[[Tensor], list[Tensor]], features: FeatureStore, vocabulary: Vocabulary) -> None:
        self._heads = heads
        self._features = features
        self._vocabulary = vocabulary
        self._further: list[Tensor] = []
        """Logits of heads that were not draw_rows for yet."""

    def read(self, batch: StepBatch) -> Tensor:
        states = self._features.of(batch)
        first, *self._further = self._heads(states[torch.from_numpy(batch.logit_indices).to(states.device)])
        return self._vocabulary.spread(first)

    def go_on(self, batch: StepBatch, kept: list[int]) -> Tensor:
        # All rows that go on were in the pass before, and before that.
        self._further = [logits[kept] for logits in self._further]
        return self._vocabulary.spread(self._further.pop(0))

    def draft(self, batch: StepBatch, draw_rows: DrawRows, counts: Ints) -> Drafted | None:
        # All heads are one pass: there is nothing between passes to be saved.
        return None

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """It keeps nothing."""
