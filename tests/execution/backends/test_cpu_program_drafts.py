"""Drafts made in one native call are those of passes and draws one after the other."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from archerfish.errors import OutOfBounds
from archerfish.execution.backends.cpu_program import RecordedDrafts, RecordedModel, record_eagle
from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step.model import ForwardOutput, StepLimits
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.layout import kv_layout
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.models.eagle import Eagle
from archerfish.models.layers import Embedding
from archerfish.ops import KernelTarget, Ops, choose_ops, implementations
from archerfish.ops.arrays import Ints
from archerfish.ops.cpu.drafting import Drafted
from archerfish.ops.cpu.native import NativeOps
from archerfish.ops.signatures import DrawRows
from archerfish.quant import WeightFormat
from archerfish.request import SamplingParams
from archerfish.sampling.sampler import Sampler
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart
from archerfish.speculation.draft import Draft
from archerfish.speculation.drafters.cache_progress import DraftCacheProgress
from archerfish.speculation.drafters.drafter import (
    DraftFunction,
    DraftVocabulary,
    RunnableDrafter,
    RunnableDraftModel,
    RunnableEagle,
)
from archerfish.speculation.drafters.feature_store import FeatureStore
from archerfish.speculation.drafters.model_proposer import DrafterLimits, ModelProposer
from archerfish.speculation.proposer import DraftRequest
from archerfish.speculation.step_latency import StepLatencyModel
from archerfish.weights.heads import choose_tokens
from archerfish.weights.load import random_weights
from archerfish.weights.packing import Packer
from tests.execution.small_models import ARCHS
from tests.models.heads import EAGLE, eagle
from tests.ops.cpu.native import KERNELS, every_kernel, native, needs_native

pytestmark = needs_native

VOCABULARY, BLOCK_SIZE, NUM_ROWS, LENGTH = 61, 16, 4, 64
NUM_BLOCKS = NUM_ROWS * LENGTH // BLOCK_SIZE
TARGET = KernelTarget(device="cpu", dtype="bfloat16", head_dim=16, block_size=BLOCK_SIZE, threads=2)
MOST = StepLimits(max_tokens=64, max_chunks=NUM_ROWS, max_logits=NUM_ROWS)
UNROUNDED = WeightFormat(name="none")
PROMPTS = (13, 30, 5)
"""Tokens of each row's prompt."""
PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "sampled": SamplingParams(temperature=1.0),
    "filtered": SamplingParams(temperature=1.3, top_k=20, top_p=0.9, min_p=0.02),
}


class Watched:
    """Makes drafts at once, and tells how often."""

    def __init__(self, at_once: RecordedDrafts) -> None:
        self._at_once = at_once
        self.num_asked = 0

    def __call__(self, batch: StepBatch, draw_rows: DrawRows, counts: Ints, *given: Tensor) -> Drafted:
        self.num_asked += 1
        return self._at_once(batch, draw_rows, counts, *given)


class Listed(StepLatencyModel):
    def __init__(self) -> None:
        super().__init__()
        self.passes: list[tuple[int, float]] = []

    def record(self, num_tokens: int, seconds: float) -> None:
        self.passes.append((num_tokens, seconds))
        super().record(num_tokens, seconds)


MakeNetwork = Callable[["Stage"], tuple[RunnableDrafter, Watched]]


class Stage:
    """A network beside rows of a model that nobody runs: texts go on as a test says."""

    def __init__(self, make: MakeNetwork, kernels: str, *, max_tokens: int = 64, branches: int = 1) -> None:
        self.native: NativeOps = native(kernels)
        self.ops: Ops = choose_ops(TARGET, implementations(self.native)).ops
        self.rows = Rows(NUM_ROWS, LENGTH, 1, BLOCK_SIZE)
        self.features = FeatureStore(NUM_BLOCKS, 3 * EAGLE.target_hidden_size, torch.float32, "cpu", self.rows)
        self.sampler = Sampler(NUM_ROWS, self.ops.draw)
        self.times = Listed()
        self.network, self.at_once = make(self)
        ticks = iter(range(10**6))
        self.proposer = ModelProposer(
            self.network,
            self.rows,
            DraftCacheProgress(NUM_BLOCKS, BLOCK_SIZE, 0, self.rows.tables[0]),
            self.sampler,
            lambda: float(next(ticks)),
            self.times,
            DrafterLimits(max_tokens, LENGTH, branches),
        )

    def start(self, row: int, length: int, params: SamplingParams) -> None:
        tokens = tuple((5 * row + 7 * place) % VOCABULARY for place in range(length))
        start = SequenceStart(
            row=row, tokens=tokens, num_prompt_tokens=length, blocks=((),), params=params, seed=row, stop_token_ids=()
        )
        # Scattered, and those of a row never side by side.
        chunk = Chunk(row, 0, length, True, (tuple(range(row, NUM_BLOCKS, NUM_ROWS)),))
        self.rows.start(start)
        self.rows.append_blocks(chunk)
        self.sampler.set_row(row, params, row, length, ())
        self.proposer.begin_step(Plan(0, [start], [], [chunk]))
        self.proposer.start(row, tokens, length, "")
        self._compute(row, 0, length)

    def propose(self, *asks: tuple[int, int, int]) -> list[Draft]:
        """Of (row, most, end)."""
        with torch.inference_mode():
            return self.proposer.propose([DraftRequest(*ask) for ask in asks])

    def forward_next(self, row: int, end: int, draft: Draft, num_accepted_tokens: int) -> int:
        """The first guesses stand, then something else is drawn. How many tokens there are now."""
        drawn = [*draft.tokens[:num_accepted_tokens], *(2 for _ in range(len(draft) + 1 - num_accepted_tokens))]
        self.proposer.observe(row, draft, drawn)
        written = drawn[: num_accepted_tokens + 1]
        self.rows.write_tokens(np.full(len(written), row), np.arange(end, end + len(written)), written)
        self._compute(row, end, len(written))
        return end + len(written)

    def _compute(self, row: int, start: int, length: int) -> None:
        """What the model would have made of these tokens."""
        generator = torch.Generator().manual_seed(100 * row + start)
        hidden = torch.randn(length, 3 * EAGLE.target_hidden_size, generator=generator)
        self.features.record(StepBatch.of([Chunk(row, start, length, False)]), ForwardOutput(hidden, hidden[:0]))


def draft_model(stage: Stage, *, at_once: bool) -> tuple[RunnableDrafter, Watched]:
    arch = ARCHS["rotated"]
    with torch.device("meta"):
        model = Decoder(arch, stage.ops, LENGTH)
    model.requires_grad_(False)
    random_weights(model, 0, Packer(model, UNROUNDED))
    storage = KVStorage(kv_layout(arch), NUM_BLOCKS, BLOCK_SIZE, torch.bfloat16, "cpu", stage.ops)
    recorded, rows = RecordedModel(model, storage, stage.native, MOST), stage.rows.drafter_view(0)
    watched = Watched(recorded.drafts(rows))
    return RunnableDraftModel(recorded, storage, rows, watched if at_once else None), watched


def eagle_head(num_tokens: int, stage: Stage, *, at_once: bool) -> tuple[RunnableDrafter, Watched]:
    spec = replace(EAGLE, vocab_size=num_tokens)
    plain = eagle(spec).requires_grad_(False)
    table = Embedding(VOCABULARY, spec.hidden_size, stage.ops).requires_grad_(False)
    table.weight.copy_(torch.randn(table.weight.shape, generator=torch.Generator().manual_seed(1)))
    with torch.device("meta"):
        head = Eagle(spec, table, stage.ops, LENGTH)
    head.requires_grad_(False)
    packer = Packer(head, UNROUNDED)
    for name, parameter in plain.named_parameters():
        packer(name, parameter.detach())
    if head.target_ids is not None:
        choose_tokens(head, torch.arange(VOCABULARY - 1, 0, -1)[:num_tokens])
    storage = KVStorage(kv_layout(spec.arch), NUM_BLOCKS, BLOCK_SIZE, torch.float32, "cpu", stage.ops)
    first, further = (record_eagle(head, storage, stage.native, MOST, joins=joins) for joins in (True, False))
    rows, vocabulary = stage.rows.drafter_view(0, shift=1), DraftVocabulary(VOCABULARY, head.target_ids)
    watched = Watched(RecordedDrafts(first, further, rows, VOCABULARY, head.target_ids))
    given: DraftFunction | None = watched if at_once else None
    return RunnableEagle(first, further, storage, stage.features, rows, vocabulary, given), watched


DRAFTER_METHODS: dict[str, Callable[..., tuple[RunnableDrafter, Watched]]] = {
    "a draft model": draft_model,
    "EAGLE": partial(eagle_head, VOCABULARY),
    "EAGLE with few tokens": partial(eagle_head, 23),
}


def stages(name: str, kernels: str, *, max_tokens: int = 64, branches: int = 1) -> tuple[Stage, Stage]:
    """One that drafts at once, and one that cannot."""

    def stage(*, at_once: bool) -> Stage:
        make = partial(DRAFTER_METHODS[name], at_once=at_once)
        return Stage(make, kernels, max_tokens=max_tokens, branches=branches)

    return stage(at_once=True), stage(at_once=False)


def drafts_of(stage: Stage, params: SamplingParams) -> list[Draft]:
    """Of three rows that want different numbers of guesses, of which some stand."""
    for row, length in enumerate(PROMPTS):
        stage.start(row, length, params)
    ends = list(PROMPTS)
    found = []
    for counts, stood in (((5, 1, 3), (2, 1, 0)), ((1, 4, 0), (0, 3, None)), ((2, 3, 6), (None, None, None))):
        drafts = stage.propose(*((row, count, ends[row]) for row, count in enumerate(counts)))
        assert [len(draft) for draft in drafts] == list(counts)
        found += drafts
        for row, num_accepted_tokens in enumerate(stood):
            if num_accepted_tokens is not None:
                ends[row] = stage.forward_next(row, ends[row], drafts[row], num_accepted_tokens)
    return found


@every_kernel
@pytest.mark.parametrize("name", DRAFTER_METHODS)
@pytest.mark.parametrize("params", PARAMS)
def test_they_are_the_same_tokens(kernels: str, name: str, params: str) -> None:
    at_once, in_turn = stages(name, kernels)
    found, wanted = (drafts_of(stage, PARAMS[params]) for stage in (at_once, in_turn))
    assert found == wanted
    assert len({token for draft in found for token in draft.tokens}) > 5, "they say nothing"
    assert (at_once.at_once.num_asked, in_turn.at_once.num_asked) == (3, 0)


@pytest.mark.parametrize("name", DRAFTER_METHODS)
def test_what_is_too_much_for_a_pass_is_read_before(name: str) -> None:
    found, wanted = (drafts_of(stage, PARAMS["sampled"]) for stage in stages(name, KERNELS[0], max_tokens=8))
    assert found == wanted
    assert found == drafts_of(stages(name, KERNELS[0])[0], PARAMS["sampled"])


@pytest.mark.parametrize("name", DRAFTER_METHODS)
def test_a_row_is_drafted_for_as_if_it_were_alone(name: str) -> None:
    together = drafts_of(stages(name, KERNELS[0])[0], PARAMS["sampled"])[: len(PROMPTS)]
    for row, (length, draft) in enumerate(zip(PROMPTS, together, strict=True)):
        alone = stages(name, KERNELS[0])[0]
        alone.start(row, length, PARAMS["sampled"])
        assert alone.propose((row, len(draft), length)) == [draft]


@pytest.mark.parametrize("name", DRAFTER_METHODS)
def test_drafts_go_to_the_end_of_the_context_and_no_further(name: str) -> None:
    at_once, in_turn = stages(name, KERNELS[0])
    for stage in (at_once, in_turn):
        stage.start(0, LENGTH - 3, PARAMS["sampled"])
    most = at_once.proposer.max_depth(LENGTH - 3)
    assert at_once.propose((0, most, LENGTH - 3)) == in_turn.propose((0, most, LENGTH - 3))
    with pytest.raises(OutOfBounds, match=f"the number of draft tokens is {most + 2 + at_once.network.token_lag}, "):
        at_once.propose((0, most + 2 + at_once.network.token_lag, LENGTH - 3))


@pytest.mark.parametrize(
    ("params", "is_at_once"),
    [
        (SamplingParams(logprobs=2), True),
        (SamplingParams(repetition_penalty=1.2), False),
        (SamplingParams(logit_bias={3: 5.0}), False),
    ],
    ids=["log-probabilities", "penalties", "edits"],
)
def test_rows_that_want_more_than_the_draw_are_drawn_for_in_turn(params: SamplingParams, is_at_once: bool) -> None:
    at_once, in_turn = stages("a draft model", KERNELS[0])
    for stage in (at_once, in_turn):
        stage.start(0, 9, PARAMS["sampled"])
        stage.start(1, 9, params)
    assert at_once.propose((0, 3, 9), (1, 2, 9)) == in_turn.propose((0, 3, 9), (1, 2, 9))
    assert at_once.at_once.num_asked == is_at_once


def test_so_are_siblings() -> None:
    at_once, in_turn = stages("a draft model", KERNELS[0], branches=2)
    for stage in (at_once, in_turn):
        stage.start(0, 9, PARAMS["greedy"])
    [found] = at_once.propose((0, 3, 9))
    assert not found.is_chain and [found] == in_turn.propose((0, 3, 9)) and not at_once.at_once.num_asked


@pytest.mark.parametrize("name", DRAFTER_METHODS)
def test_each_pass_is_timed_by_its_tokens(name: str) -> None:
    """All together they are what the clock says, which is a second later whenever it is looked at."""
    stage, _ = stages(name, KERNELS[0])
    for row, length in enumerate(PROMPTS):
        stage.start(row, length, PARAMS["greedy"])
    stage.propose(*zip(range(3), (4, 1, 2), PROMPTS, strict=True))
    *further, first = stage.times.passes
    assert [size for size, _ in further] == [2, 1, 1] and all(seconds > 0.0 for _, seconds in further)
    assert first == (
        sum(PROMPTS) - 3 * stage.network.token_lag,
        pytest.approx(1.0 - sum(seconds for _, seconds in further)),
    )


@pytest.mark.parametrize("name", DRAFTER_METHODS)
def test_passes_are_tried_out_as_they_will_be_made(name: str) -> None:
    stage, _ = stages(name, KERNELS[0])
    stage.proposer.profile()
    assert [size for size, _ in stage.times.passes] == [1] * 4 + [2] * 4 + [4] * 4
    assert stage.at_once.num_asked == 12
