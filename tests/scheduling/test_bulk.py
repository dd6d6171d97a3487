"""Many prompts of one body let other requests pass, and leave them rows and blocks."""

from dataclasses import replace

from tests.scheduling.steps import BATCH, Stepper, answer, request, stepper


def body_of(num_prompts: int, **more: object) -> list[object]:
    one = {"max_tokens": 30, **more}
    return [replace(request(f"body {number}", 4, **one), position=number) for number in range(num_prompts)]  # type: ignore[arg-type]


def serving(**sizes: int) -> Stepper:
    """A scheduler to which more requests may come."""
    steps = stepper(**sizes)
    steps.scheduler.expects_more = True
    return steps


def test_a_single_request_finds_a_row_next_to_a_body_of_many_prompts() -> None:
    steps = serving(rows=32, step_tokens=1000)
    steps.add(*body_of(100))
    assert len(steps.step()) == 30
    steps.add(request("single", 4, arrival=0.5))
    assert "single" in steps.step()


def test_all_rows_are_used_where_nothing_more_can_come() -> None:
    steps = stepper(rows=32, step_tokens=1000)
    steps.add(*body_of(100))
    assert len(steps.step()) == 32


def test_few_prompts_use_all_rows() -> None:
    steps = serving(rows=8, step_tokens=1000)
    steps.add(*body_of(8))
    assert len(steps.step()) == 8


def test_single_requests_pass_what_waits_of_a_body() -> None:
    steps = serving(rows=16, step_tokens=1000)
    body = body_of(64)
    steps.add(*body, *(request(f"single {number}", 4, arrival=0.1 * number, max_tokens=3) for number in range(20)))
    started = list(steps.step())
    assert started[:8] == [f"body {number}" for number in range(8)]
    assert all(name.startswith("single") for name in started[8:])
    steps.finish()
    for one in body:
        assert steps.tokens(one.request_id) == answer(one, 30)


def test_a_body_is_passed_only_for_a_time() -> None:
    steps = serving(rows=16, step_tokens=1000)
    steps.add(*body_of(16), *(request(f"late {number}", 4, arrival=31.0) for number in range(16)))
    assert sum(name.startswith("body") for name in steps.step()) == 15, (
        "one row stays free, or is taken by a single one"
    )


def test_the_answers_of_one_prompt_count_like_prompts() -> None:
    steps = serving(rows=32, step_tokens=1000)
    steps.add(request("many", 4, n=64, max_tokens=30))
    steps.step()
    assert len(steps.step()["many"]) == 30
    steps.add(request("single", 4, arrival=0.5))
    assert "single" in steps.step()


def test_blocks_are_left_too() -> None:
    steps = serving(rows=64, step_tokens=1000, blocks=32, block_size=4)
    steps.add(*body_of(40, max_tokens=1))
    assert len(steps.step()) == 30
    steps.finish()


def test_batch_work_makes_way_for_many_prompts_of_an_online_body() -> None:
    steps = serving(rows=32, step_tokens=1000)
    steps.add(*(request(f"batch {number}", 4, kind=BATCH, max_tokens=30) for number in range(32)))
    steps.step()
    steps.add(*body_of(64))
    assert sum(name.startswith("body") for name in steps.step()) == 30
