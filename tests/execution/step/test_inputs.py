"""The tensors of a step against building them one token at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archerfish.execution.step.inputs import StepBatch, step_tensors
from archerfish.execution.step.rows import Rows
from archerfish.request import SamplingParams
from archerfish.scheduling.plan import Chunk, SequenceStart
from tests.lanes import examples

MAX_MODEL_LEN = 60
NUM_ROWS = 6


@st.composite
def steps(draw):
    """Chunks on different rows, with the tokens and tables their rows hold."""
    block_size = draw(st.sampled_from([1, 4, 8, 16]))
    num_groups = draw(st.integers(1, 3))
    rows = draw(st.lists(st.integers(0, NUM_ROWS - 1), min_size=1, max_size=NUM_ROWS, unique=True))
    chunks = []
    for row in rows:
        begin = draw(st.integers(0, MAX_MODEL_LEN - 1))
        length = draw(st.one_of(st.just(1), st.sampled_from([2, 5]), st.integers(1, MAX_MODEL_LEN)))
        chunks.append(Chunk(row, begin, min(length, MAX_MODEL_LEN - begin), draw(st.booleans())))
    return chunks, block_size, num_groups, draw(st.integers(0, 2**32 - 1))


def filled_rows(chunks, block_size, num_groups, seed):
    random = np.random.default_rng(seed)
    rows = Rows(NUM_ROWS, MAX_MODEL_LEN, num_groups, block_size)
    tokens, tables = {}, {}
    for chunk in chunks:
        num_blocks = -(-(chunk.start + chunk.length) // block_size)
        tokens[chunk.row] = random.integers(0, 200_000, chunk.start + chunk.length).tolist()
        # Block ids up to where block * block_size no longer fits 32 bits.
        tables[chunk.row] = random.integers(0, 2**31 - 1, (num_groups, num_blocks)).tolist()
        rows.start(
            SequenceStart(
                row=chunk.row,
                tokens=tuple(tokens[chunk.row]),
                num_prompt_tokens=1,
                blocks=tuple(tuple(group) for group in tables[chunk.row]),
                params=SamplingParams(),
                seed=0,
                stop_token_ids=(),
            )
        )
    return rows, tokens, tables


def tensors_of(chunks, rows):
    return step_tensors(StepBatch.of(chunks), rows, "cpu")


@examples(150)
@given(steps())
def test_tokens_positions_and_slots_are_those_of_each_chunk_in_turn(step):
    chunks, block_size, num_groups, _ = step
    rows, tokens, tables = filled_rows(*step)
    inputs = tensors_of(chunks, rows)
    places = [(chunk.row, position) for chunk in chunks for position in range(chunk.start, chunk.start + chunk.length)]
    assert inputs.tokens.tolist() == [tokens[row][position] for row, position in places]
    assert inputs.positions.tolist() == [position for _, position in places]
    for group in range(num_groups):
        assert inputs.chunks.slots[group].tolist() == [
            tables[row][group][position // block_size] * block_size + position % block_size for row, position in places
        ]
    wide = (inputs.tokens, inputs.positions, *inputs.chunks.slots)
    assert {tensor.dtype for tensor in wide} == {torch.int64}
    assert all(tensor.is_contiguous() and tensor.data_ptr() % 16 == 0 for tensor in wide)


@examples(150)
@given(steps())
def test_where_each_chunk_begins_and_ends_is_told(step):
    chunks = step[0]
    batch = StepBatch.of(chunks)
    offset = 0
    for place, chunk in enumerate(chunks):
        assert batch.rows[place] == chunk.row
        assert batch.ends[place] == chunk.start + chunk.length
        assert batch.query_starts[place] == offset
        assert batch.query_ends[place] == offset + chunk.length
        offset += chunk.length
    assert batch.sampled_chunks.tolist() == [place for place, chunk in enumerate(chunks) if chunk.samples]
    picked = tensors_of(chunks, filled_rows(*step)[0]).logit_indices
    assert picked.tolist() == [batch.query_ends[place] - 1 for place in batch.sampled_chunks]


@examples(150)
@given(steps(), st.data())
def test_draft_tokens_follow_their_chunk_and_each_has_logits(step, data):
    chunks = step[0]
    counts = [data.draw(st.integers(0, 4)) if chunk.samples else 0 for chunk in chunks]
    batch = StepBatch.of(chunks, np.array(counts))
    longer = [chunk._replace(length=chunk.length + count) for chunk, count in zip(chunks, counts, strict=True)]
    assert batch.chunks[["row", "start", "length"]].tolist() == [
        (chunk.row, chunk.start, chunk.length) for chunk in longer
    ]
    assert batch.ends.tolist() == [chunk.start + chunk.length for chunk in longer]
    assert batch.query_ends.tolist() == np.cumsum([chunk.length for chunk in longer]).tolist()
    expected = [
        (place, offset + chunk.length - 1 + guess, chunk.start + chunk.length + guess)
        for place, (chunk, count, offset) in enumerate(zip(chunks, counts, batch.query_starts.tolist(), strict=True))
        for guess in range((1 + count) * chunk.samples)
    ]
    told = zip(
        batch.sampled_chunks.tolist(), batch.logit_indices.tolist(), batch.sample_positions.tolist(), strict=True
    )
    assert list(told) == expected


@examples(150)
@given(steps())
def test_attention_is_told_the_rows_the_context_and_the_blocks_of_each_chunk(step):
    chunks, block_size, num_groups, _ = step
    rows, _, tables = filled_rows(*step)
    told = tensors_of(chunks, rows).chunks
    lengths, ends = [chunk.length for chunk in chunks], [chunk.start + chunk.length for chunk in chunks]
    assert told.query_starts.tolist() == [sum(lengths[:place]) for place in range(len(chunks) + 1)]
    assert told.lengths.tolist() == told.host_lengths.tolist() == lengths
    assert told.ends.tolist() == told.host_ends.tolist() == ends
    assert len(told.tables) == num_groups
    for group, table in enumerate(told.tables):
        assert table.shape == (len(chunks), -(-max(ends) // block_size))
        for place, chunk in enumerate(chunks):
            own = tables[chunk.row][group]
            assert table[place, : len(own)].tolist() == own
    narrow = (told.query_starts, told.lengths, told.ends, *told.tables)
    assert {tensor.dtype for tensor in narrow} == {torch.int32}
    assert all(tensor.is_contiguous() and tensor.data_ptr() % 16 == 0 for tensor in narrow)


@pytest.mark.parametrize("num_groups", [1, 3])
@pytest.mark.parametrize("num_chunks", [1, 6])
def test_a_step_takes_two_copies_to_the_device_whatever_is_in_it(num_groups, num_chunks):
    step = ([Chunk(row, row, 1 + row % 3, True) for row in range(num_chunks)], 4, num_groups, 0)
    inputs = tensors_of(step[0], filled_rows(*step)[0])
    told = inputs.chunks
    tensors = (
        inputs.tokens,
        inputs.positions,
        inputs.logit_indices,
        told.query_starts,
        told.lengths,
        told.ends,
        *told.tables,
        *told.slots,
    )
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 2


def test_inputs_do_not_alias_the_rows():
    """Rows change while a step may still be running."""
    step = ([Chunk(0, 0, 5, True), Chunk(1, 3, 1, True)], 4, 1, 0)
    rows = filled_rows(*step)[0]
    inputs = tensors_of(step[0], rows)
    before = (inputs.tokens.tolist(), inputs.chunks.tables[0].tolist())
    rows.tokens[:] = 0
    rows.tables[0][:] = 0
    assert (inputs.tokens.tolist(), inputs.chunks.tables[0].tolist()) == before
