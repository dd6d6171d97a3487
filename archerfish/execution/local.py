"""Runs plans on this machine: one forward pass over all chunks, then the draw."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archerfish.execution.executor import Finished
from archerfish.execution.memory import LOGIT_ROWS_AT_ONCE
from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step.model import RunnableModel, StepLimits
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.storage import KVStorage
from archerfish.ops.signatures import DrawRows
from archerfish.request import TokenLogprobs
from archerfish.sampling.sampler import Sampler, token_logprobs
from archerfish.scheduling.plan import Chunk, Plan, RoomForGuesses, StepResult
from archerfish.speculation.controller import Speculator
from archerfish.speculation.draft import Draft
from archerfish.speculation.drafters.feature_store import FeatureStore
from archerfish.speculation.verification.verifier import Drawing, Guesses, Outcome, Rules, Verifier

PromptListener = Callable[[Tensor, Tensor], None]
"""Called with logits [rows, vocabulary], good until it returns, and the tokens [rows] that the prompt goes on with."""


TRIED_SIZES = (1, 2, 4, 8)
"""Tokens of steps that are tried before there is anything to do."""
NUM_TRIES = 3


class LocalExecutor:
    """A model, its cache and its rows. Nothing is in flight: who launches a step waits until it is computed."""

    max_in_flight = 1

    def __init__(
        self,
        model: RunnableModel,
        storage: KVStorage,
        rows: Rows,
        device: str,
        sampler: Sampler,
        speculator: Speculator | None = None,
        features: FeatureStore | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        self._model = model
        self._storage = storage
        self._device = device
        self._rows = rows
        self._sampler = sampler
        self._verifier = verifier or Verifier(sampler, Rules())
        self.speculator = speculator
        """Who guesses tokens, if somebody does."""
        self._saved = 0.0
        """Seconds that the guesses of the step before saved."""
        self.features = features
        """Where what the model made of tokens is kept, for whoever guesses by it."""
        self._num_prompt_logprobs: dict[int, int] = {}
        """Rows that want log-probabilities of their prompt, and how many."""
        self.prompt_listener: PromptListener | None = None
        """Hears the logits of all prompts that want log-probabilities, where somebody asks for whole distributions."""
        self._state_sums: dict[int, Tensor] = {}
        """Rows that want the mean state over their prompt, and the sum so far."""
        self._states: dict[int, list[Tensor]] = {}
        """Rows that want the state of each token of their prompt, and those so far."""

    def launch(self, plan: Plan) -> Finished:
        self.take_in(plan)
        if not plan.chunks:
            return Finished(StepResult([]))
        return Finished(self.speculate(plan))

    @torch.inference_mode()
    def try_out(self, most: StepLimits) -> None:
        """Before the first plan: see how long steps with guesses take, so that nobody has to find out by losing time.

        Steps are single chunks whose tokens are all drawn after, as far as the model was built for them. What they
        leave behind in the cache is overwritten by the sequence that gets the block.
        """
        speculator = self.speculator
        if speculator is None:
            return
        largest = min(most.max_tokens, most.max_logits, self._rows.max_model_len)
        for count in (size for size in TRIED_SIZES if size <= largest):
            batch = StepBatch.of([Chunk(0, 0, 1, samples=True)], np.array([count - 1]))
            rows = np.zeros(count, np.int64)
            for _ in range(NUM_TRIES):
                started = time.perf_counter()
                _, logits = self._run(batch)
                self._sampler.draw(logits, rows, batch.sample_positions, torch.from_numpy(self._rows.tokens))
                speculator.lengths.tried(count, time.perf_counter() - started)
        speculator.try_out()

    def run(self, plan: Plan) -> StepResult:
        """Launched and waited for."""
        return self.launch(plan).result()

    @property
    def guessing(self) -> RoomForGuesses | None:
        """How many tokens are guessed for each sequence of a step, at most; None where nobody guesses."""
        return self.speculator

    def speculate(self, plan: Plan) -> StepResult:
        """The step with guesses, if there are any that pay, once its plan was taken in."""
        speculator = self.speculator
        if speculator is None or speculator.is_quiet:
            return self.compute(plan, StepBatch.of(plan.chunks))
        if not speculator.is_asked:
            result = self.compute(plan, StepBatch.of(plan.chunks))
            result.saved_seconds = self._saved
            return result
        drafts = speculator.guess(plan, self._takes_tree)
        if drafts is None:
            batch = StepBatch.of(plan.chunks)
            result = self.compute(plan, batch)
        else:
            batch = StepBatch.of(plan.chunks, np.array([len(draft) for draft in drafts])).with_trees(drafts)
            result = self.check(plan, batch, drafts)
        speculator.took(int(batch.query_ends[-1]), sum(map(len, result.tokens)))
        result.drafting_seconds, result.saved_seconds = speculator.seconds, self._saved
        return result

    @torch.inference_mode()
    def check(self, plan: Plan, batch: StepBatch, drafts: list[Draft]) -> StepResult:
        """The step with guesses after some of its chunks, and which of them stand."""
        hidden, logits = self._run(batch)
        prompt_logprobs = self._prompt_logprobs(plan, batch, hidden)
        embeddings, states = self._embeddings(plan, batch, hidden), self._prompt_states(plan, batch, hidden)
        result = StepResult([[] for _ in plan.chunks], {}, prompt_logprobs, embeddings, states)
        sampling = [place for place, chunk in enumerate(plan.chunks) if chunk.samples]
        drawing = Drawing(
            logits, batch.rows[batch.sampled_chunks], batch.sample_positions, torch.from_numpy(self._rows.tokens)
        )
        guesses = [Guesses(plan.chunks[place].row, drafts[place]) for place in sampling]
        outcomes = dict(zip(sampling, self._verifier.verify(drawing, guesses), strict=True))
        moves: list[_Move] = []
        for place, outcome in outcomes.items():
            self._take(result, place, plan.chunks[place], outcome)
            moves += _moves(plan.chunks[place], outcome.path)
            if len(drafts[place]):
                result.num_draft_tokens[place] = len(drafts[place])
        self._move(moves)
        assert self.speculator is not None
        nothing = Outcome([], [], [])
        every = [outcomes.get(place, nothing) for place in range(len(plan.chunks))]
        self.speculator.settle(plan, drafts, [one.drawn for one in every], [len(one.path) for one in every])
        return result

    def _run(self, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """Hidden states and logits."""
        passed = self._model.run(batch, self._rows)
        if self.features is not None:
            self.features.heard(batch, passed)
        return passed.hidden, passed.logits

    def _takes_tree(self, chunk: Chunk) -> bool:
        """Guesses side by side hang on a single token, and a row has no place for several pasts."""
        return chunk.length == 1 and not self._sampler.reads_history(chunk.row)

    def _move(self, moves: list["_Move"]) -> None:
        """Keys and values of guesses that stood, and stood aside, to their own places."""
        if moves:
            rows, sources, targets = (np.array(values) for values in zip(*moves, strict=True))
            self._storage.move(self._rows.tables, rows, sources, targets)
            if self.features is not None:
                self.features.move(rows, sources, targets)

    def _take(self, result: StepResult, place: int, chunk: Chunk, outcome: Outcome) -> None:
        """What the row goes on with, and what is told of it."""
        end, tokens = chunk.start + chunk.length, outcome.tokens
        self._rows.write(chunk.row, end, tokens)
        self._sampler.wrote(chunk.row, tokens)
        result.tokens[place] = tokens
        if outcome.logprobs is not None:
            result.logprobs[place] = outcome.logprobs
        if outcome.failure is not None:
            result.failures[place] = outcome.failure

    @torch.inference_mode()
    def compute(self, plan: Plan, batch: StepBatch) -> StepResult:
        """The step, once its plan was taken in."""
        hidden, logits = self._run(batch)
        prompt_logprobs = self._prompt_logprobs(plan, batch, hidden)
        embeddings, states = self._embeddings(plan, batch, hidden), self._prompt_states(plan, batch, hidden)
        sampling = batch.sampled_chunks
        tokens: list[list[int]] = [[] for _ in plan.chunks]
        if not len(sampling):
            return StepResult(tokens, prompt_logprobs=prompt_logprobs)
        rows, ends = batch.rows[sampling], batch.ends[sampling]
        draw = self._sampler.draw(logits, rows, ends, torch.from_numpy(self._rows.tokens))
        self._rows.write_tokens(rows, ends, draw.tokens)
        for place, row, token in zip(sampling.tolist(), rows.tolist(), draw.tokens, strict=True):
            tokens[place] = [token]
            self._sampler.wrote(row, (token,))
        return StepResult(
            tokens,
            {int(sampling[place]): [entry] for place, entry in draw.logprobs.items()},
            prompt_logprobs,
            embeddings,
            states,
            {int(sampling[place]): reason for place, reason in draw.failures.items()},
        )

    def close(self) -> None:
        self._model.close()
        del self._model, self._storage

    def asked_alone(self, plan: Plan, batch: StepBatch) -> DrawRows | None:
        """What the step's tokens are drawn by, if nothing else is wanted of it: no edits of logits, nothing told."""
        told = self._num_prompt_logprobs.keys() | self._state_sums.keys() | self._states.keys()
        if not len(batch.sampled_chunks) or (told and any(chunk.row in told for chunk in plan.chunks)):
            return None
        return self._sampler.asked_alone(batch.rows[batch.sampled_chunks], batch.ends[batch.sampled_chunks])

    @torch.inference_mode()
    def take_in(self, plan: Plan) -> None:
        """What is new since the last step."""
        for start in plan.starts:
            self._rows.start(start)
            self._verifier.start(start)
            written = start.tokens[start.num_prompt_tokens :]
            self._sampler.set_row(
                start.row, start.params, start.seed, start.num_prompt_tokens, start.stop_token_ids, written
            )
            self._num_prompt_logprobs.pop(start.row, None)
            if start.params.prompt_logprobs is not None:
                self._num_prompt_logprobs[start.row] = start.params.prompt_logprobs
            self._state_sums.pop(start.row, None)
            if start.params.prompt_embedding:
                self._state_sums[start.row] = torch.zeros(self._model.arch.hidden_size, device=self._device)
            self._states.pop(start.row, None)
            if start.params.prompt_states:
                self._states[start.row] = []
        has_new_blocks = False
        for chunk in plan.chunks:
            if chunk.new_blocks:
                self._rows.append_blocks(chunk)
                has_new_blocks = True
        self._storage.copy(plan.copies)
        if self.features is not None:
            self.features.copy(plan.copies)
        speculator = self.speculator
        if speculator is not None and (has_new_blocks or plan.starts or plan.copies or not speculator.is_quiet):
            self._saved = speculator.take_in(plan)

    def _prompt_logprobs(self, plan: Plan, batch: StepBatch, hidden: Tensor) -> dict[int, list[TokenLogprobs]]:
        """For chunks whose row asked: log-probabilities of the prompt tokens that follow the chunk's own."""
        found: dict[int, list[TokenLogprobs]] = {}
        for place, chunk in enumerate(plan.chunks if self._num_prompt_logprobs else ()):
            num_top = self._num_prompt_logprobs.get(chunk.row)
            num_prompt = int(self._rows.num_prompt[chunk.row])
            count = min(chunk.length, num_prompt - 1 - chunk.start)
            if num_top is None or count <= 0:
                continue
            first = int(batch.query_starts[place])
            following = self._rows.tokens[chunk.row, chunk.start + 1 : chunk.start + 1 + count].astype(np.int64)
            tokens = torch.from_numpy(following).to(self._device)
            entries: list[TokenLogprobs] = []
            for piece in range(0, count, LOGIT_ROWS_AT_ONCE):
                part = tokens[piece : piece + LOGIT_ROWS_AT_ONCE]
                logits = self._model.logits(hidden[first + piece : first + piece + len(part)])
                if self.prompt_listener is not None:
                    self.prompt_listener(logits, part)
                entries += token_logprobs(logits, part, [num_top] * len(part))
            found[place] = entries
        return found

    def _embeddings(self, plan: Plan, batch: StepBatch, hidden: Tensor) -> dict[int, list[float]]:
        """For chunks with which a prompt ends, of rows that asked: the mean over the prompt."""
        found: dict[int, list[float]] = {}
        for place, chunk in enumerate(plan.chunks if self._state_sums else ()):
            total = self._state_sums.get(chunk.row)
            if total is None:
                continue
            num_prompt, first = int(self._rows.num_prompt[chunk.row]), int(batch.query_starts[place])
            count = min(chunk.length, num_prompt - chunk.start)
            total += hidden[first : first + count].sum(0, dtype=torch.float32)
            if chunk.start + count == num_prompt:
                found[place] = (total / num_prompt).tolist()
                del self._state_sums[chunk.row]
        return found

    def _prompt_states(self, plan: Plan, batch: StepBatch, hidden: Tensor) -> dict[int, bytes]:
        """For chunks with which a prompt ends, of rows that asked: the state of each of its tokens."""
        found: dict[int, bytes] = {}
        for index, chunk in enumerate(plan.chunks if self._states else ()):
            pieces = self._states.get(chunk.row)
            if pieces is None:
                continue
            num_prompt, first = int(self._rows.num_prompt[chunk.row]), int(batch.query_starts[index])
            count = min(chunk.length, num_prompt - chunk.start)
            pieces.append(hidden[first : first + count].to("cpu", torch.float32, copy=True))
            if chunk.start + count == num_prompt:
                found[index] = torch.cat(pieces).numpy().tobytes()
                del self._states[chunk.row]
        return found


class _Move(NamedTuple):
    row: int
    source: int
    target: int
    """Positions."""


def _moves(chunk: Chunk, path: list[int]) -> list[_Move]:
    first = chunk.start + chunk.length
    return [_Move(chunk.row, first + node, first + place) for place, node in enumerate(path) if node != place]
