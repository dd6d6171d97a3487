"""What the scheduler plans step by step: chunks, ends, cancels, forks, preemption, failures, refusals."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from archerfish.errors import InvalidParameter, PromptTooLong, RequestError
from archerfish.execution.scripted import ScriptedExecutor
from archerfish.kvcache.tables import blocks_held
from archerfish.request import FinishReason, Request, Speculation, TokenLogprobs
from archerfish.scheduling.plan import Plan, StepResult
from archerfish.scheduling.policy import BatchingPolicy, ContinuousBatching, WholeBatches
from tests.lanes import examples
from tests.scheduling.steps import Stepper, answer, request, stepper

# -- chunks -----------------------------------------------------------------------------------------------------------


def test_a_prompt_longer_than_a_step_is_cut_and_only_its_end_draws_a_token() -> None:
    steps = stepper(step_tokens=4)
    steps.add(request("a", 10, max_tokens=2))
    plans = []
    while steps.scheduler.has_work:
        plans.append(steps.plan())
        steps.commit(plans[-1])
    chunks = [(chunk.start, chunk.length, chunk.samples) for plan in plans for chunk in plan.chunks]
    assert chunks == [(0, 4, False), (4, 4, False), (8, 2, True), (10, 1, True)]


def test_answers_under_way_get_their_token_in_every_step_of_a_long_prompt() -> None:
    steps = stepper(step_tokens=8)
    steps.add(*(request(name, 2, max_tokens=30) for name in "abc"))
    steps.step()
    steps.add(request("long", 40, arrival=1.0))
    for _ in range(8):
        assert steps.step() == {"a": [1], "b": [1], "c": [1], "long": [5]}


def test_what_answers_and_prompts_under_way_leave_goes_to_those_who_wait() -> None:
    steps = stepper(step_tokens=8)
    steps.add(request("first", 10, max_tokens=9), request("second", 9, arrival=1.0))
    assert steps.step() == {"first": [8]}
    assert steps.step() == {"first": [2], "second": [6]}
    assert steps.step() == {"first": [1], "second": [3]}


def test_a_step_never_exceeds_its_tokens_however_many_sequences_run() -> None:
    steps = stepper(step_tokens=5, rows=8)
    steps.add(*(request(f"r{number}", 3) for number in range(8)))
    while steps.scheduler.has_work:
        plan = steps.plan()
        assert 0 < plan.num_tokens <= 5
        steps.commit(plan)


def test_requests_that_arrive_at_the_same_moment_are_admitted_in_the_order_they_were_added() -> None:
    steps = stepper(rows=1)
    names = [f"r{number}" for number in range(12)]
    steps.add(*(request(name, 3, max_tokens=1) for name in names))
    steps.finish()
    assert [event.request_id for event in steps.events] == names


def test_a_plan_of_nothing_has_no_chunks_and_commits_to_nothing() -> None:
    steps = stepper()
    plan = steps.plan()
    assert (plan.chunks, plan.starts, plan.copies, plan.num_tokens) == ([], [], [], 0)
    assert steps.commit(plan) == []


# -- when an answer ends ----------------------------------------------------------------------------------------------


def test_an_answer_has_exactly_max_tokens() -> None:
    steps = stepper()
    by_count = {count: request(f"r{count}", 5, max_tokens=count) for count in (1, 2, 7)}
    steps.add(*by_count.values())
    steps.finish()
    for count, one in by_count.items():
        assert steps.tokens(one.request_id) == answer(one, count)
        assert steps.last_event(one.request_id).finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("max_tokens", [None, 1000])
def test_the_context_ends_an_answer_that_nothing_else_does(max_tokens: int | None) -> None:
    steps = stepper(max_model_len=12)
    one = request("a", 5, max_tokens=max_tokens)
    steps.add(one)
    steps.finish()
    assert steps.tokens("a") == answer(one, 7)
    assert steps.last_event("a").finish_reason is FinishReason.LENGTH


def test_a_prompt_may_leave_room_for_a_single_token() -> None:
    steps = stepper(max_model_len=8)
    steps.add(request("a", 7, max_tokens=None))
    steps.finish()
    assert len(steps.tokens("a")) == 1


def stop_after(steps_to_stop: int, one: Request) -> int:
    """The token the script writes as the answer's n-th, counted from 1."""
    return answer(one, steps_to_stop)[-1]


def test_a_stop_token_ends_the_answer_and_is_its_last_token() -> None:
    steps = stepper()
    plain = request("a", 5, max_tokens=9)
    one = request("a", 5, max_tokens=9, stop_token_ids=(stop_after(3, plain),))
    steps.add(one)
    steps.finish()
    assert steps.tokens("a") == answer(one, 3)
    assert steps.last_event("a").finish_reason is FinishReason.STOP
    assert steps.last_event("a").stop_reason == stop_after(3, plain)


def test_the_models_own_end_token_stops_without_being_named_as_the_reason() -> None:
    one = request("a", 5, max_tokens=9, ignore_eos=False)
    steps = stepper(eos=(stop_after(3, one),))
    steps.add(one)
    steps.finish()
    assert steps.tokens("a") == answer(one, 3)
    assert (steps.last_event("a").finish_reason, steps.last_event("a").stop_reason) == (FinishReason.STOP, None)


def test_ignore_eos_writes_past_the_end_token_but_not_past_a_stop_token_of_the_request() -> None:
    plain = request("a", 5)
    steps = stepper(eos=(stop_after(2, plain), stop_after(4, plain)))
    one = request("a", 5, max_tokens=9, ignore_eos=True, stop_token_ids=(stop_after(4, plain),))
    steps.add(one)
    steps.finish()
    assert steps.tokens("a") == answer(one, 4)
    assert steps.last_event("a").stop_reason == stop_after(4, plain)


@pytest.mark.parametrize(("min_tokens", "stops"), [(0, True), (1, True), (2, True), (3, False), (4, False)])
def test_min_tokens_are_written_before_a_stop_token_counts(min_tokens: int, stops: bool) -> None:
    plain = request("a", 5)
    one = request("a", 5, max_tokens=6, min_tokens=min_tokens, stop_token_ids=(stop_after(3, plain),))
    steps = stepper()
    steps.add(one)
    steps.finish()
    assert len(steps.tokens("a")) == (3 if stops else 6)


def test_a_stop_token_in_the_last_place_is_a_stop() -> None:
    plain = request("a", 5)
    steps = stepper()
    steps.add(request("a", 5, max_tokens=3, stop_token_ids=(stop_after(3, plain),)))
    steps.finish()
    assert steps.last_event("a").finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("params", "expected_tokens", "reason", "stop_reason"),
    [
        ({"max_tokens": 2}, [5, 9], FinishReason.STOP, None),
        ({"max_tokens": 1}, [5], FinishReason.LENGTH, None),
        ({"max_tokens": 9, "stop_token_ids": (7,)}, [5, 9], FinishReason.STOP, None),
        ({"max_tokens": 9, "stop_token_ids": (7,), "ignore_eos": True}, [5, 9, 7], FinishReason.STOP, 7),
        ({"max_tokens": 3, "ignore_eos": True}, [5, 9, 7], FinishReason.LENGTH, None),
        ({"max_tokens": 4, "ignore_eos": True}, [5, 9, 7, 8], FinishReason.LENGTH, None),
        ({"max_tokens": 9, "min_tokens": 2, "stop_token_ids": (8,)}, [5, 9, 7, 8], FinishReason.STOP, 8),
        ({"max_tokens": 9, "min_tokens": 4, "stop_token_ids": (8,)}, [5, 9, 7, 8], None, None),
        ({"max_tokens": None}, [5, 9], FinishReason.STOP, None),
        ({"max_tokens": None, "ignore_eos": True}, [5, 9, 7], FinishReason.LENGTH, None),
    ],
)
def test_tokens_drawn_together_are_taken_up_to_where_the_answer_ends(
    params: dict[str, Any], expected_tokens: list[int], reason: FinishReason | None, stop_reason: int | None
) -> None:
    steps = stepper(eos=(9,), max_model_len=8 if params["max_tokens"] is None else 64)
    steps.add(request("a", 5, **{"ignore_eos": False, "logprobs": 0, **params}))
    drawn = [5, 9, 7, 8]
    entries = [TokenLogprobs(token, 0.0, 1, []) for token in drawn]
    [event] = steps.commit(steps.plan(), StepResult([drawn], {0: entries}))
    assert (event.token_ids, event.finish_reason, event.stop_reason) == (expected_tokens, reason, stop_reason)
    assert event.logprobs == entries[: len(expected_tokens)]
    assert steps.scheduler.has_work == (reason is None)


def test_tokens_drawn_past_the_chunk_are_computed_by_the_next_one() -> None:
    one = request("a", 6, max_tokens=9)
    steps = stepper(step_tokens=6, caching=True)
    steps.executor = ScriptedExecutor(block_size=4, tokens_per_draw=3)
    steps.add(one)
    plans = []
    while steps.scheduler.has_work:
        plans.append(steps.plan())
        steps.commit(plans[-1])
    chunks = [(chunk.start, chunk.length, chunk.samples) for plan in plans for chunk in plan.chunks]
    assert chunks == [(0, 6, True), (6, 3, True), (9, 3, True)]
    assert steps.tokens("a") == answer(one, 9)
    # Blocks are found again by the tokens they hold.
    steps.add(request("b", [*one.prompt_token_ids, *answer(one, 7)], max_tokens=1))
    steps.finish()
    assert steps.last_event("b").num_cached_tokens == 12


def test_tokens_drawn_together_wait_for_their_turn_where_a_step_has_no_room_for_them() -> None:
    one = request("a", 2, max_tokens=7)
    steps = stepper(step_tokens=2)
    steps.executor = ScriptedExecutor(block_size=4, tokens_per_draw=3)
    steps.add(one)
    steps.finish()
    assert steps.tokens("a") == answer(one, 7)


def test_a_stop_token_in_the_prompt_stops_nothing() -> None:
    steps = stepper()
    one = request("a", [7, 8, 9], max_tokens=4, stop_token_ids=(7, 8, 9))
    steps.add(one)
    steps.finish()
    assert steps.tokens("a") == answer(one, 4)


def test_executors_know_which_tokens_min_tokens_forbids() -> None:
    steps = stepper(eos=(5, 6))
    steps.add(request("a", 3, ignore_eos=False, stop_token_ids=(9,)), request("b", 3, stop_token_ids=(9,)))
    starts = {steps.prompts[start.tokens]: set(start.stop_token_ids) for start in steps.plan().starts}
    assert starts == {"a": {5, 6, 9}, "b": {9}}


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_refused_requests_change_nothing() -> None:
    steps, untouched = stepper(max_model_len=16), stepper(max_model_len=16)
    for each in (steps, untouched):
        each.add(request("a", 5, max_tokens=3))
    for refused, error in (
        (request("a", 3), RequestError),
        (request("empty", []), InvalidParameter),
        (request("long", 16), PromptTooLong),
        (request("longer", 50, n=3), PromptTooLong),
    ):
        with pytest.raises(error):
            steps.scheduler.add(refused)
        steps.scheduler.check()
    assert (steps.scheduler.num_waiting, steps.scheduler.num_running) == (1, 0)
    for each in (steps, untouched):
        each.add(request("b", 6, max_tokens=3))
    # Even the seeds that later requests draw are the same.
    plans = [each.plan() for each in (steps, untouched)]
    assert plans[0] == plans[1]
    assert [start.seed for start in plans[0].starts] == [start.seed for start in plans[1].starts]


def test_an_id_is_free_again_once_its_request_has_ended() -> None:
    steps = stepper()
    steps.add(request("a", 5, max_tokens=1))
    steps.finish()
    steps.add(request("a", 5, max_tokens=1))
    with pytest.raises(RequestError):
        steps.add(request("a", 6))
    steps.finish()
    assert len(steps.tokens("a")) == 2


def test_an_id_is_free_again_while_the_step_of_its_cancelled_request_is_in_flight() -> None:
    steps = stepper()
    steps.add(request("a", 5, n=2))
    plan = steps.plan()
    steps.scheduler.cancel("a")
    second = request("a", [9, 9, 9], max_tokens=2)
    steps.add(second)
    assert steps.commit(plan) == []
    steps.finish()
    assert steps.tokens("a") == answer(second, 2)
    assert steps.scheduler.tables.pool.num_in_use == 0


# -- cancels ----------------------------------------------------------------------------------------------------------


def test_cancelling_what_is_not_there_is_harmless() -> None:
    steps = stepper()
    steps.add(request("a", 5, max_tokens=1), request("b", 5, max_tokens=9, n=2))
    assert steps.scheduler.cancel("nobody") == []
    assert steps.scheduler.cancel("b", 2) == []
    steps.step()
    assert steps.scheduler.cancel("a") == []
    assert len(steps.scheduler.cancel("b", 1)) == 1
    assert steps.scheduler.cancel("b", 1) == []
    steps.scheduler.check()
    steps.finish()
    assert len(steps.tokens("b")) == 9


def test_a_waiting_request_is_cancelled_at_once() -> None:
    steps = stepper(rows=1)
    steps.add(request("a", 5, max_tokens=9), request("b", 5, n=3, arrival=1.0))
    steps.step()
    events = steps.scheduler.cancel("b")
    assert [(event.sequence_index, event.finish_reason) for event in events] == [
        (index, FinishReason.ABORT) for index in range(3)
    ]
    assert steps.scheduler.num_waiting == 0
    steps.finish()


def test_the_reason_of_a_cancel_is_passed_on() -> None:
    steps = stepper()
    steps.add(request("a", 5, n=2))
    steps.step()
    (event,) = steps.scheduler.cancel("a", 0, FinishReason.STOP)
    assert event.finish_reason is FinishReason.STOP
    steps.finish()


def test_blocks_and_row_of_a_sequence_cancelled_in_flight_are_held_until_the_step_is_committed() -> None:
    steps = stepper(rows=1)
    steps.add(request("a", 9, max_tokens=9))
    plan = steps.plan()
    in_use = steps.scheduler.tables.pool.num_in_use
    (event,) = steps.scheduler.cancel("a")
    assert event.finish_reason is FinishReason.ABORT
    assert steps.scheduler.tables.pool.num_in_use == in_use > 0
    assert steps.scheduler.num_running == 1
    assert not steps.scheduler.has_work
    assert steps.commit(plan) == []
    assert (steps.scheduler.tables.pool.num_in_use, steps.scheduler.num_running) == (0, 0)


def test_a_second_cancel_in_flight_finds_nothing_left() -> None:
    steps = stepper()
    steps.add(request("a", 9, n=2))
    plan = steps.plan()
    assert len(steps.scheduler.cancel("a", 0)) == 1
    assert steps.scheduler.cancel("a", 0) == []
    assert len(steps.scheduler.cancel("a")) == 1
    steps.commit(plan)
    assert not steps.scheduler.has_work


def test_blocks_computed_by_a_cancelled_step_are_not_found_in_the_cache() -> None:
    steps = stepper(caching=True)
    steps.add(request("a", [*range(8), 1]))
    plan = steps.plan()
    steps.scheduler.cancel("a")
    steps.commit(plan)
    assert steps.scheduler.tables.pool.num_cached == 0


@pytest.mark.parametrize("in_flight", [False, True])
def test_siblings_go_on_when_the_first_sequence_is_cancelled_before_its_prompt_is_computed(in_flight: bool) -> None:
    steps = stepper(step_tokens=4)
    one = request("a", 10, n=3, max_tokens=2)
    steps.add(one)
    steps.step()
    plan = steps.plan() if in_flight else None
    assert len(steps.scheduler.cancel("a", 0)) == 1
    if plan is not None:
        assert steps.commit(plan) == []
    steps.finish()
    assert steps.tokens("a", 0) == []
    for index in (1, 2):
        assert steps.tokens("a", index) == answer(one, 2)


def test_cancel_all_ends_every_sequence_with_the_error() -> None:
    steps = stepper(rows=2)
    steps.add(request("a", 5, n=2), request("b", 5), request("c", 5))
    steps.step()
    events = steps.scheduler.cancel_all("power cut")
    ended = sorted((event.request_id, event.sequence_index) for event in events)
    assert ended == [("a", 0), ("a", 1), ("b", 0), ("c", 0)]
    assert {(event.finish_reason, event.error) for event in events} == {(FinishReason.ERROR, "power cut")}
    assert not steps.scheduler.has_work
    steps.scheduler.check()
    assert steps.scheduler.tables.pool.num_in_use == 0


# -- several answers to one prompt ------------------------------------------------------------------------------------


def test_siblings_share_the_prompt_and_compute_only_its_last_token() -> None:
    steps = stepper(block_size=4)
    one = request("a", 11, n=3, max_tokens=5)
    steps.add(one)
    assert steps.step() == {"a": [11]}
    plan = steps.plan()
    assert sorted((chunk.start, chunk.length) for chunk in plan.chunks) == [(10, 1), (10, 1), (11, 1)]
    # Ten shared tokens are two full blocks and a part of the third, which each fork copies.
    assert len(plan.copies) == 2
    first, second = (start.blocks[0] for start in plan.starts)
    assert first[:2] == second[:2] and first[2] != second[2]
    assert {copy.target for copy in plan.copies} == {first[2], second[2]}
    assert len({copy.source for copy in plan.copies}) == 1
    assert steps.scheduler.tables.pool.num_in_use == 3 + 2
    steps.commit(plan)
    steps.finish()
    for index in range(3):
        assert steps.tokens("a", index) == answer(one, 5)


def test_a_shared_prompt_that_ends_with_a_block_needs_no_copy() -> None:
    steps = stepper(block_size=4)
    steps.add(request("a", 9, n=2, max_tokens=5))
    steps.step()
    plan = steps.plan()
    assert plan.copies == []
    assert [(start.blocks[0], len(start.blocks)) for start in plan.starts] == [(plan.starts[0].blocks[0], 1)]
    assert len(plan.starts[0].blocks[0]) == 2
    steps.commit(plan)


def test_siblings_wait_for_the_prompt_and_then_go_before_later_requests() -> None:
    steps = stepper(step_tokens=8, rows=3)
    steps.add(request("a", 20, n=3, max_tokens=5), request("b", 3, arrival=1.0))
    assert [steps.step() for _ in range(3)] == [{"a": [8]}, {"a": [8]}, {"a": [4], "b": [3]}]
    assert steps.step() == {"a": [1, 1], "b": [1]}
    steps.finish()


def test_siblings_have_their_own_seeds_and_the_first_has_the_requests() -> None:
    steps = stepper()
    steps.add(request("a", 5, n=3, seed=1234))
    plan = steps.plan()
    steps.commit(plan)
    seeds = [start.seed for start in [*plan.starts, *steps.plan().starts]]
    assert seeds[0] == 1234
    assert len(set(seeds)) == 3


def test_a_sibling_that_cannot_fork_computes_the_prompt_itself() -> None:
    # The parent ends with its first token, so there is nothing left to share.
    steps = stepper()
    one = request("a", 10, n=2, max_tokens=1)
    steps.add(one)
    assert [steps.step(), steps.step()] == [{"a": [10]}, {"a": [10]}]
    assert steps.tokens("a", 1) == answer(one, 1)


def test_more_siblings_than_rows_all_get_their_turn() -> None:
    steps = stepper(rows=2, blocks=12)
    one = request("a", 10, n=7, max_tokens=3)
    steps.add(one)
    steps.finish()
    assert [steps.tokens("a", index) for index in range(7)] == [answer(one, 3)] * 7


# -- preemption -------------------------------------------------------------------------------------------------------


def crowded() -> Stepper:
    """Room for 8 blocks of 4: two sequences of 16 tokens."""
    return stepper(blocks=8, max_model_len=32)


def test_the_last_to_come_is_preempted_and_resumes_later() -> None:
    steps = crowded()
    old, young = request("old", 15, max_tokens=10), request("young", 15, arrival=1.0, max_tokens=10)
    steps.add(old, young)
    assert steps.step() == {"old": [15], "young": [15]}
    assert steps.step() == {"old": [1], "young": [1]}
    # Both need a fifth block; there is none.
    assert steps.step() == {"old": [1]}
    assert steps.scheduler.num_preemptions == 1
    while "young" not in (lengths := steps.step()):
        assert lengths == {"old": [1]}
    # It computes its prompt and the two tokens it had written, and draws the third.
    assert lengths["young"] == [17]
    steps.finish()
    assert steps.tokens("old") == answer(old, 10)
    assert steps.tokens("young") == answer(young, 10)


def test_priority_outweighs_arrival_when_someone_must_make_way() -> None:
    steps = crowded()
    steps.add(request("old", 15, priority=1, max_tokens=10), request("young", 15, arrival=1.0, max_tokens=10))
    steps.step()
    steps.step()
    assert set(steps.step()) == {"young"}
    steps.finish()


def test_the_tokens_of_a_step_that_a_preempted_sequence_was_given_go_to_others() -> None:
    steps = stepper(blocks=7, step_tokens=3, max_model_len=28)
    steps.add(request("low", 2, priority=1, max_tokens=20))
    steps.step()
    steps.add(request("high", 16, arrival=1.0, max_tokens=5))
    for _ in range(8):
        assert steps.step() == {"low": [1], "high": [2]}
    steps.add(request("next", 2, arrival=2.0))
    # The low one is in the middle of a block and is served, but then the high one needs a new block.
    assert steps.step() == {"high": [1], "next": [2]}
    assert steps.scheduler.num_preemptions == 1
    steps.finish()


def test_a_preempted_sequence_goes_before_requests_that_came_after_it() -> None:
    steps = crowded()
    steps.add(request("a", 15, max_tokens=10), request("b", 15, arrival=1.0, max_tokens=10))
    steps.step()
    steps.step()
    steps.step()
    steps.add(request("c", 2, arrival=2.0, max_tokens=10))
    seen = []
    while steps.scheduler.has_work:
        seen += [name for name in steps.step() if name not in seen]
    assert seen.index("b") < seen.index("c")


def test_a_sequence_that_is_itself_the_last_waits_instead_of_preempting_others() -> None:
    steps = crowded()
    old, young = request("old", 14, max_tokens=12), request("young", 16, arrival=1.0, max_tokens=3)
    steps.add(old, young)
    assert steps.step() == {"old": [14], "young": [16]}
    assert steps.step() == {"old": [1]}
    assert steps.scheduler.num_preemptions == 0
    steps.finish()
    assert (steps.tokens("old"), steps.tokens("young")) == (answer(old, 12), answer(young, 3))


def test_scheduled_time_and_cached_tokens_are_those_of_the_first_start() -> None:
    steps = crowded()
    steps.add(request("old", 15, max_tokens=10), request("young", 15, arrival=1.0, max_tokens=10))
    while steps.scheduler.has_work:
        steps.now += 1.0
        steps.step()
    assert steps.scheduler.num_preemptions
    assert {event.scheduled_time for event in steps.events} == {1.0}
    assert {event.num_cached_tokens for event in steps.events} == {0}


def test_probabilities_of_prompt_tokens_are_reported_once_even_after_preemption() -> None:
    steps = stepper(blocks=8, max_model_len=32, step_tokens=8)
    steps.add(request("old", 14, max_tokens=12), request("young", 14, arrival=1.0, prompt_logprobs=0, max_tokens=10))

    def entries(plan: Plan) -> dict[int, list[TokenLogprobs]]:
        found = {}
        for place, chunk in enumerate(plan.chunks):
            following = range(chunk.start + 1, min(chunk.start + chunk.length + 1, 14))
            if steps.rows[chunk.row] == "young" and following:
                found[place] = [TokenLogprobs(position, 0.0, 1, []) for position in following]
        return found

    while steps.scheduler.has_work:
        plan = steps.plan()
        tokens = steps.executor.run(plan).tokens
        steps.commit(plan, StepResult(tokens, prompt_logprobs=entries(plan)))
    assert steps.scheduler.num_preemptions
    reported = [entry.token_id for event in steps.events for entry in event.prompt_logprobs or ()]
    assert reported == list(range(1, 14))


# -- cached prefixes --------------------------------------------------------------------------------------------------


def test_a_prompt_seen_before_is_computed_only_in_its_last_block() -> None:
    steps = stepper(caching=True)
    prompt = list(range(12))
    steps.add(request("a", prompt, max_tokens=1))
    assert steps.step() == {"a": [12]}
    one = request("b", prompt, max_tokens=1)
    steps.add(one)
    # All three blocks are cached, but the last token's logits are still needed.
    assert steps.step() == {"b": [4]}
    assert steps.last_event("b").num_cached_tokens == 8
    assert steps.tokens("b") == answer(one, 1)
    assert (steps.scheduler.prefix_counts.num_queried, steps.scheduler.prefix_counts.num_hit) == (24, 8)


def test_an_answer_is_cached_too() -> None:
    steps = stepper(caching=True)
    first = request("a", 6, max_tokens=11)
    steps.add(first)
    steps.finish()
    turn = [*first.prompt_token_ids, *answer(first, 11), 1, 2]
    steps.add(request("b", turn, max_tokens=1))
    # The last token of the answer was drawn but never computed: sixteen were, in four full blocks.
    assert steps.step() == {"b": [len(turn) - 16]}


def test_requests_of_different_salts_share_nothing() -> None:
    steps = stepper(caching=True)
    prompt = list(range(12))
    for number, (salt, cached) in enumerate((("x", 0), ("y", 0), ("", 0), ("x", 8), ("y", 8), ("", 8))):
        steps.add(request(str(number), prompt, salt=salt, max_tokens=1))
        steps.finish()
        assert steps.last_event(str(number)).num_cached_tokens == cached


def test_probabilities_of_prompt_tokens_need_the_whole_prompt_computed() -> None:
    steps = stepper(caching=True)
    prompt = list(range(12))
    steps.add(request("a", prompt, max_tokens=1))
    steps.finish()
    steps.add(request("b", prompt, max_tokens=1, prompt_logprobs=1))
    assert steps.step() == {"b": [12]}


def test_outputs_of_a_prompt_are_computed_once_for_all_answers() -> None:
    steps = stepper(caching=True)
    steps.add(request("a", list(range(12)), n=3, max_tokens=1, prompt_logprobs=1, prompt_embedding=True))
    plan = steps.plan()
    assert [chunk.length for chunk in plan.chunks] == [12]
    assert [start.params.prompt_logprobs for start in plan.starts] == [1]
    steps.commit(plan)
    # The first answer has ended, so there is none to fork from: the others start from what it left in the cache.
    plan = steps.plan()
    assert [chunk.length for chunk in plan.chunks] == [4, 4]
    assert [start.params.prompt_logprobs for start in plan.starts] == [None, None]
    assert not any(start.params.prompt_embedding for start in plan.starts)


def test_two_requests_that_start_together_both_compute_and_cache_once() -> None:
    steps = stepper(caching=True)
    prompt = list(range(9))
    steps.add(request("a", prompt, max_tokens=1), request("b", prompt, max_tokens=1))
    plan = steps.plan()
    assert [chunk.length for chunk in plan.chunks] == [9, 9]
    steps.commit(plan)
    assert steps.scheduler.tables.pool.num_cached == 2


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_failing_sequence_ends_its_request_and_no_other() -> None:
    steps = stepper()
    a, b = request("a", 5, n=3, max_tokens=6), request("b", 7, max_tokens=6)
    steps.add(a, b)
    steps.step()
    plan = steps.plan()
    place = next(place for place, chunk in enumerate(plan.chunks) if steps.rows[chunk.row] == "a")
    events = steps.commit(plan, StepResult(steps.executor.run(plan).tokens, failures={place: "not finite"}))
    failed = [event for event in events if event.request_id == "a" and event.finish_reason is not None]
    assert sorted(event.sequence_index for event in failed) == [0, 1, 2]
    assert {(event.finish_reason, event.error) for event in failed} == {(FinishReason.ERROR, "not finite")}
    assert all(event.token_ids == [] for event in failed)
    steps.finish()
    assert steps.tokens("b") == answer(b, 6)
    assert steps.scheduler.tables.pool.num_in_use == 0


def test_what_a_failed_chunk_computed_is_not_cached() -> None:
    steps = stepper(caching=True)
    steps.add(request("a", list(range(9))))
    plan = steps.plan()
    steps.commit(plan, StepResult([[1]], failures={0: "not finite"}))
    assert steps.scheduler.tables.pool.num_cached == 0


def test_a_failure_of_a_sequence_cancelled_in_flight_is_no_news() -> None:
    steps = stepper()
    steps.add(request("a", 5), request("b", 6))
    plan = steps.plan()
    steps.scheduler.cancel("a")
    events = steps.commit(plan, StepResult([[1], [2]], failures={0: "not finite"}))
    assert [event.request_id for event in events] == ["b"]


# -- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("caching", [False, True])
def test_windows_let_a_long_answer_live_in_few_blocks(caching: bool) -> None:
    steps = stepper(blocks=6, windows=(8,), step_tokens=8, max_model_len=60, caching=caching)
    one = request("a", 30, max_tokens=None)
    steps.add(one)
    steps.finish()
    assert steps.tokens("a") == answer(one, 30)
    assert steps.scheduler.num_preemptions == 0


# Chunks of two tokens end in the middle of blocks of three: a window is passed between two block boundaries.
@example(window=2, block_size=3, step_tokens=2, prompt=10, full_group=False)
@examples(200)
@given(
    window=st.integers(2, 9),
    block_size=st.integers(1, 5),
    step_tokens=st.integers(1, 9),
    prompt=st.integers(1, 30),
    full_group=st.booleans(),
)
def test_a_running_sequence_never_holds_more_than_blocks_held(
    window: int, block_size: int, step_tokens: int, prompt: int, full_group: bool
) -> None:
    windows = (window, None) if full_group else (window,)
    steps = stepper(blocks=200, windows=windows, step_tokens=step_tokens, block_size=block_size, max_model_len=40)
    steps.add(request("a", prompt, max_tokens=None))
    most = blocks_held(40, windows, block_size, step_tokens)
    while steps.scheduler.has_work:
        plan = steps.plan()
        assert steps.scheduler.tables.pool.num_in_use <= most
        steps.commit(plan)


def test_the_whole_cache_is_enough_for_one_sequence_of_full_length() -> None:
    for windows in ((None,), (6,), (None, 6), (2, 3, None)):
        for step_tokens in (1, 3, 7, 64):
            blocks = blocks_held(40, windows, 4, step_tokens)
            steps = stepper(blocks=blocks, windows=windows, step_tokens=step_tokens, max_model_len=40)
            steps.add(*(request(name, 21, arrival=float(place), max_tokens=None) for place, name in enumerate("abc")))
            steps.finish()
            assert all(len(steps.tokens(name)) == 19 for name in "abc")


# -- draft tokens ----------------------------------------------------------------------------------------------------


def test_a_request_has_as_many_draft_tokens_as_it_says() -> None:
    """The events report what became of the draft tokens."""
    steps = stepper(rows=16, max_draft_tokens=5)
    choices = {
        "none": Speculation(method="off"),
        "few": Speculation(num_speculative_tokens=2),
        "many": Speculation(num_speculative_tokens=40),
        "any": None,
    }
    for name, choice in choices.items():
        steps.add(request(name, 6, max_tokens=30, speculation=choice))
    plan = steps.scheduler.plan(0.0)
    assert [chunk.max_draft_tokens for chunk in plan.chunks] == [0, 2, 5, 5]
    result = steps.executor.run(plan)
    events = steps.scheduler.commit(plan, result)
    assert [(event.num_draft_tokens, event.num_accepted_tokens) for event in events] == [
        (chunk.max_draft_tokens, len(tokens) - 1) for chunk, tokens in zip(plan.chunks, result.tokens, strict=True)
    ]


def test_all_chunks_have_the_same_draft_tokens_except_for_what_some_cannot_use() -> None:
    steps = stepper(rows=4, max_draft_tokens=32, max_drawn=4 + 18)
    for name, max_tokens in (("a", 30), ("b", 3), ("c", 30), ("d", 30)):
        steps.add(request(name, 6, max_tokens=max_tokens))
    assert [chunk.max_draft_tokens for chunk in steps.scheduler.plan(0.0).chunks] == [4, 2, 6, 6]


def test_a_step_has_as_many_draft_tokens_as_the_last_result_allows() -> None:
    steps = stepper(rows=2, max_draft_tokens=3, max_drawn=10)
    steps.add(request("a", 3, max_tokens=40))
    allowed = []
    for count in (0, 5, None, 5, 2):
        plan = steps.plan()
        allowed.append((plan.max_draft_tokens, [chunk.max_draft_tokens for chunk in plan.chunks]))
        steps.commit(plan, replace(steps.executor.run(plan), max_draft_tokens=count))
    assert allowed == [(3, [3]), (0, [0]), (5, [5]), (0, [0]), (5, [5])]


def test_a_draft_budget_smaller_than_the_batch_goes_to_the_first_chunks() -> None:
    steps = stepper(rows=5, max_draft_tokens=9, max_drawn=5)
    allowed = []
    for number in range(5):
        steps.add(request(f"{number}", 3, max_tokens=30, speculation=Speculation(num_speculative_tokens=1)))
        plan = steps.plan()
        allowed.append((plan.max_draft_tokens, [chunk.max_draft_tokens for chunk in plan.chunks]))
        steps.commit(plan)
    assert allowed == [(9, [1]), (9, [1, 1]), (9, [1, 1, 0]), (9, [1, 0, 0, 0]), (0, [0, 0, 0, 0, 0])]


@pytest.mark.parametrize(
    ("step_tokens", "expected"), [(4, [0, 0, 0, 0]), (5, [1, 0, 0, 0]), (7, [1, 1, 1, 0]), (9, [1, 1, 1, 2])]
)
def test_a_small_step_budget_still_has_draft_tokens(step_tokens: int, expected: list[int]) -> None:
    steps = stepper(rows=4, step_tokens=step_tokens, max_draft_tokens=5, max_drawn=64)
    for name in "abcd":
        steps.add(request(name, 1, max_tokens=30))
    plan = steps.plan()
    assert [chunk.max_draft_tokens for chunk in plan.chunks] == expected
    assert plan.max_draft_tokens == (5 if any(expected) else 0)


def test_chunks_that_cannot_use_draft_tokens_take_no_share_of_the_budget() -> None:
    steps = stepper(rows=4, step_tokens=8, max_draft_tokens=5, max_drawn=64)
    off = Speculation(method="off")
    for name, choice in (("a", None), ("b", off), ("c", off), ("d", None)):
        steps.add(request(name, 1, max_tokens=30, speculation=choice))
    assert [chunk.max_draft_tokens for chunk in steps.plan().chunks] == [2, 0, 0, 2]


def test_a_step_in_which_no_chunk_can_use_draft_tokens_plans_none() -> None:
    steps = stepper(rows=2, max_draft_tokens=5, max_drawn=64)
    steps.add(request("a", 3, max_tokens=30, speculation=Speculation(method="off")))
    assert steps.plan().max_draft_tokens == 0


@pytest.mark.parametrize("policy", [ContinuousBatching(), WholeBatches(2, 0.0)])
def test_a_plan_says_whether_others_wait_for_a_row(policy: BatchingPolicy) -> None:
    steps = stepper(rows=2, policy=policy, max_draft_tokens=0)
    steps.executor.max_draft_tokens = 0
    steps.add(*(request(name, 3, max_tokens=2) for name in "ab"))
    waiting = []
    for number in range(4):
        plan = steps.plan()
        waiting.append(plan.others_wait)
        steps.commit(plan)
        if number == 0:
            steps.add(request("c", 3, max_tokens=2))
    joins = isinstance(policy, ContinuousBatching)
    assert waiting == [False, joins, False, False], "a request that joins when all have ended waits for no single row"
