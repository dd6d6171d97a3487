"""Drafts as tables over a step's tokens, and what a step with trees is told."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archerfish.execution.step.inputs import NO_TREE, StepBatch, StepTrees, step_tensors
from archerfish.execution.step.rows import Rows
from archerfish.ops.signatures import MAX_TREE_TOKENS
from archerfish.scheduling.plan import Chunk
from archerfish.speculation.draft import MAX_NODES, NO_DRAFT, Draft
from tests.lanes import examples
from tests.ops.trees import bushy, lines, random_tree


def test_a_draft_and_the_token_it_hangs_on_fill_a_path():
    assert MAX_TREE_TOKENS == 1 + MAX_NODES


@examples(60)
@given(st.lists(st.integers(2, MAX_NODES), min_size=1, max_size=3), st.integers(0, 1000))
def test_paths_are_the_lines_of_a_draft_and_depths_their_lengths(sizes, seed):
    random = np.random.default_rng(seed)
    drafts = [random_tree(random, size) for size in sizes]
    trees = StepTrees.of(np.array([4, *(1 + size for size in sizes)]), [None, *drafts])
    assert trees is not None
    assert trees.depths[:4].tolist() == [NO_TREE] * 4
    token = 4
    for draft in drafts:
        for own, line in enumerate(lines(draft)):
            assert trees.depths[token] == len(line) - 1
            path = trees.paths[token].tolist()
            assert path[: len(line)] == line
            assert set(path[len(line) :]) <= {own}
            token += 1
    assert token == len(trees.depths) == len(trees.paths)


def test_chains_are_no_trees():
    assert StepTrees.of(np.array([4, 1, 3]), [Draft.chain([5, 6, 7]), NO_DRAFT, None]) is None
    found = StepTrees.of(np.array([4, 3]), [Draft.chain([5, 6, 7]), bushy(2)])
    assert found is not None
    assert found.depths.tolist() == [NO_TREE] * 4 + [0, 1, 1]


def test_a_chunk_that_is_not_the_draft_and_one_token_is_refused():
    with pytest.raises(AssertionError, match="a chunk of 5 tokens for a draft of 3"):
        StepTrees.of(np.array([5]), [bushy(3)])


def rows_with_tokens():
    rows = Rows(3, 64, 2, 4)
    rows.tokens[:] = np.arange(rows.tokens.size).reshape(rows.tokens.shape)
    for table in rows.tables:
        table[:] = np.random.default_rng(0).permutation(table.size).reshape(table.shape)
    return rows


def test_tokens_and_slots_go_by_index_and_positions_by_depth():
    rows = rows_with_tokens()
    batch = StepBatch.of([Chunk(0, 5, 3, True), Chunk(2, 10, 6, True), Chunk(1, 0, 2, False)])
    plain = step_tensors(batch, rows, "cpu")
    found = step_tensors(batch.with_trees([None, bushy(5), None]), rows, "cpu")
    assert found.positions.tolist() == [5, 6, 7, 10, 11, 11, 12, 12, 12, 0, 1]
    assert torch.equal(found.tokens, plain.tokens)
    assert all(torch.equal(*slots) for slots in zip(found.chunks.slots, plain.chunks.slots, strict=True))
    assert all(torch.equal(*tables) for tables in zip(found.chunks.tables, plain.chunks.tables, strict=True))
    assert plain.chunks.trees is None
    told = found.chunks.trees
    assert told is not None
    assert told.depths.tolist() == told.host_depths.tolist() == [-1, -1, -1, 0, 1, 1, 2, 2, 2, -1, -1]
    assert told.paths.shape == (11, MAX_TREE_TOKENS)
    for path, line in zip(told.paths[3:9], lines(bushy(5)), strict=True):
        assert path[: len(line)].tolist() == line
    tensors = (found.positions, found.chunks.ends, told.depths, told.paths)
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 2, "as few copies as ever"
    assert all(tensor.is_contiguous() and tensor.data_ptr() % 16 == 0 for tensor in tensors)


def test_a_step_of_chains_has_no_trees():
    batch = StepBatch.of([Chunk(0, 5, 4, True), Chunk(1, 3, 1, True)])
    drafted = batch.with_trees([Draft.chain([1, 2, 3]), NO_DRAFT])
    assert drafted.trees is None
    assert drafted.positions.tolist() == batch.positions.tolist() == [5, 6, 7, 8, 3]
