"""A drafter's network reads what it has not read, once, and draws draft tokens as the model would."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.tables import BlockCopy
from archerfish.ops.arrays import Ints
from archerfish.ops.reference.drawing import draw
from archerfish.ops.signatures import DrawRows
from archerfish.request import SamplingParams
from archerfish.sampling.sampler import Sampler
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart
from archerfish.speculation.draft import Draft
from archerfish.speculation.drafters.cache_progress import DraftCacheProgress
from archerfish.speculation.drafters.model_proposer import DrafterLimits, ModelProposer
from archerfish.speculation.proposer import DraftRequest
from archerfish.speculation.step_latency import StepLatencyModel

VOCABULARY, BLOCK_SIZE, NUM_BLOCKS, NUM_ROWS, LENGTH = 50, 4, 32, 3, 40


class Successor:
    """Drafts that a token is followed by the next one, and less surely by the one after that."""

    def __init__(self, rows: Rows, *, lag: int = 0, has_cache: bool = True) -> None:
        self.rows = rows
        self.token_lag, self.has_kv_cache, self.reuses_accepted_kv = lag, has_cache, has_cache and not lag
        self.reads: list[list[tuple[int, int, int]]] = []
        """Of each pass, (row, first place, number of places)."""
        self.accepted_indices: list[list[int]] = []

    def forward(self, batch: StepBatch) -> Tensor:
        self.reads.append([tuple(chunk[:3]) for chunk in batch.chunks.tolist()])  # type: ignore[misc]
        sampled = batch.chunks[batch.sampled_chunks]
        last = self.rows.tokens[sampled["row"], sampled["start"] + sampled["length"] - 1 + self.token_lag].astype(
            np.int64
        )
        logits = torch.zeros(len(last), VOCABULARY)
        logits[torch.arange(len(last)), torch.from_numpy((last + 1) % VOCABULARY)] = 9.0
        logits[torch.arange(len(last)), torch.from_numpy((last + 2) % VOCABULARY)] = 7.0
        return logits

    def forward_next(self, batch: StepBatch, indices: list[int]) -> Tensor:
        self.accepted_indices.append(indices)
        return self.forward(batch)

    def draft(self, batch: StepBatch, draw_rows: DrawRows, counts: Ints) -> None:
        """It has no way to do it at once."""

    def copy(self, copies: Sequence[BlockCopy]) -> None: ...


class Stage:
    def __init__(self, *, lag: int = 0, has_cache: bool = True, max_tokens: int = 64, branches: int = 1) -> None:
        self.rows = Rows(NUM_ROWS, LENGTH, 1, BLOCK_SIZE)
        self.network = Successor(self.rows, lag=lag, has_cache=has_cache)
        self.sampler = Sampler(NUM_ROWS, draw)
        self.judged: set[int] = set()
        self.times = StepLatencyModel()
        filled = DraftCacheProgress(NUM_BLOCKS, BLOCK_SIZE, 0, self.rows.tables[0])
        self.proposer = ModelProposer(
            self.network,
            self.rows,
            filled,
            self.sampler,
            lambda: 0.0,
            self.times,
            DrafterLimits(max_tokens, LENGTH, branches),
            self.judged.__contains__,
        )

    def start(self, row: int, tokens: list[int], params: SamplingParams | None = None) -> None:
        params = params or SamplingParams(temperature=0.0)
        start = SequenceStart(
            row=row,
            tokens=tuple(tokens),
            num_prompt_tokens=len(tokens),
            blocks=((),),
            params=params,
            seed=5,
            stop_token_ids=(),
        )
        blocks = tuple(range(row * 10, row * 10 + 10))
        chunk = Chunk(row, 0, len(tokens), True, (blocks,))
        self.rows.start(start)
        self.rows.append_blocks(chunk)
        self.sampler.set_row(row, params, start.seed, len(tokens), ())
        self.proposer.begin_step(Plan(0, [start], [], [chunk]))
        self.proposer.start(row, tokens, len(tokens), "")

    def write(self, row: int, place: int, tokens: Sequence[int]) -> None:
        self.rows.write_tokens(np.full(len(tokens), row), np.arange(place, place + len(tokens)), tokens)

    def propose(self, *requests: tuple[int, int, int]) -> list[Draft]:
        """Of (row, most, end)."""
        return self.proposer.propose([DraftRequest(*fields) for fields in requests])


def test_rows_are_drafted_for_together_each_as_far_as_requested() -> None:
    stage = Stage()
    stage.start(0, [1, 2, 3])
    stage.start(2, [10, 20])
    assert stage.propose((0, 3, 3), (2, 1, 2)) == [Draft.chain([4, 5, 6]), Draft.chain([21])]
    assert stage.network.reads == [[(0, 0, 3), (2, 0, 2)], [(0, 3, 1)], [(0, 4, 1)]]
    assert stage.network.accepted_indices == [[0], [0]]
    assert stage.times, "what passes take is learned"


def test_what_was_computed_is_not_computed_again_if_it_was_accepted() -> None:
    stage = Stage()
    stage.start(0, [1, 2, 3])
    [draft] = stage.propose((0, 4, 3))
    # Two of four were accepted, and another token followed.
    stage.proposer.observe(0, draft, [4, 5, 30, 7, 8])
    stage.write(0, 3, [4, 5, 30])
    stage.network.reads.clear()
    assert stage.proposer.num_uncomputed(0, 6) == 1
    assert stage.propose((0, 1, 6)) == [Draft.chain([31])]
    assert stage.network.reads == [[(0, 5, 1)]]


def test_the_last_draft_token_was_not_computed() -> None:
    stage = Stage()
    stage.start(0, [1, 2, 3])
    [draft] = stage.propose((0, 2, 3))
    stage.proposer.observe(0, draft, [4, 5, 6])
    stage.write(0, 3, [4, 5, 6])
    assert stage.proposer.num_uncomputed(0, 6) == 2


def test_a_head_reads_tokens_one_position_behind_and_never_reuses_its_drafts() -> None:
    stage = Stage(lag=1)
    stage.start(0, [1, 2, 3])
    [draft] = stage.propose((0, 3, 3))
    assert draft == Draft.chain([4, 5, 6])
    assert stage.network.reads == [[(0, 0, 2)], [(0, 2, 1)], [(0, 3, 1)]]
    stage.proposer.observe(0, draft, [4, 5, 6, 7])
    stage.write(0, 3, [4, 5, 6, 7])
    assert stage.proposer.num_uncomputed(0, 7) == 4


def test_heads_that_keep_nothing_look_at_the_last_state() -> None:
    stage = Stage(lag=1, has_cache=False)
    stage.start(0, [1, 2, 3])
    assert stage.propose((0, 2, 3)) == [Draft.chain([4, 5])]
    assert stage.network.reads == [[(0, 1, 1)], [(0, 2, 1)]]
    assert stage.proposer.num_uncomputed(0, 30) == 1


def test_a_long_text_is_read_in_pieces() -> None:
    stage = Stage(max_tokens=8)
    stage.start(0, list(range(20)))
    stage.start(1, [7, 8])
    assert stage.propose((0, 1, 20), (1, 1, 2)) == [Draft.chain([20]), Draft.chain([9])]
    assert stage.network.reads == [[(0, 0, 8)], [(0, 8, 8)], [(0, 16, 4), (1, 0, 2)]]


def test_a_sequence_that_comes_again_is_read_from_where_its_blocks_end() -> None:
    stage = Stage()
    stage.start(0, [1, 2, 3, 4, 5])
    stage.propose((0, 1, 5))
    # Its blocks stayed reserved while it waited.
    stage.proposer.start(0, [1, 2, 3, 4, 5, 6], 5, "")
    stage.write(0, 5, [6])
    assert stage.proposer.num_uncomputed(0, 6) == 1


def test_siblings_of_each_draft_token_are_the_next_likely_ones() -> None:
    stage = Stage(branches=2)
    stage.start(0, [1, 2, 3])
    assert stage.propose((0, 2, 3)) == [Draft((4, 5, 5, 6), (-1, 0, -1, 0))]


def test_samples_have_the_noise_of_their_positions() -> None:
    params = SamplingParams(temperature=2.0, seed=5)
    stage = Stage()
    stage.start(0, [1, 2, 3], params)
    [draft] = stage.propose((0, 3, 3))
    expected, last = [], 3
    for position in (3, 4, 5):
        logits = torch.zeros(1, VOCABULARY)
        logits[0, (last + 1) % VOCABULARY], logits[0, (last + 2) % VOCABULARY] = 9.0, 7.0
        drawn = stage.sampler.draw(logits, np.array([0]), np.array([position]), torch.from_numpy(stage.rows.tokens))
        last = drawn.tokens[0]
        expected.append(last)
    assert draft == Draft.chain(expected)


def test_rows_verified_by_rejection_get_proposal_distributions() -> None:
    params = SamplingParams(temperature=1.0, top_k=2, seed=5)
    stage = Stage()
    stage.judged.add(1)
    stage.start(0, [1, 2, 3], params)
    stage.start(1, [4, 5, 6], params)
    free, judged = stage.propose((0, 2, 3), (1, 2, 3))
    assert free.proposals is None
    found = judged.proposals
    assert isinstance(found, Tensor) and found.shape == (2, VOCABULARY)
    likely = torch.sigmoid(torch.tensor(2.0, dtype=torch.float64))
    before = [6, judged.tokens[0]]
    for row, last in zip(found, before, strict=True):
        assert row[last + 1].item() == pytest.approx(likely.item()) and row[last + 2].item() == pytest.approx(
            1 - likely
        )
        assert row.sum().item() == pytest.approx(1.0)


def test_no_draft_exceeds_the_end_of_the_context() -> None:
    assert Stage().proposer.max_depth(LENGTH - 2) == 2 and Stage().proposer.max_depth(LENGTH) == 0
