"""Plans run on a small model with a paged cache, against the same model run whole, without any cache."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from archerfish.execution.backends.eager import EagerModel
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.layout import kv_layout
from archerfish.kvcache.storage import KVStorage
from archerfish.kvcache.tables import BlockCopy
from archerfish.models.decoder import Decoder
from archerfish.ops import KernelTarget, choose_ops
from archerfish.ops.reference.drawing import draw
from archerfish.request import SamplingParams
from archerfish.sampling.sampler import Sampler
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart
from tests.execution.archs import ALL, FULL, MIXED, VOCABULARY
from tests.execution.executors import local_executor

MAX_MODEL_LEN = 96
BLOCK_SIZE = 8
NUM_ROWS = 5
GREEDY = SamplingParams(temperature=0.0, logprobs=4)
OPS, _ = choose_ops(KernelTarget(device="cpu", dtype="float32"))


def random_model(arch, seed=0):
    model = Decoder(arch, OPS, MAX_MODEL_LEN)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.2, generator=generator)
    return model.requires_grad_(False)


def whole_logits(model, tokens):
    """[tokens, vocabulary], each layer's attention over everything at once."""
    made = {}

    def attend(layer, q, k, v):
        spec = model.arch.layers[layer].attention
        if spec.kv_source is None:
            made[layer] = k, v
        k, v = (
            x.repeat_interleave(spec.num_heads // spec.num_kv_heads, 1)
            for x in made[layer if spec.kv_source is None else spec.kv_source]
        )
        scores = torch.einsum("qhd,khd->hqk", q, k) * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        positions = torch.arange(len(q))
        hidden = positions > positions[:, None]
        if spec.window is not None:
            hidden |= positions <= positions[:, None] - spec.window
        return torch.einsum("hqk,khd->qhd", torch.softmax(scores.masked_fill(hidden, -math.inf), -1), v)

    hidden = model(torch.tensor(tokens), torch.arange(len(tokens)), attend)
    return model.logits(hidden)


def whole_logprobs(model, tokens):
    return torch.log_softmax(whole_logits(model, tokens), -1)


class Driver:
    """An executor, and a scheduler's part of the work done by hand."""

    def __init__(self, model, num_blocks=100, leftovers=math.nan):
        layout = kv_layout(model.arch)
        storage = KVStorage(layout, num_blocks, BLOCK_SIZE, torch.float32, "cpu", OPS)
        storage.keys.fill_(leftovers)
        storage.values.fill_(leftovers)
        self.executor = local_executor(
            EagerModel(model, storage),
            storage,
            Rows(NUM_ROWS, MAX_MODEL_LEN, len(storage.layout.windows), storage.block_size),
            Sampler(NUM_ROWS, draw),
        )
        self.num_groups = len(layout.windows)
        self.free = np.random.default_rng(0).permutation(num_blocks).tolist()
        self.tables = {}
        self.length = {}
        self.starts, self.copies, self.chunks = [], [], []

    def start(self, row, tokens, params=GREEDY, seed=0, num_prompt=None, blocks=None, stops=()):
        self.tables[row] = [list(group) for group in blocks or [[] for _ in range(self.num_groups)]]
        self.length[row] = len(tokens)
        shared = tuple(tuple(group) for group in self.tables[row])
        num_prompt = len(tokens) if num_prompt is None else num_prompt
        self.starts.append(
            SequenceStart(
                row=row,
                tokens=tuple(tokens),
                num_prompt_tokens=num_prompt,
                blocks=shared,
                params=params,
                seed=seed,
                stop_token_ids=stops,
            )
        )

    def chunk(self, row, start, length):
        missing = -(-(start + length) // BLOCK_SIZE) - len(self.tables[row][0])
        new = tuple(tuple(self.free.pop() for _ in range(missing)) for _ in range(self.num_groups)) if missing else ()
        for table, blocks in zip(self.tables[row], new, strict=False):
            table.extend(blocks)
        samples = start + length == self.length[row]
        self.length[row] += samples
        self.chunks.append(Chunk(row, start, length, samples, new))

    def step(self):
        plan = Plan(0, self.starts, self.copies, self.chunks)
        self.starts, self.copies, self.chunks = [], [], []
        return self.executor.run(plan)


def prompt(seed, length):
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


def check_entry(entry, logprobs):
    assert entry.logprob == pytest.approx(float(logprobs[entry.token_id]), abs=2e-4)
    wanted = logprobs.topk(len(entry.top))
    assert [value for _, value in entry.top] == pytest.approx(wanted.values.tolist(), abs=2e-4)


@pytest.mark.parametrize("name", ALL)
def test_steps_of_mixed_chunks_give_what_the_whole_model_gives(name):
    """Prompts whole and in pieces, decodes beside them, all in one batch over a cache that was full of NaN."""
    model = random_model(ALL[name])
    driver = Driver(model)
    sequences = {0: prompt(0, 50), 1: prompt(1, 7), 3: prompt(3, 33)}
    for row, tokens in sequences.items():
        driver.start(row, tokens)
    driver.chunk(0, 0, 21)
    driver.chunk(3, 0, 33)
    driver.chunk(1, 0, 7)
    results = [(driver.step(), [0, 3, 1])]
    driver.chunk(1, 7, 1)
    driver.chunk(0, 21, 29)
    driver.chunk(3, 33, 1)
    results.append((driver.step(), [1, 0, 3]))
    for step in range(12):
        rows = [[0, 1, 3], [3, 0, 1], [1, 3]][step % 3]
        for row in rows:
            driver.chunk(row, driver.length[row] - 1, 1)
        results.append((driver.step(), rows))
    for result, rows in results:
        for place, row in enumerate(rows):
            if result.tokens[place]:
                logprobs = whole_logprobs(model, sequences[row])[-1]
                assert result.tokens[place] == [int(logprobs.argmax())]
                check_entry(result.logprobs[place][0], logprobs)
                sequences[row] += result.tokens[place]
            else:
                assert place not in result.logprobs
        assert not result.failures
    assert len(sequences[0]) == 50 + 9 and len(sequences[1]) == 7 + 14


@pytest.mark.parametrize("name", ["full", "mixed", "shared"])
@pytest.mark.parametrize("pieces", [[40], [1] * 40, [8, 16, 8, 8], [7, 1, 30, 2]], ids=str)
def test_log_probabilities_of_a_prompt_come_piece_by_piece_and_are_the_whole_models(name, pieces):
    model = random_model(ALL[name])
    driver = Driver(model)
    tokens = prompt(5, 40)
    driver.start(2, tokens, SamplingParams(temperature=0.0, prompt_logprobs=3))
    entries, begin = [], 0
    for length in pieces:
        driver.chunk(2, begin, length)
        entries += driver.step().prompt_logprobs.get(0, [])
        begin += length
    logprobs = whole_logprobs(model, tokens)
    assert [entry.token_id for entry in entries] == tokens[1:]
    for position, entry in enumerate(entries):
        check_entry(entry, logprobs[position])
        assert len(entry.top) == 3
        assert entry.rank == 1 + int((logprobs[position] > logprobs[position, tokens[position + 1]]).sum())


def test_prompt_log_probabilities_do_not_spill_over_to_answers_or_other_rows():
    driver = Driver(random_model(FULL))
    asking = SamplingParams(temperature=0.0, prompt_logprobs=0)
    driver.start(0, prompt(0, 9), asking)
    driver.start(1, prompt(1, 9))
    driver.start(2, prompt(2, 12), asking, num_prompt=6)  # Six tokens of its answer were written before preemption.
    for row, length in ((1, 9), (0, 9), (2, 12)):
        driver.chunk(row, 0, length)
    result = driver.step()
    assert {place: len(entries) for place, entries in result.prompt_logprobs.items()} == {1: 8, 2: 5}
    driver.chunk(0, 9, 1)
    assert driver.step().prompt_logprobs == {}
    driver.start(0, prompt(4, 9))
    driver.chunk(0, 0, 9)
    assert driver.step().prompt_logprobs == {}, "the row's next sequence did not ask"


def test_more_prompt_log_probabilities_than_are_computed_at_once_stay_in_order(monkeypatch):
    monkeypatch.setattr("archerfish.execution.step_state.LOGIT_ROWS_AT_ONCE", 7)
    model = random_model(FULL)
    driver = Driver(model)
    tokens = prompt(6, 60)
    driver.start(0, tokens, SamplingParams(prompt_logprobs=1))
    driver.chunk(0, 0, 60)
    entries = driver.step().prompt_logprobs[0]
    assert [entry.token_id for entry in entries] == tokens[1:]
    for entry, logprobs in zip(entries, whole_logprobs(model, tokens), strict=False):
        check_entry(entry, logprobs)


@pytest.mark.parametrize("name", ["full", "mixed"])
def test_a_fork_continues_from_shared_and_copied_blocks_without_touching_its_parent(name):
    model = random_model(ALL[name])
    driver = Driver(model)
    tokens = prompt(7, 21)
    driver.start(0, tokens)
    driver.chunk(0, 0, 21)
    first = driver.step().tokens[0]
    copies = [driver.free.pop() for _ in range(driver.num_groups)]
    driver.copies = [BlockCopy(table[2], copy) for table, copy in zip(driver.tables[0], copies, strict=True)]
    shared = [[*table[:2], copy] for table, copy in zip(driver.tables[0], copies, strict=True)]
    other = SamplingParams(temperature=0.0, logit_bias={first[0]: -100.0}, logprobs=0)
    driver.start(1, tokens, other, blocks=shared)
    driver.chunk(0, 21, 1)
    driver.chunk(1, 20, 1)  # Its last prompt token again: the first draw comes from its logits.
    sequences = [tokens + first, list(tokens)]
    for _ in range(6):
        result = driver.step()
        for row in (0, 1):
            logits = whole_logits(model, sequences[row])[-1]
            if row == 1:
                logits[first[0]] -= 100.0
            assert result.tokens[row] == [int(logits.argmax())]
            sequences[row] += result.tokens[row]
            driver.chunk(row, driver.length[row] - 1, 1)
    assert sequences[0][21] != sequences[1][21]


def test_a_preempted_sequence_goes_on_where_it_was_on_another_row():
    model = random_model(MIXED)
    driver = Driver(model)
    tokens = prompt(8, 10)
    params = SamplingParams(temperature=1.5, repetition_penalty=1.3, frequency_penalty=0.5)
    driver.start(0, tokens, params, seed=77)
    driver.chunk(0, 0, 10)
    written = list(tokens)
    for _ in range(12):
        written += driver.step().tokens[0]
        driver.chunk(0, len(written) - 1, 1)
    for split in (11, 16, 21):
        again = Driver(model)
        again.start(3, prompt(9, 40))  # Leaves tokens behind on the row.
        again.chunk(3, 0, 40)
        again.step()
        again.start(3, written[:split], params, seed=77, num_prompt=10)
        again.chunk(3, 0, split)
        resumed = written[:split]
        while len(resumed) < len(written):
            resumed += again.step().tokens[0]
            again.chunk(3, len(resumed) - 1, 1)
        assert resumed == written


def test_the_token_after_the_longest_context_is_still_drawn():
    model = random_model(FULL)
    driver = Driver(model)
    tokens = prompt(10, MAX_MODEL_LEN)
    driver.start(0, tokens)
    driver.chunk(0, 0, MAX_MODEL_LEN)
    assert driver.step().tokens == [[int(whole_logits(model, tokens)[-1].argmax())]]


def test_a_row_that_cannot_be_drawn_from_fails_at_its_own_chunk():
    driver = Driver(random_model(FULL))
    driver.start(0, prompt(0, 12))
    driver.start(1, prompt(1, 5), SamplingParams(allowed_token_ids=(3,), min_tokens=2), stops=(3,))
    driver.start(2, prompt(2, 6))
    driver.chunk(0, 0, 4)  # Does not sample: places among chunks and among draws differ.
    driver.chunk(2, 0, 6)
    driver.chunk(1, 0, 5)
    result = driver.step()
    assert set(result.failures) == {2}
    assert set(result.logprobs) == {1}
    assert result.tokens[0] == []


def test_weights_that_are_not_numbers_fail_every_row_and_raise_nothing():
    model = random_model(FULL)
    model.norm.weight.data[0] = math.nan
    driver = Driver(model)
    for row in (0, 1):
        driver.start(row, prompt(row, 5), SamplingParams(top_p=0.9, logprobs=2))
        driver.chunk(row, 0, 5)
    result = driver.step()
    assert set(result.failures) == {0, 1}
    assert "not finite" in result.failures[0]


def test_a_plan_without_chunks_still_starts_its_sequences():
    driver = Driver(random_model(FULL))
    driver.start(0, prompt(0, 5))
    assert driver.step().tokens == []
    driver.chunk(0, 0, 5)
    assert len(driver.step().tokens[0]) == 1


def test_a_draw_does_not_depend_on_the_rows_and_neighbours_it_was_made_with():
    model = random_model(replace(MIXED, logit_softcap=None))
    params = SamplingParams(temperature=0.9, top_p=0.9, presence_penalty=0.4)
    tokens = prompt(11, 19)

    def answer(row, neighbours):
        driver = Driver(model)
        for neighbour in neighbours:
            driver.start(neighbour, prompt(neighbour, 19), SamplingParams(temperature=2.0, top_k=3), seed=neighbour)
        driver.start(row, tokens, params, seed=2**64 - 1)
        rows = [*neighbours, row]
        for one in rows:
            driver.chunk(one, 0, 19)
        written = []
        for _ in range(10):
            written += driver.step().tokens[-1]
            for one in rows:
                driver.chunk(one, driver.length[one] - 1, 1)
        return written

    assert answer(0, []) == answer(4, [0, 1, 2]) == answer(1, [3])
