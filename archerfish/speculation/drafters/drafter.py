"""Drafters that can be run: draft models, EAGLE-3 and Medusa heads behind one protocol."""

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


class RunnableDrafter(Protocol):
    """Drafts token after token. What it caches of tokens lies in blocks of the same numbers as the model's."""

    @property
    def token_lag(self) -> int:
        """Tokens at a sequence's end that it does not compute: it computes positions up to `length - token_lag`."""

    @property
    def has_kv_cache(self) -> bool:
        """Whether it caches the tokens it has computed; otherwise it reads the last one only."""

    @property
    def reuses_accepted_kv(self) -> bool:
        """Whether what it caches of its own draft tokens is right if they are accepted."""

    def forward(self, batch: StepBatch) -> Tensor:
        """Compute tokens of rows. Logits [logits, vocabulary] of what follows those at the logit indices."""

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks of its cache."""

    def forward_next(self, batch: StepBatch, indices: list[int]) -> Tensor:
        """Compute one token of each row, drafted by the pass before, in which the rows had these indices."""

    def draft(self, batch: StepBatch, draw_rows: DrawRows, counts: Ints) -> Drafted | None:
        """Compute a batch and draft `counts` tokens for each of its rows in one call; None if it cannot.

        The first of them are sampled by `draw_rows`, each further one a position on. Rows get those that are computed.
        """


class DraftFunction(Protocol):
    """Whole drafts in one native call."""

    def __call__(self, batch: StepBatch, draw_rows: DrawRows, counts: Ints, *given: Tensor) -> Drafted:
        """Draft as a drafter's `draft`; given is what its first pass takes besides tokens, [T, width] each."""


@dataclass(frozen=True, slots=True)
class RunnableDraftModel:
    """A whole model, smaller than the one it drafts for."""

    model: RunnableModel
    storage: KVStorage
    rows: Rows
    native_drafting: DraftFunction | None = None
    token_lag: int = 0
    has_kv_cache: bool = True
    reuses_accepted_kv: bool = True

    def forward(self, batch: StepBatch) -> Tensor:
        return self.model.run(batch, self.rows).logits

    def forward_next(self, batch: StepBatch, indices: list[int]) -> Tensor:
        return self.forward(batch)

    def draft(self, batch: StepBatch, draw_rows: DrawRows, counts: Ints) -> Drafted | None:
        return None if self.native_drafting is None else self.native_drafting(batch, draw_rows, counts)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        self.storage.copy(copies)


class DraftVocabulary:
    """The tokens that a head can draft, among all of the target's."""

    def __init__(self, size: int, target_ids: Tensor | None) -> None:
        self.size = size
        self.target_ids = target_ids
        """[draft vocabulary] the target's ids, or None if the head drafts all of them."""

    def scatter_to_target(self, logits: Tensor) -> Tensor:
        """Return [rows, vocabulary] logits of [rows, draft vocabulary] ones; tokens it cannot draft are impossible."""
        if self.target_ids is None:
            return logits
        target_logits = logits.new_full((len(logits), self.size), -torch.inf)
        target_logits[:, self.target_ids] = logits
        return target_logits


class HeadPass(Protocol):
    """A pass of a head, run by any backend."""

    def run(self, batch: StepBatch, rows: Rows, given: Tensor) -> ForwardOutput:
        """Run a pass over tokens of rows, with a vector [width] for each of them."""


class RunnableEagle:
    """EAGLE-3: reads a token and the target's features of the one before; later in a draft, its own states of it."""

    token_lag = 1
    has_kv_cache = True
    reuses_accepted_kv = False  # Once a token is accepted, the target's own features are better.

    def __init__(
        self,
        first: HeadPass,
        further: HeadPass,
        storage: KVStorage,
        features: FeatureStore,
        rows: Rows,
        vocabulary: DraftVocabulary,
        native_drafting: DraftFunction | None = None,
    ) -> None:
        """`first` takes features, `further` states. At each position rows have the token after it."""
        self._first = first
        self._further = further
        self._storage = storage
        self._features = features
        self._rows = rows
        self._vocabulary = vocabulary
        self._native_drafting = native_drafting
        self._states: Tensor | None = None
        """States at the logit indices of the last pass."""

    def forward(self, batch: StepBatch) -> Tensor:
        output = self._first.run(batch, self._rows, self._features.gather(batch))
        return self._logits(batch, output)

    def forward_next(self, batch: StepBatch, indices: list[int]) -> Tensor:
        assert self._states is not None
        return self._logits(batch, self._further.run(batch, self._rows, self._states[indices]))

    def draft(self, batch: StepBatch, draw_rows: DrawRows, counts: Ints) -> Drafted | None:
        if self._native_drafting is None:
            return None
        return self._native_drafting(batch, draw_rows, counts, self._features.gather(batch))

    def _logits(self, batch: StepBatch, output: ForwardOutput) -> Tensor:
        self._states = output.hidden[torch.from_numpy(batch.logit_indices).to(output.hidden.device)]
        return self._vocabulary.scatter_to_target(output.logits)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        self._storage.copy(copies)


class RunnableMedusa:
    """Medusa: each head drafts one position further ahead, from the target's last state alone."""

    token_lag = 1
    has_kv_cache = False
    reuses_accepted_kv = False

    def __init__(
        self, heads: Callable[[Tensor], list[Tensor]], features: FeatureStore, vocabulary: DraftVocabulary
    ) -> None:
        self._heads = heads
        self._features = features
        self._vocabulary = vocabulary
        self._further: list[Tensor] = []
        """Logits of heads whose positions are still to come."""

    def forward(self, batch: StepBatch) -> Tensor:
        states = self._features.gather(batch)
        first, *self._further = self._heads(states[torch.from_numpy(batch.logit_indices).to(states.device)])
        return self._vocabulary.scatter_to_target(first)

    def forward_next(self, batch: StepBatch, indices: list[int]) -> Tensor:
        # All rows that continue were in the pass before, and before that.
        self._further = [logits[indices] for logits in self._further]
        return self._vocabulary.scatter_to_target(self._further.pop(0))

    def draft(self, batch: StepBatch, draw_rows: DrawRows, counts: Ints) -> Drafted | None:
        # All heads are one pass: there is nothing between passes to be saved.
        return None

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Do nothing: it caches nothing."""
