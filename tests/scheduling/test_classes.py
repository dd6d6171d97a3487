"""Online work goes first in everything; batch work fills what it leaves and makes way when it is needed."""

from archerfish.scheduling.plan import Plan
from tests.scheduling.steps import BATCH, Stepper, answer, request, stepper


def test_online_goes_first_whichever_came_first() -> None:
    steps = stepper(step_tokens=8)
    steps.add(request("batch", 6, kind=BATCH), request("online", 6, arrival=5.0))
    assert steps.step() == {"online": [6], "batch": [2]}


def test_batch_fills_the_tokens_that_online_leaves() -> None:
    steps = stepper(step_tokens=10)
    steps.add(request("online", 3, max_tokens=20), request("batch", 40, kind=BATCH))
    assert steps.step() == {"online": [3], "batch": [7]}
    for _ in range(3):
        assert steps.step() == {"online": [1], "batch": [9]}


def test_an_online_prompt_takes_the_tokens_of_batch_answers_while_it_lasts() -> None:
    steps = stepper(step_tokens=4)
    steps.add(request("batch", 2, kind=BATCH, max_tokens=20))
    assert steps.step() == {"batch": [2]}
    steps.add(request("online", 10, arrival=1.0, max_tokens=2))
    assert [steps.step() for _ in range(3)] == [{"online": [4]}, {"online": [4]}, {"online": [2], "batch": [1]}]
    assert steps.scheduler.num_preemptions == 0


def test_batch_fills_the_rows_that_online_leaves() -> None:
    steps = stepper(rows=3)
    steps.add(*(request(f"batch {number}", 3, kind=BATCH) for number in range(4)), request("online", 3))
    assert set(steps.step()) == {"online", "batch 0", "batch 1"}


def test_batch_is_displaced_from_its_row_when_online_needs_it() -> None:
    steps = stepper(rows=2)
    batch_requests = [request(f"batch {number}", 3, kind=BATCH, arrival=number, max_tokens=9) for number in range(2)]
    steps.add(*batch_requests)
    steps.step()
    online = request("online", 3, arrival=9.0, max_tokens=2)
    steps.add(online)
    # The younger batch request goes.
    assert steps.step() == {"online": [3], "batch 0": [1]}
    assert steps.scheduler.num_preemptions == 1
    steps.finish()
    for one, count in ((online, 2), (batch_requests[0], 9), (batch_requests[1], 9)):
        assert steps.tokens(one.request_id) == answer(one, count)


def test_a_sibling_that_takes_the_row_of_batch_work_still_shares_the_prompt() -> None:
    steps = stepper(rows=2)
    one = request("online", 11, n=2, max_tokens=5)
    steps.add(one, request("batch", 3, kind=BATCH, max_tokens=20))
    assert steps.step() == {"online": [11], "batch": [3]}
    assert steps.step() == {"online": [1, 1]}
    steps.finish()
    assert steps.tokens("online", 1) == answer(one, 5)


def test_batch_is_displaced_from_its_blocks_when_online_needs_them() -> None:
    steps = stepper(blocks=10, max_model_len=40)
    batch = request("batch", 24, kind=BATCH, max_tokens=6)
    steps.add(batch)
    steps.step()
    online = request("online", 20, arrival=1.0, max_tokens=6)
    steps.add(online)
    assert steps.step() == {"online": [20]}
    steps.finish()
    assert (steps.tokens("batch"), steps.tokens("online")) == (answer(batch, 6), answer(online, 6))


def test_a_growing_online_answer_displaces_batch_before_any_online_one() -> None:
    steps = stepper(blocks=9, max_model_len=36)
    steps.add(
        request("old", 8, max_tokens=20),
        request("young", 8, arrival=1.0, max_tokens=20),
        request("batch", 12, kind=BATCH, arrival=0.5, max_tokens=20),
    )
    lasted = 0
    while "batch" in (lengths := steps.step()):
        assert set(lengths) == {"old", "young", "batch"}
        lasted += 1
    assert lasted and set(lengths) == {"old", "young"}
    steps.finish()


def test_only_as_many_are_displaced_as_are_needed() -> None:
    steps = stepper(blocks=12, max_model_len=40)
    steps.add(*(request(f"batch {number}", 11, kind=BATCH, arrival=number, max_tokens=3) for number in range(4)))
    assert len(steps.step()) == 4
    steps.add(request("online", 18, arrival=9.0))
    assert set(steps.step()) == {"online", "batch 0", "batch 1"}


def test_batch_never_displaces_online_nor_other_batch() -> None:
    steps = stepper(rows=2, blocks=10, max_model_len=40)
    steps.add(request("online", 3, max_tokens=20), request("batch 1", 3, kind=BATCH, max_tokens=20))
    steps.step()
    steps.add(request("batch 2", 3, kind=BATCH, arrival=1.0, priority=-5))
    for _ in range(10):
        assert set(steps.step()) == {"online", "batch 1"}
    assert steps.scheduler.num_preemptions == 0


def test_batch_work_is_not_thrown_away_for_an_online_request_that_would_not_fit_anyway() -> None:
    # Ten blocks: one online answer holds seven and will not give them up, the next needs four, batch has two.
    steps = stepper(blocks=10, max_model_len=40, step_tokens=64)
    steps.add(request("running", 25, max_tokens=3))
    steps.add(request("batch", 5, kind=BATCH, max_tokens=3))
    steps.step()
    steps.add(request("waiting", 16, arrival=1.0, max_tokens=3))
    assert steps.step() == {"running": [1], "batch": [1]}
    assert steps.scheduler.num_preemptions == 0


def test_online_that_waits_for_blocks_does_not_make_batch_start_over_in_every_step() -> None:
    steps = stepper(blocks=12, max_model_len=48)
    batch = request("batch", 9, kind=BATCH, max_tokens=10)
    steps.add(request("running", 25, max_tokens=8), batch)
    steps.step()
    steps.add(request("waiting", 30, arrival=1.0, max_tokens=1))
    num_computed = 0
    for _ in range(6):
        plan = steps.plan()
        num_computed += plan.num_tokens
        steps.commit(plan)
    # Two answers of one token a step: anything more was computed before.
    assert num_computed == 12


def rows_of(steps: Stepper, plan: Plan) -> list[str]:
    return [steps.rows[chunk.row] for chunk in plan.chunks]


def test_an_online_crowd_displaces_all_batch_work_which_still_finishes_afterwards() -> None:
    steps = stepper(rows=4, blocks=16, max_model_len=32)
    batch = [request(f"batch {number}", 5, kind=BATCH, arrival=number, max_tokens=8) for number in range(6)]
    steps.add(*batch)
    steps.step()
    online = [request(f"online {number}", 9, arrival=10 + number, max_tokens=4) for number in range(8)]
    steps.add(*online)
    seen: list[str] = []
    while steps.scheduler.has_work:
        plan = steps.plan()
        names = rows_of(steps, plan)
        # Chunks of online work come first, and no batch work runs while online work has no row.
        assert names == sorted(names, key=lambda name: name.startswith("batch"))
        seen += names
        steps.commit(plan)
    for one, count in [*((one, 8) for one in batch), *((one, 4) for one in online)]:
        assert steps.tokens(one.request_id) == answer(one, count)
    assert seen.index("online 7") < len(seen) - seen[::-1].index("batch 0") - 1
