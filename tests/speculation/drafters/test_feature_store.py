"""What layers made of tokens lies where their keys and values do: written late, read right."""

import numpy as np
import torch

from archerfish.execution.step.inputs import StepBatch
from archerfish.execution.step.model import ForwardOutput
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.tables import BlockCopy
from archerfish.scheduling.plan import Chunk
from archerfish.speculation.drafters.feature_store import FeatureStore

BLOCK_SIZE, WIDTH = 4, 3


def store() -> FeatureStore:
    rows = Rows(2, 16, 2, BLOCK_SIZE)
    # The other group's blocks belong to other sequences.
    rows.tables[0][:] = 0
    rows.tables[1][:] = [[5, 2, 7, 1], [5, 6, 3, 4]]
    return FeatureStore(8, 2 * WIDTH, torch.float32, "cpu", rows.drafter_view(1))


def passed(*values: float) -> ForwardOutput:
    """Of tokens whose features are these numbers, and their negatives from the other tap."""
    tap = torch.tensor(values)[:, None].repeat(1, WIDTH)
    return ForwardOutput(torch.zeros(len(values), 1), torch.zeros(0, 1), (tap, -tap))


def batch(*chunks: tuple[int, int, int]) -> StepBatch:
    return StepBatch.of([Chunk(*chunk, samples=True) for chunk in chunks])


def values(cached: FeatureStore, *chunks: tuple[int, int, int]) -> list[float]:
    found = cached.gather(batch(*chunks))
    assert torch.equal(found[:, :WIDTH], -found[:, WIDTH:])
    return found[:, 0].tolist()


def test_rows_are_separate_and_the_last_write_counts() -> None:
    cached = store()
    cached.record(batch((0, 0, 3), (1, 4, 2)), passed(1, 2, 3, 11, 12))
    cached.record(batch((0, 2, 3)), passed(30, 40, 50))
    cached.record(batch((0, 3, 1)), passed(41))
    assert values(cached, (0, 0, 5), (1, 4, 2)) == [1, 2, 30, 41, 50, 11, 12]


def test_many_pending_features_are_flushed() -> None:
    cached = store()
    for turn in range(200):
        cached.record(batch((0, turn % 8, 1)), passed(turn))
    assert values(cached, (0, 0, 8)) == [192, 193, 194, 195, 196, 197, 198, 199]


def test_pending_features_do_not_change_with_the_buffer_they_were_computed_in() -> None:
    cached, one = store(), passed(1, 2)
    cached.record(batch((0, 0, 2)), one)
    one.aux_hidden_states[0].fill_(9)
    assert values(cached, (0, 0, 2)) == [1, 2]
    final = FeatureStore(8, 1, torch.float32, "cpu", Rows(1, 16, 1, BLOCK_SIZE).drafter_view(0))
    state = torch.ones(1, 1)
    final.record(batch((0, 0, 1)), ForwardOutput(state, torch.zeros(0, 1)))
    state.fill_(9)
    assert final.gather(batch((0, 0, 1))).tolist() == [[1.0]], "without taps it is the final state"


def test_blocks_are_copied_and_single_tokens_moved() -> None:
    cached = store()
    cached.record(batch((0, 0, 8)), passed(*range(8)))
    cached.copy([BlockCopy(2, 6)])
    assert values(cached, (1, 4, 4)) == [4, 5, 6, 7]
    cached.move(np.array([0, 0]), np.array([5, 6]), np.array([4, 5]))
    assert values(cached, (0, 0, 8)) == [0, 1, 2, 3, 5, 6, 6, 7]
