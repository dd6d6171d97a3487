"""The state that steps read and write: rows, KV cache, sampling parameters, and the outputs about prompts."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.execution.memory import LOGIT_ROWS_AT_ONCE
from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step.model import RunnableModel
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.storage import KVStorage
from archerfish.ops.signatures import DrawRows
from archerfish.request import TokenLogprobs
from archerfish.sampling.sampler import Sampler, token_logprobs
from archerfish.scheduling.plan import Plan, SequenceStart
from archerfish.speculation.drafters.feature_store import FeatureStore
from archerfish.speculation.verification.verifier import Verifier

PromptListener = Callable[[Tensor, Tensor], None]
"""Called with logits [rows, vocabulary], valid until it returns, and the prompt tokens [rows] that follow them."""


class PromptResults(NamedTuple):
    """A step's outputs about prompts, each by chunk."""

    logprobs: dict[int, list[TokenLogprobs]]
    embeddings: dict[int, list[float]]
    states: dict[int, bytes]


class PromptOutputs:
    """The outputs about prompts that rows have requested."""

    def __init__(self, model: RunnableModel, rows: Rows, device: str) -> None:
        self._model = model
        self._rows = rows
        self._device = device
        self.listener: PromptListener | None = None
        """Receives the logits of all prompts whose log-probabilities are requested."""
        self._num_logprobs: dict[int, int] = {}
        """Rows that request log-probabilities of their prompt, and how many per token."""
        self._state_sums: dict[int, Tensor] = {}
        """Rows that request the mean state over their prompt, and the sum so far."""
        self._states: dict[int, list[Tensor]] = {}
        """Rows that request the state of each prompt token, and those so far."""

    def start(self, start: SequenceStart) -> None:
        """Begin a sequence on its row."""
        row, params = start.row, start.params
        self._num_logprobs.pop(row, None)
        if params.prompt_logprobs is not None:
            self._num_logprobs[row] = params.prompt_logprobs
        self._state_sums.pop(row, None)
        if params.prompt_embedding:
            self._state_sums[row] = torch.zeros(self._model.arch.hidden_size, device=self._device)
        self._states.pop(row, None)
        if params.prompt_states:
            self._states[row] = []

    def concern(self, plan: Plan) -> bool:
        """Whether any chunk's row has requested outputs."""
        rows = self._num_logprobs.keys() | self._state_sums.keys() | self._states.keys()
        return bool(rows) and any(chunk.row in rows for chunk in plan.chunks)

    def collect(self, plan: Plan, batch: StepBatch, hidden: Tensor) -> PromptResults:
        """Return the outputs of a step, given the final states [T, hidden] of its tokens."""
        return PromptResults(
            self._logprobs(plan, batch, hidden),
            self._embeddings(plan, batch, hidden),
            self._all_states(plan, batch, hidden),
        )

    def _logprobs(self, plan: Plan, batch: StepBatch, hidden: Tensor) -> dict[int, list[TokenLogprobs]]:
        """Return log-probabilities of the prompt tokens that follow the chunk's own."""
        logprobs: dict[int, list[TokenLogprobs]] = {}
        for index, chunk in enumerate(plan.chunks if self._num_logprobs else ()):
            num_top = self._num_logprobs.get(chunk.row)
            num_prompt = int(self._rows.num_prompt[chunk.row])
            count = min(chunk.length, num_prompt - 1 - chunk.start)
            if num_top is None or count <= 0:
                continue
            first = int(batch.query_starts[index])
            following = self._rows.tokens[chunk.row, chunk.start + 1 : chunk.start + 1 + count].astype(np.int64)
            tokens = torch.from_numpy(following).to(self._device)
            entries: list[TokenLogprobs] = []
            for piece in range(0, count, LOGIT_ROWS_AT_ONCE):
                part = tokens[piece : piece + LOGIT_ROWS_AT_ONCE]
                logits = self._model.logits(hidden[first + piece : first + piece + len(part)])
                if self.listener is not None:
                    self.listener(logits, part)
                entries += token_logprobs(logits, part, [num_top] * len(part))
            logprobs[index] = entries
        return logprobs

    def _embeddings(self, plan: Plan, batch: StepBatch, hidden: Tensor) -> dict[int, list[float]]:
        """Return the mean state over each prompt that ends with a chunk."""
        embeddings: dict[int, list[float]] = {}
        for index, chunk in enumerate(plan.chunks if self._state_sums else ()):
            total = self._state_sums.get(chunk.row)
            if total is None:
                continue
            num_prompt, first = int(self._rows.num_prompt[chunk.row]), int(batch.query_starts[index])
            count = min(chunk.length, num_prompt - chunk.start)
            total += hidden[first : first + count].sum(0, dtype=torch.float32)
            if chunk.start + count == num_prompt:
                embeddings[index] = (total / num_prompt).tolist()
                del self._state_sums[chunk.row]
        return embeddings

    def _all_states(self, plan: Plan, batch: StepBatch, hidden: Tensor) -> dict[int, bytes]:
        """Return the state of each token of each prompt that ends with a chunk."""
        states: dict[int, bytes] = {}
        for index, chunk in enumerate(plan.chunks if self._states else ()):
            pieces = self._states.get(chunk.row)
            if pieces is None:
                continue
            num_prompt, first = int(self._rows.num_prompt[chunk.row]), int(batch.query_starts[index])
            count = min(chunk.length, num_prompt - chunk.start)
            pieces.append(hidden[first : first + count].to("cpu", torch.float32, copy=True))
            if chunk.start + count == num_prompt:
                states[index] = torch.cat(pieces).numpy().tobytes()
                del self._states[chunk.row]
        return states


class StepState:
    """Everything of an executor that plans change before their step is run."""

    def __init__(
        self,
        rows: Rows,
        storage: KVStorage,
        sampler: Sampler,
        verifier: Verifier,
        prompt_outputs: PromptOutputs,
        features: FeatureStore | None = None,
    ) -> None:
        """`features` are stored for drafters that read them."""
        self.rows = rows
        self.storage = storage
        self.sampler = sampler
        self.verifier = verifier
        self.prompt_outputs = prompt_outputs
        self.features = features

    @torch.inference_mode()
    def apply(self, plan: Plan) -> None:
        """Apply what a plan changes: starts, new blocks and copies."""
        for start in plan.starts:
            self.rows.start(start)
            self.verifier.start(start)
            written = start.tokens[start.num_prompt_tokens :]
            self.sampler.set_row(
                start.row, start.params, start.seed, start.num_prompt_tokens, start.stop_token_ids, written
            )
            self.prompt_outputs.start(start)
        for chunk in plan.chunks:
            if chunk.new_blocks:
                self.rows.append_blocks(chunk)
        self.storage.copy(plan.copies)
        if self.features is not None:
            self.features.copy(plan.copies)

    def draw_rows(self, plan: Plan, batch: StepBatch) -> DrawRows | None:
        """Return what a step's tokens are sampled by; None if the host must process logits or more is requested."""
        if not len(batch.sampled_chunks) or self.prompt_outputs.concern(plan):
            return None
        return self.sampler.plain_draws(batch.rows[batch.sampled_chunks], batch.ends[batch.sampled_chunks])
