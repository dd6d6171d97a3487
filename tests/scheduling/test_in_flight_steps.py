"""Steps planned while others are in flight: on what is certain and nothing else, and nothing is given back early."""

import pytest

from archerfish.request import FinishReason, Structured
from archerfish.scheduling.plan import Plan, StepResult
from tests.scheduling.steps import BATCH, Stepper, answer, request, stepper

FORM = Structured(regex="a*")


def chunks(plan: Plan) -> list[tuple[int, int, bool]]:
    return [(chunk.start, chunk.length, chunk.samples) for chunk in plan.chunks]


def free_blocks(steps: Stepper) -> int:
    return steps.scheduler.tables.pool.num_free


# -- what is certain --------------------------------------------------------------------------------------------------


def test_a_step_is_planned_on_tokens_that_only_the_executor_knows() -> None:
    steps = stepper()
    one = request("a", 5, max_tokens=4)
    steps.add(one)
    plans = [steps.plan() for _ in range(4)]
    assert [chunks(plan) for plan in plans] == [[(0, 5, True)], [(5, 1, True)], [(6, 1, True)], [(7, 1, True)]]
    assert steps.events == []
    for place, plan in enumerate(plans):
        (event,) = steps.commit(plan)
        assert event.token_ids == answer(one, 4)[place : place + 1]


def test_pieces_of_a_prompt_follow_each_other_in_flight() -> None:
    steps = stepper(step_tokens=4)
    steps.add(request("a", 10, max_tokens=2))
    plans = [steps.plan() for _ in range(4)]
    assert [chunks(plan) for plan in plans] == [[(0, 4, False)], [(4, 4, False)], [(8, 2, True)], [(10, 1, True)]]
    for plan in plans:
        steps.commit(plan)
    assert len(steps.tokens("a")) == 2


@pytest.mark.parametrize(("max_tokens", "max_model_len"), [(2, 64), (None, 7)])
def test_nothing_is_planned_beyond_an_end_that_is_certain(max_tokens: int | None, max_model_len: int) -> None:
    steps = stepper(max_model_len=max_model_len)
    steps.add(request("a", 5, max_tokens=max_tokens))
    first, second = steps.plan(), steps.plan()
    assert steps.scheduler.can_plan_ahead()
    assert steps.plan().chunks == []
    steps.commit(first)
    assert steps.plan().chunks == []
    (event,) = steps.commit(second)
    assert event.finish_reason is FinishReason.LENGTH
    assert steps.scheduler.tables.pool.num_in_use == 0


def test_plans_are_committed_once_and_in_their_order() -> None:
    steps = stepper()
    steps.add(request("a", 4))
    first, second = steps.plan(), steps.plan()
    with pytest.raises(AssertionError, match="in the order"):
        steps.scheduler.commit(second, StepResult([[1]]))
    steps.commit(first)
    with pytest.raises(AssertionError, match="in the order"):
        steps.scheduler.commit(first, StepResult([[1]]))
    steps.commit(second)


def test_more_than_one_token_is_refused_where_later_steps_counted_on_one() -> None:
    steps = stepper()
    steps.add(request("a", 4, max_tokens=9))
    first = steps.plan()
    steps.plan()
    with pytest.raises(AssertionError, match="exactly one"):
        steps.scheduler.commit(first, StepResult([[1, 2]]))


def test_a_newcomer_joins_the_next_plan_whatever_is_in_flight() -> None:
    steps = stepper()
    steps.add(request("a", 5, max_tokens=9))
    plans = [steps.plan()]
    steps.add(request("b", 3, max_tokens=9))
    plans.append(steps.plan())
    assert steps.lengths(plans[1]) == {"a": [1], "b": [3]}


# -- what is not ------------------------------------------------------------------------------------------------------


def stopping(steps: Stepper, after: int) -> None:
    """A request "a" that a stop token ends after so many tokens, which is not known before."""
    plain = request("a", 5)
    steps.add(request("a", 5, max_tokens=20, stop_token_ids=(answer(plain, after)[-1],)))


@pytest.mark.parametrize("num_in_flight", [1, 2, 3])
def test_row_and_blocks_of_an_ended_sequence_are_held_until_its_last_step_is_done(num_in_flight: int) -> None:
    steps = stepper(rows=1, blocks=20)
    stopping(steps, 1)
    steps.add(request("b", 3, arrival=1.0, max_tokens=1))
    plans = [steps.plan() for _ in range(num_in_flight)]
    held = steps.scheduler.tables.pool.num_in_use
    (event,) = steps.commit(plans[0])
    assert event.finish_reason is FinishReason.STOP
    for plan in plans[1:]:
        assert (steps.scheduler.num_running, steps.scheduler.tables.pool.num_in_use) == (1, held)
        assert steps.plan().chunks == []
        assert steps.commit(plan) == []
    assert (steps.scheduler.num_running, steps.scheduler.tables.pool.num_in_use) == (0, 0)
    assert steps.lengths(steps.plan()) == {"b": [3]}


def test_an_ended_sequence_gets_no_chunk_in_later_plans() -> None:
    steps = stepper()
    stopping(steps, 1)
    steps.add(request("b", 5, max_tokens=9))
    first, second = steps.plan(), steps.plan()
    steps.commit(first)
    assert steps.lengths(steps.plan()) == {"b": [1]}
    assert [event.request_id for event in steps.commit(second)] == ["b"]


@pytest.mark.parametrize("after", [1, 2, 3])
def test_answers_are_the_same_however_many_draws_are_dropped(after: int) -> None:
    steps = stepper()
    stopping(steps, after)
    plans = [steps.plan() for _ in range(3)]
    while plans:
        steps.commit(plans.pop(0))
        if steps.scheduler.has_work:
            plans.append(steps.plan())
    assert steps.tokens("a") == answer(request("a", 5), after)
    assert len([event for event in steps.events if event.finish_reason is not None]) == 1


def test_a_cancel_with_several_steps_in_flight_is_reported_once_and_frees_when_all_are_done() -> None:
    steps = stepper()
    steps.add(request("a", 9, n=2, max_tokens=9), request("b", 3, max_tokens=9))
    plans = [steps.plan() for _ in range(3)]
    assert len(steps.scheduler.cancel("a")) == 2
    steps.scheduler.check()
    again = request("a", [7, 7], max_tokens=1)
    steps.add(again)
    for plan in plans:
        assert steps.scheduler.num_running == 2
        assert [event.request_id for event in steps.commit(plan)] == ["b"]
    assert steps.scheduler.num_running == 1
    steps.finish()
    assert steps.tokens("a") == answer(again, 1)


def test_what_follows_a_failed_chunk_in_flight_is_dropped_and_not_cached() -> None:
    steps = stepper(caching=True)
    steps.add(request("a", list(range(9)), n=2, max_tokens=9))
    first, second = steps.plan(), steps.plan()
    events = steps.commit(first, StepResult([[1]], failures={0: "not finite"}))
    assert sorted((event.sequence_index, event.error) for event in events) == [(0, "not finite"), (1, "not finite")]
    assert steps.commit(second, StepResult([[2]])) == []
    assert (steps.scheduler.tables.pool.num_cached, steps.scheduler.tables.pool.num_in_use) == (0, 0)


def test_a_prompt_is_found_in_the_cache_when_its_step_is_done_and_not_before() -> None:
    steps = stepper(caching=True)
    prompt = list(range(9))
    steps.add(request("a", prompt, max_tokens=9))
    first = steps.plan()
    steps.add(request("b", prompt, max_tokens=9))
    second = steps.plan()
    assert steps.lengths(second) == {"a": [1], "b": [9]}
    steps.commit(first)
    steps.commit(second)
    steps.add(request("c", prompt, max_tokens=1))
    assert [chunk.start for chunk in steps.plan().chunks] == [10, 9, 8]


def test_windows_let_go_of_blocks_when_a_step_is_done_and_not_before() -> None:
    steps = stepper(windows=(4,), block_size=2, step_tokens=6, blocks=20)
    steps.add(request("a", 18, max_tokens=9))
    first, second = steps.plan(), steps.plan()
    assert free_blocks(steps) == 20 - 6
    steps.commit(first)
    # The second step starts at the seventh token and sees the three before it: the first block is out of sight.
    assert free_blocks(steps) == 20 - 6 + 1
    steps.commit(second)
    assert free_blocks(steps) == 20 - 6 + 4


@pytest.mark.parametrize("how", ["abandon", "cancel_all"])
def test_steps_in_flight_can_all_be_given_up(how: str) -> None:
    steps = stepper(rows=2)
    stopping(steps, 1)
    one = request("b", 5, max_tokens=9)
    steps.add(one)
    steps.commit([steps.plan(), steps.plan(), steps.plan()][0])
    if how == "abandon":
        steps.scheduler.abandon()
    else:
        events = steps.scheduler.cancel_all("power cut")
        assert [(event.request_id, event.error) for event in events] == [("b", "power cut")]
    steps.scheduler.check()
    assert (steps.scheduler.num_running, steps.scheduler.tables.pool.num_in_use) == (0, 0)
    steps.finish()
    assert steps.tokens("b") == answer(one, 9 if how == "abandon" else 1)


# -- where planning has to wait ---------------------------------------------------------------------------------------


def test_nothing_is_preempted_while_steps_are_in_flight() -> None:
    steps = stepper(blocks=8, max_model_len=32)
    old, young = request("old", 15, max_tokens=10), request("young", 15, arrival=1.0, max_tokens=10)
    steps.add(old, young)
    first, second = steps.plan(), steps.plan()
    # Both need a fifth block; there is none.
    assert not steps.scheduler.can_plan_ahead()
    with pytest.raises(AssertionError, match="in flight"):
        steps.scheduler.plan(0.0)
    steps.commit(first)
    assert not steps.scheduler.can_plan_ahead()
    steps.commit(second)
    assert steps.lengths(steps.plan()) == {"old": [1]}
    assert steps.scheduler.num_preemptions == 1


def test_many_that_each_begin_a_block_run_out_of_blocks_sooner_than_of_tokens() -> None:
    steps = stepper(block_size=8, step_tokens=8, blocks=6, max_model_len=48)
    steps.add(*(request(name, 2, arrival=float(place), max_tokens=20) for place, name in enumerate("abcd")))
    for _ in range(6):
        steps.step()
    plan = steps.plan()
    # Four tokens of eight, each the first of a block, and two blocks are left.
    assert not steps.scheduler.can_plan_ahead()
    steps.commit(plan)
    assert set(steps.step()) == {"a", "b", "c"}


def test_who_must_itself_make_way_first_holds_up_no_plan() -> None:
    steps = stepper(blocks=8, max_model_len=32)
    steps.add(request("old", 14, max_tokens=12), request("young", 16, arrival=1.0, max_tokens=3))
    plans = [steps.plan()]
    assert steps.scheduler.can_plan_ahead()
    plans.append(steps.plan())
    assert steps.lengths(plans[1]) == {"old": [1]}
    assert steps.scheduler.num_preemptions == 0


def test_blocks_that_a_certain_end_will_free_are_waited_for() -> None:
    steps = stepper(blocks=8, max_model_len=32)
    steps.add(request("old", 16, max_tokens=9), request("young", 16, arrival=1.0, max_tokens=1))
    first = steps.plan()
    assert not steps.scheduler.can_plan_ahead()
    steps.commit(first)
    assert steps.lengths(steps.plan()) == {"old": [1]}
    assert steps.scheduler.num_preemptions == 0


def test_who_is_certain_to_end_needs_no_more_blocks() -> None:
    steps = stepper(blocks=8, max_model_len=32)
    steps.add(request("ending", 16, priority=1, max_tokens=1))
    first = steps.plan()
    steps.add(request("going", 12, arrival=1.0, max_tokens=9))
    second = steps.plan()
    assert steps.lengths(second) == {"going": [12]}
    # One block is left, and only one of the two has anything to write to it.
    assert steps.scheduler.can_plan_ahead()
    assert steps.lengths(steps.plan()) == {"going": [1]}
    steps.commit(first)
    steps.commit(second)


@pytest.mark.parametrize("short_of", ["rows", "blocks"])
def test_online_work_takes_the_place_of_batch_work_when_steps_in_flight_are_done(short_of: str) -> None:
    steps = stepper(rows=1, max_model_len=32) if short_of == "rows" else stepper(blocks=8, max_model_len=32)
    steps.add(request("batch", 14, kind=BATCH, max_tokens=9))
    plan = steps.plan()
    assert steps.scheduler.can_plan_ahead()
    steps.add(request("online", 20, arrival=1.0, max_tokens=9))
    assert not steps.scheduler.can_plan_ahead()
    steps.commit(plan)
    assert steps.lengths(steps.plan()) == {"online": [20]}
    assert steps.scheduler.num_preemptions == 1


def test_online_work_that_could_not_start_anyway_holds_up_no_plan() -> None:
    steps = stepper(blocks=8, max_model_len=32)
    steps.add(request("first", 20, max_tokens=9), request("batch", 3, kind=BATCH, max_tokens=9))
    steps.plan()
    steps.add(request("second", 20, arrival=1.0, max_tokens=9))
    assert steps.scheduler.can_plan_ahead()
    assert steps.lengths(steps.plan()) == {"first": [1], "batch": [1]}


def test_a_batch_sequence_whose_blocks_a_newcomer_took_is_served_after_what_is_in_flight() -> None:
    steps = stepper(blocks=8, max_model_len=32)
    steps.add(request("batch", 16, kind=BATCH, max_tokens=9), request("small", 2, kind=BATCH, arrival=1.0))
    plans = [steps.plan()]
    steps.add(request("online", 12, arrival=2.0, max_tokens=1))
    plans.append(steps.plan())
    # It found no block, and nothing was preempted while a step was in flight.
    assert steps.lengths(plans[1]) == {"online": [12], "small": [1]}
    assert not steps.scheduler.can_plan_ahead()
    for plan in plans:
        steps.commit(plan)
    assert "batch" in steps.lengths(steps.plan())


def test_a_grammar_reads_each_token_before_the_next_is_drawn() -> None:
    steps = stepper(step_tokens=8)
    steps.add(request("free", 3, max_tokens=9), request("bound", 10, arrival=1.0, max_tokens=3, structured=FORM))
    first = steps.plan()
    assert steps.lengths(first) == {"free": [3], "bound": [5]}
    # Its first draw needs no token of its own.
    assert steps.scheduler.can_plan_ahead()
    second = steps.plan()
    assert chunks(second)[1] == (5, 5, True)
    assert not steps.scheduler.can_plan_ahead()
    steps.commit(first)
    assert not steps.scheduler.can_plan_ahead()
    steps.commit(second)
    third = steps.plan()
    assert not steps.scheduler.can_plan_ahead()
    steps.commit(third)
    steps.plan()
    # The draw in flight is its last: no other will wait for it.
    assert steps.scheduler.can_plan_ahead()


def test_a_grammar_that_is_gone_holds_up_no_plan() -> None:
    steps = stepper()
    steps.add(request("free", 3, max_tokens=9), request("bound", 3, max_tokens=9, structured=FORM))
    steps.plan()
    assert not steps.scheduler.can_plan_ahead()
    steps.scheduler.cancel("bound")
    assert steps.lengths(steps.plan()) == {"free": [1]}


# -- several answers to one prompt ------------------------------------------------------------------------------------


def test_siblings_fork_while_the_first_goes_on_in_flight() -> None:
    steps = stepper()
    one = request("a", 11, n=3, max_tokens=5)
    steps.add(one)
    plans = [steps.plan(), steps.plan()]
    steps.commit(plans.pop(0))
    plans.append(steps.plan())
    assert sorted(chunks(plans[1])) == [(10, 1, True), (10, 1, True), (12, 1, True)]
    while plans:
        steps.commit(plans.pop(0))
        if (plan := steps.plan()).chunks:
            plans.append(plan)
    assert [steps.tokens("a", index) for index in range(3)] == [answer(one, 5)] * 3


def test_a_prompt_computed_again_is_shared_only_when_that_is_done() -> None:
    steps = stepper()
    steps.add(request("a", 11, n=2, max_tokens=5))
    steps.step()
    steps.scheduler.abandon()
    # Both start again in one step: there is nothing yet that the second could share.
    plan = steps.plan()
    assert sorted(chunks(plan)) == [(0, 11, True), (0, 12, True)]
    assert plan.copies == []


def test_a_prompt_computed_again_in_flight_is_not_shared_either() -> None:
    steps = stepper(step_tokens=12)
    steps.add(request("a", 11, n=2, max_tokens=5))
    steps.step()
    steps.scheduler.abandon()
    assert chunks(steps.plan()) == [(0, 12, True)]
    # Should that step fail the first, the second must not have read what it left.
    plan = steps.plan()
    assert chunks(plan) == [(12, 1, True), (0, 11, True)]
    assert plan.copies == []


def test_a_block_that_a_step_in_flight_copies_is_held_though_its_owner_has_ended() -> None:
    steps = stepper(rows=2, blocks=12)
    steps.add(request("a", 10, n=2, max_tokens=2))
    first = steps.plan()
    second = steps.plan()
    steps.commit(first)
    third = steps.plan()
    ((source, _),) = third.copies
    (event,) = steps.commit(second)
    assert event.finish_reason is FinishReason.LENGTH
    assert steps.scheduler.tables.pool.references(source) == 1
    steps.commit(third)
    assert steps.scheduler.tables.pool.references(source) == 0


def test_a_block_that_a_step_in_flight_copies_is_held_though_the_window_has_passed_it() -> None:
    steps = stepper(blocks=12, windows=(2,))
    steps.add(request("a", 11, n=2, max_tokens=9))
    plans = [steps.plan() for _ in range(3)]
    steps.commit(plans.pop(0))
    forking = steps.plan()
    ((source, _),) = forking.copies
    for plan in plans:
        steps.commit(plan)
    # The first sequence has written 13 tokens and sees two of them: it has no use for its third block any more.
    later = steps.plan()
    assert steps.scheduler.tables.pool.references(source) == 1
    assert not any(source in blocks for chunk in later.chunks for blocks in chunk.new_blocks)
    steps.commit(forking)
    assert steps.scheduler.tables.pool.references(source) == 0
    steps.commit(later)
    steps.finish()
