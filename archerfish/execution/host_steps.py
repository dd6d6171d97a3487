"""Steps whose tokens the host samples: plain ones, and speculative ones that verify drafts."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step.model import RunnableModel, StepLimits
from archerfish.execution.step_state import StepState
from archerfish.scheduling.plan import Chunk, Plan, StepResult
from archerfish.speculation.controller import SpeculationController
from archerfish.speculation.draft import Draft
from archerfish.speculation.verification.verifier import DraftedRow, SampleInputs, VerifiedTokens

PROFILED_SIZES = (1, 2, 4, 8)
"""Tokens of the steps that are timed at the start."""
NUM_TRIALS = 3


class PlainStep:
    """A forward pass over a plan's chunks, and one sampled token for each that samples."""

    def __init__(self, model: RunnableModel, state: StepState) -> None:
        self._model = model
        self._state = state

    def forward(self, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """Return final states [T, hidden] and logits [logits, vocabulary]."""
        output = self._model.run(batch, self._state.rows)
        if self._state.features is not None:
            self._state.features.record(batch, output)
        return output.hidden, output.logits

    @torch.inference_mode()
    def run(self, plan: Plan, batch: StepBatch) -> StepResult:
        """Run a step whose plan was applied."""
        state = self._state
        hidden, logits = self.forward(batch)
        prompts = state.prompt_outputs.collect(plan, batch, hidden)
        sampled_chunks = batch.sampled_chunks
        tokens: list[list[int]] = [[] for _ in plan.chunks]
        if not len(sampled_chunks):
            return StepResult(tokens, prompt_logprobs=prompts.logprobs)
        rows, ends = batch.rows[sampled_chunks], batch.ends[sampled_chunks]
        draw = state.sampler.draw(logits, rows, ends, torch.from_numpy(state.rows.tokens))
        state.rows.write_tokens(rows, ends, draw.tokens)
        for index, row, token in zip(sampled_chunks.tolist(), rows.tolist(), draw.tokens, strict=True):
            tokens[index] = [token]
            state.sampler.wrote(row, (token,))
        return StepResult(
            tokens,
            {int(sampled_chunks[sample]): [entry] for sample, entry in draw.logprobs.items()},
            prompts.logprobs,
            prompts.embeddings,
            prompts.states,
            {int(sampled_chunks[sample]): reason for sample, reason in draw.failures.items()},
        )


class SpeculativeStep:
    """A step that verifies the drafts which a controller selects, or a plain one if it selects none."""

    def __init__(self, plain: PlainStep, state: StepState, controller: SpeculationController) -> None:
        self.controller = controller
        self._plain = plain
        self._state = state
        self._drafts: list[Draft] | None = None
        """Drafts of the step that has begun."""

    def with_controller(self, controller: SpeculationController) -> "SpeculativeStep":
        """Return the same step with another controller."""
        return SpeculativeStep(self._plain, self._state, controller)

    @torch.inference_mode()
    def profile(self, limits: StepLimits) -> None:
        """Time steps of several sizes before the first plan, so that sequences need not be slowed down to learn it.

        Steps are single chunks with logits for all tokens. What they write to the cache is overwritten by the sequence
        that gets the block.
        """
        rows = self._state.rows
        max_tokens = min(limits.max_tokens, limits.max_logits, rows.max_model_len)
        for count in (size for size in PROFILED_SIZES if size <= max_tokens):
            batch = StepBatch.of([Chunk(0, 0, 1, samples=True)], np.array([count - 1]))
            sampled_rows = np.zeros(count, np.int64)
            for _ in range(NUM_TRIALS):
                started = time.perf_counter()
                _, logits = self._plain.forward(batch)
                self._state.sampler.draw(logits, sampled_rows, batch.sample_positions, torch.from_numpy(rows.tokens))
                self.controller.cost_model.expect_step(count, time.perf_counter() - started)
        self.controller.profile()

    def begin(self, plan: Plan) -> None:
        """Begin a step whose plan was applied: choose its drafts."""
        self._drafts = self.controller.propose(plan, self._takes_tree)

    def run(self, plan: Plan) -> StepResult:
        """Run a step that has begun."""
        if self._drafts is None:
            result = self._plain.run(plan, StepBatch.of(plan.chunks))
            self.end(plan, result)
        else:
            result = self._verify(plan, self._drafts)
        result.drafting_seconds = self.controller.proposing_seconds
        result.saved_seconds = self.controller.saved_seconds
        return result

    def end(self, plan: Plan, result: StepResult, verified: Sequence[VerifiedTokens] | None = None) -> None:
        """End a step, and add to its result how many draft tokens chunks of the next one may have."""
        self.controller.record(plan, result.tokens, verified)
        result.max_draft_tokens = self.controller.max_draft_tokens

    def _takes_tree(self, chunk: Chunk) -> bool:
        """Whether the draft after a chunk may be a tree: after one token, if sampling reads no history of the row."""
        return chunk.length == 1 and not self._state.sampler.reads_history(chunk.row)

    @torch.inference_mode()
    def _verify(self, plan: Plan, drafts: list[Draft]) -> StepResult:
        """Run the step with drafts after some of its chunks, and accept what verification accepts."""
        state = self._state
        batch = StepBatch.of(plan.chunks, np.array([len(draft) for draft in drafts])).with_trees(drafts)
        hidden, logits = self._plain.forward(batch)
        prompts = state.prompt_outputs.collect(plan, batch, hidden)
        result = StepResult([[] for _ in plan.chunks], {}, prompts.logprobs, prompts.embeddings, prompts.states)
        sampling = [index for index, chunk in enumerate(plan.chunks) if chunk.samples]
        inputs = SampleInputs(
            logits, batch.rows[batch.sampled_chunks], batch.sample_positions, torch.from_numpy(state.rows.tokens)
        )
        rows = [DraftedRow(plan.chunks[index].row, drafts[index]) for index in sampling]
        verified = dict(zip(sampling, state.verifier.verify(inputs, rows), strict=True))
        moves: list[_Move] = []
        for index, tokens in verified.items():
            self._write(result, index, plan.chunks[index], tokens)
            moves += _moves(plan.chunks[index], tokens.path)
            if len(drafts[index]):
                result.num_draft_tokens[index] = len(drafts[index])
        self._move(moves)
        nothing = VerifiedTokens([], [], [])
        self.end(plan, result, [verified.get(index, nothing) for index in range(len(plan.chunks))])
        return result

    def _write(self, result: StepResult, index: int, chunk: Chunk, verified: VerifiedTokens) -> None:
        """Write a chunk's tokens to its row and to the result."""
        end, tokens = chunk.start + chunk.length, verified.tokens
        self._state.rows.write(chunk.row, end, tokens)
        self._state.sampler.wrote(chunk.row, tokens)
        result.tokens[index] = tokens
        if verified.logprobs is not None:
            result.logprobs[index] = verified.logprobs
        if verified.failure is not None:
            result.failures[index] = verified.failure

    def _move(self, moves: list["_Move"]) -> None:
        """Move KV entries and features of accepted tree branches to their final slots."""
        if moves:
            rows, sources, targets = (np.array(values) for values in zip(*moves, strict=True))
            self._state.storage.move(self._state.rows.tables, rows, sources, targets)
            if self._state.features is not None:
                self._state.features.move(rows, sources, targets)


class _Move(NamedTuple):
    """A move of one token within a row."""

    row: int
    source: int
    target: int


def _moves(chunk: Chunk, path: list[int]) -> list[_Move]:
    first = chunk.start + chunk.length
    return [_Move(chunk.row, first + node, first + depth) for depth, node in enumerate(path) if node != depth]
