"""The scripted executor writes what its script says, and refuses plans that no executor could run."""

import pytest

from archerfish.execution.scripted import ScriptedExecutor, count_up
from archerfish.kvcache.pool import BlockId
from archerfish.request import SamplingParams
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart


def start(
    row: int, tokens: tuple[int, ...], num_blocks: int = 0, num_prompt_tokens: int | None = None
) -> SequenceStart:
    return SequenceStart(
        row=row,
        tokens=tokens,
        num_prompt_tokens=len(tokens) if num_prompt_tokens is None else num_prompt_tokens,
        blocks=(tuple(BlockId(block) for block in range(num_blocks)),),
        params=SamplingParams(),
        seed=0,
        stop_token_ids=(),
    )


def chunk(row: int, first: int, length: int, *, samples: bool = True, num_new_blocks: int = 0) -> Chunk:
    new = (tuple(BlockId(block) for block in range(num_new_blocks)),) if num_new_blocks else ()
    return Chunk(row, first, length, samples, new)


def plan(starts: list[SequenceStart], chunks: list[Chunk]) -> Plan:
    return Plan(1, starts, [], chunks)


def test_tokens_depend_on_the_prompt_and_the_length_so_far() -> None:
    assert len({count_up((1, 2), 2), count_up((1, 9), 2), count_up((1, 2), 3)}) == 3
    executor = ScriptedExecutor(block_size=4)
    result = executor.run(
        plan([start(0, (1, 2)), start(5, (7,))], [chunk(5, 0, 1, num_new_blocks=1), chunk(0, 0, 2, num_new_blocks=1)])
    )
    assert result.tokens == [[count_up((7,), 1)], [count_up((1, 2), 2)]]
    assert executor.run(plan([], [chunk(0, 2, 1)])).tokens == [[count_up((1, 2), 3)]]
    assert executor.num_steps == 2


def test_a_chunk_may_draw_several_tokens_whose_keys_the_next_one_computes() -> None:
    executor = ScriptedExecutor(block_size=4, tokens_per_draw=2)
    first = executor.run(plan([start(0, (1, 2))], [chunk(0, 0, 2, num_new_blocks=1)]))
    assert first.tokens == [[count_up((1, 2), 2), count_up((1, 2), 3)]]
    assert executor.run(plan([], [chunk(0, 2, 2)])).tokens == [[count_up((1, 2), 4), count_up((1, 2), 5)]]


def test_a_resumed_sequence_writes_on_as_if_nothing_had_happened() -> None:
    executor = ScriptedExecutor(block_size=4)
    resumed = start(0, (1, 2, 50, 51), num_prompt_tokens=2)
    assert executor.run(plan([resumed], [chunk(0, 0, 4, num_new_blocks=1)])).tokens == [[count_up((1, 2), 4)]]


def test_a_chunk_that_does_not_reach_the_end_draws_nothing() -> None:
    executor = ScriptedExecutor(block_size=4)
    pieces = [chunk(0, 0, 3, samples=False, num_new_blocks=1), chunk(0, 3, 2, num_new_blocks=1)]
    drawn = [
        executor.run(plan([start(0, (1, 2, 3, 4, 5))] if place == 0 else [], [piece]))
        for place, piece in enumerate(pieces)
    ]
    assert [result.tokens for result in drawn] == [[[]], [[count_up((1, 2, 3, 4, 5), 5)]]]


def test_a_chunk_must_continue_where_the_last_one_ended() -> None:
    executor = ScriptedExecutor(block_size=4)
    executor.run(plan([start(0, (1, 2))], [chunk(0, 0, 2, num_new_blocks=1)]))
    for first in (1, 3):
        with pytest.raises(AssertionError):
            executor.run(plan([], [chunk(0, first, 1)]))


def test_a_chunk_needs_blocks_to_write_to() -> None:
    executor = ScriptedExecutor(block_size=4)
    with pytest.raises(AssertionError):
        executor.run(plan([start(0, (1,) * 5)], [chunk(0, 0, 5, num_new_blocks=1)]))
    with pytest.raises(AssertionError):
        executor.run(plan([start(0, (1,))], [chunk(0, 0, 1)]))


def test_a_first_chunk_cannot_skip_tokens_that_no_shared_block_holds() -> None:
    executor = ScriptedExecutor(block_size=4)
    executor.run(plan([start(0, (1,) * 6, num_blocks=1)], [chunk(0, 4, 2, num_new_blocks=1)]))
    with pytest.raises(AssertionError):
        executor.run(plan([start(1, (1,) * 6)], [chunk(1, 4, 2, num_new_blocks=2)]))


def test_a_row_that_was_never_started_cannot_run() -> None:
    with pytest.raises((AssertionError, KeyError)):
        ScriptedExecutor(block_size=4).run(plan([], [chunk(3, 0, 1, num_new_blocks=1)]))


def test_a_row_started_again_forgets_its_last_sequence() -> None:
    executor = ScriptedExecutor(block_size=4)
    executor.run(plan([start(0, (1, 2, 3))], [chunk(0, 0, 3, num_new_blocks=1)]))
    second = executor.run(plan([start(0, (9,))], [chunk(0, 0, 1, num_new_blocks=1)]))
    assert second.tokens == [[count_up((9,), 1)]]
    with pytest.raises(AssertionError):
        executor.run(plan([start(0, (9,))], [chunk(0, 0, 1)]))


# -- several steps in flight ------------------------------------------------------------------------------------------


def test_answers_are_those_of_the_plans_though_rows_have_moved_on() -> None:
    executor = ScriptedExecutor(block_size=4, max_in_flight=2)
    first = executor.launch(plan([start(0, (1, 2))], [chunk(0, 0, 2, num_new_blocks=1)]))
    second = executor.launch(plan([], [chunk(0, 2, 1)]))
    assert first.result().tokens == [[count_up((1, 2), 2)]]
    assert second.result().tokens == [[count_up((1, 2), 3)]]
    third = executor.launch(plan([start(0, (9,))], [chunk(0, 0, 1, num_new_blocks=1)]))
    assert third.result().tokens == [[count_up((9,), 1)]]


def test_nothing_is_drawn_before_it_is_asked_for() -> None:
    drawn: list[int] = []

    def script(_: tuple[int, ...], length: int) -> int:
        drawn.append(length)
        return length

    executor = ScriptedExecutor(script, block_size=4, max_in_flight=2)
    step = executor.launch(plan([start(0, (1, 2))], [chunk(0, 0, 2, num_new_blocks=1)]))
    assert drawn == []
    assert step.result() is step.result()
    assert drawn == [2]


def test_more_steps_than_may_be_in_flight_are_refused() -> None:
    executor = ScriptedExecutor(block_size=4)
    executor.launch(plan([start(0, (1, 2))], [chunk(0, 0, 2, num_new_blocks=1)]))
    with pytest.raises(AssertionError, match="oldest"):
        executor.launch(plan([], [chunk(0, 2, 1)]))


def test_results_are_asked_for_in_the_order_of_the_launches() -> None:
    executor = ScriptedExecutor(block_size=4, max_in_flight=2)
    executor.launch(plan([start(0, (1, 2))], [chunk(0, 0, 2, num_new_blocks=1)]))
    second = executor.launch(plan([], [chunk(0, 2, 1)]))
    with pytest.raises(AssertionError, match="order"):
        second.result()


def test_a_row_in_flight_cannot_be_given_to_another_sequence() -> None:
    executor = ScriptedExecutor(block_size=4, max_in_flight=2)
    executor.launch(plan([start(0, (1, 2))], [chunk(0, 0, 2, num_new_blocks=1)]))
    with pytest.raises(AssertionError, match="in flight"):
        executor.launch(plan([start(0, (9,))], [chunk(0, 0, 1, num_new_blocks=1)]))


def test_who_draws_several_tokens_has_one_step_in_flight() -> None:
    with pytest.raises(AssertionError):
        ScriptedExecutor(tokens_per_draw=2, max_in_flight=2)


def test_an_executor_is_not_closed_with_a_step_in_flight() -> None:
    executor = ScriptedExecutor(block_size=4)
    step = executor.launch(plan([start(0, (1, 2))], [chunk(0, 0, 2, num_new_blocks=1)]))
    with pytest.raises(AssertionError):
        executor.close()
    step.result()
    executor.close()
