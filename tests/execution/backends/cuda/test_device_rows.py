"""Rows on a device: what is new since the last step, told once and completely."""

import numpy as np

from archerfish.execution.backends.cuda.buckets import bucket
from archerfish.execution.backends.cuda.device_rows import DeviceRows
from archerfish.request import SamplingParams
from archerfish.scheduling.plan import Chunk, SequenceStart


def start(row: int, tokens: tuple[int, ...], blocks: tuple[int | None, ...]) -> SequenceStart:
    return SequenceStart(
        row=row,
        tokens=tokens,
        num_prompt_tokens=len(tokens),
        blocks=(blocks,),
        params=SamplingParams(),
        seed=0,
        stop_token_ids=(),
    )


def told(rows: DeviceRows, memory: "np.ndarray[tuple[int], np.dtype[np.int32]]") -> None:
    """Write down what is new, as the device does."""
    news = rows.take_updates()
    assert len(set(news[:, 0].tolist())) == len(news), "a place twice: whichever is written last would hold"
    memory[news[:, 0]] = news[:, 1]


def test_the_device_knows_what_the_host_knows() -> None:
    rows = DeviceRows(3, 64, 1, 16, "cpu")
    memory = np.zeros(rows.memory.shape, np.int32)
    rows.start(start(1, (5, 6, 7), (9, None)))
    rows.append_blocks(Chunk(1, 0, 3, True, ((4, 2),)))
    rows.start(start(2, (8,), ()))
    rows.start(start(2, (3, 1), (7,)))  # Dropped before anything was told.
    told(rows, memory)
    rows.write_tokens(np.array([1, 2]), np.array([3, 2]), [11, 12])
    rows.write(1, 4, [13, 14])
    told(rows, memory)
    assert rows.take_updates().shape == (0, 2)
    assert np.array_equal(memory[: rows.tokens.size].reshape(rows.tokens.shape), rows.tokens)
    assert np.array_equal(memory[rows.tokens.size :].reshape(rows.tables[0].shape), rows.tables[0])


def test_what_the_device_sampled_is_not_sent_to_it() -> None:
    rows = DeviceRows(2, 32, 1, 16, "cpu")
    rows.record_device_tokens(np.array([0]), np.array([5]), [77])
    assert rows.tokens[0, 5] == 77
    assert not len(rows.take_updates())


def test_sizes_are_filled_up_to_few_and_never_by_more_than_the_half() -> None:
    sizes = [bucket(size) for size in range(1, 8193)]
    assert all(size <= filled < 2 * size for size, filled in enumerate(sizes, start=1))
    assert sizes == sorted(sizes) and len(set(sizes)) < 60
    assert all(filled <= size + 256 for size, filled in enumerate(sizes, start=1))
