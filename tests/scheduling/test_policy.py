"""When batches start: at any step, when full, when the window has passed, or when no other will come."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from archerfish.request import Request
from archerfish.scheduling.policy import BatchingPolicy, ContinuousBatching, WholeBatches, batching_policy
from archerfish.scheduling.sequence import Sequence, SequenceFacts, open_sequences
from tests.lanes import examples
from tests.scheduling.steps import BATCH, Stepper, answer, request, stepper


def line(*requests: Request) -> list[Sequence]:
    """Requests as they wait."""
    return [open_sequences(one, number, 0, SequenceFacts(4, 64, ()))[0] for number, one in enumerate(requests)]


def members(policy: BatchingPolicy, waiting: list[Sequence], now: float = 0.0, *, expects_more: bool = True) -> str:
    """The ids of those that may join."""
    policy.open_batch(waiting, now, expects_more=expects_more)
    return "".join(sequence.request.request_id for sequence in waiting if policy.admits(sequence))


def waiting(names: str, **more: float) -> list[Sequence]:
    return line(*(request(name, 3, **more) for name in names))  # type: ignore[arg-type]


# -- the policies alone -----------------------------------------------------------------------------------------------


def test_continuous_batching_admits_everyone_at_once() -> None:
    policy = ContinuousBatching()
    assert members(policy, waiting("abc")) == "abc"
    assert policy.seconds_until_start(waiting("abc"), 0.0) == 0.0
    assert policy.seconds_until_start([], 0.0) is None


@pytest.mark.parametrize("window", [None, 0.05])
@pytest.mark.parametrize(("names", "starts"), [("abc", ""), ("abcd", "abcd"), ("abcdefghi", "abcd")])
def test_a_batch_starts_when_it_is_full(window: float | None, names: str, starts: str) -> None:
    assert members(WholeBatches(4, window), waiting(names)) == starts


@pytest.mark.parametrize("window", [None, 0.05])
def test_nothing_joins_a_batch_that_runs_until_all_of_it_has_ended(window: float | None) -> None:
    policy = WholeBatches(2, window)
    assert members(policy, waiting("abcd")) == "ab"
    assert members(policy, waiting("cdef"), 60.0, expects_more=False) == ""
    policy.forget("a")
    assert members(policy, waiting("cdef"), 60.0, expects_more=False) == ""
    assert policy.seconds_until_start(waiting("cdef"), 60.0) is None
    policy.forget("b")
    assert members(policy, waiting("cdef"), 60.0) == "cd"


def test_a_member_that_had_to_make_way_may_join_again() -> None:
    policy = WholeBatches(2, None)
    assert members(policy, waiting("ab")) == "ab"
    assert members(policy, waiting("bcd")) == "b"


def test_a_request_for_several_answers_takes_as_many_places() -> None:
    several = line(request("a", 3, n=2), request("b", 3), request("c", 3, n=3), request("d", 3))
    assert members(WholeBatches(4, None), several) == "ab"
    too_many = line(request("a", 3, n=9), request("b", 3))
    assert members(WholeBatches(4, None), too_many) == "a"


def test_a_dynamic_batch_starts_when_its_window_has_passed_and_not_before() -> None:
    policy = WholeBatches(4, 0.5)
    assert members(policy, waiting("a"), 0.499) == ""
    assert policy.seconds_until_start(waiting("a"), 0.25) == 0.25
    assert members(policy, waiting("a"), 0.5) == "a"


def test_a_static_batch_waits_however_long_it_takes() -> None:
    policy = WholeBatches(4, None)
    assert members(policy, waiting("abc"), 1e9) == ""
    assert policy.seconds_until_start(waiting("abc"), 1e9) is None


@pytest.mark.parametrize("window", [None, 60.0])
def test_what_is_there_starts_when_no_other_will_come(window: float | None) -> None:
    assert members(WholeBatches(4, window), waiting("a"), expects_more=False) == "a"


def test_policies_are_known_by_name() -> None:
    assert isinstance(batching_policy("continuous", 4, 0.5), ContinuousBatching)
    assert batching_policy("dynamic", 4, 0.5) == WholeBatches(4, 0.5)
    assert batching_policy("static", 4, 0.5) == WholeBatches(4, None)
    with pytest.raises(AssertionError):
        batching_policy("unheard of", 4, 0.5)


# -- with a scheduler and a clock -------------------------------------------------------------------------------------


def batches(size: int, window: float | None, **settings: int) -> Stepper:
    steps = stepper(rows=size, policy=WholeBatches(size, window), **settings)  # type: ignore[arg-type]
    steps.scheduler.expects_more = True
    return steps


def test_a_dynamic_batch_takes_all_that_came_within_the_window_of_the_first() -> None:
    steps = batches(4, 1.0)
    steps.add(request("a", 3, arrival=10.0, max_tokens=3))
    steps.now = 10.5
    assert steps.step() == {}
    assert steps.scheduler.seconds_until_start(10.5) == 0.5
    steps.add(request("b", 3, arrival=10.75, max_tokens=2))
    steps.now = 11.0
    assert set(steps.step()) == {"a", "b"}
    steps.add(request("c", 3, arrival=11.25))
    steps.now = 20.0
    assert set(steps.step()) == {"a", "b"}
    assert steps.scheduler.seconds_until_start(20.0) is None
    assert set(steps.step()) == {"a"}
    assert set(steps.step()) == {"c"}


def test_a_dynamic_batch_that_is_full_does_not_wait_for_its_window() -> None:
    steps = batches(2, 60.0)
    steps.add(request("a", 3, arrival=1.0), request("b", 3, arrival=2.0), request("c", 3, arrival=3.0))
    steps.now = 3.0
    assert set(steps.step()) == {"a", "b"}


def test_a_static_batch_starts_with_its_last_member_and_the_rest_when_no_other_comes() -> None:
    steps = batches(3, None)
    steps.add(request("a", 3, max_tokens=1), request("b", 3, arrival=1.0, max_tokens=4))
    steps.now = 1e6
    assert steps.step() == {}
    steps.add(request("c", 3, arrival=2.0, max_tokens=1), request("d", 3, arrival=3.0, max_tokens=1))
    assert set(steps.step()) == {"a", "b", "c"}
    for _ in range(3):
        assert set(steps.step()) == {"b"}, "free places stay empty until the batch has ended"
    assert steps.step() == {}
    steps.scheduler.expects_more = False
    assert set(steps.step()) == {"d"}


def test_continuous_batching_admits_at_every_step() -> None:
    steps = stepper(rows=2)
    steps.scheduler.expects_more = True
    steps.add(request("a", 3, max_tokens=1), request("b", 3, max_tokens=3), request("c", 3, arrival=1.0))
    assert set(steps.step()) == {"a", "b"}
    assert set(steps.step()) == {"b", "c"}


@pytest.mark.parametrize("window", [None, 1.0])
def test_a_batch_whose_prompts_do_not_fit_one_step_still_runs_together(window: float | None) -> None:
    steps = batches(4, window, step_tokens=8)
    steps.add(*(request(name, 6, max_tokens=20) for name in "abcd"))
    steps.now = 1.0
    for _ in range(4):
        steps.step()
    assert set(steps.step()) == set("abcd")


@pytest.mark.parametrize("window", [None, 1.0])
def test_all_answers_to_one_prompt_belong_to_one_batch(window: float | None) -> None:
    steps = batches(3, window)
    steps.scheduler.expects_more = False
    steps.add(request("a", 6, n=3, max_tokens=8))
    steps.step()
    assert steps.step() == {"a": [1, 1, 1]}


def test_a_static_batch_finishes_the_request_it_has_begun_though_more_may_come() -> None:
    """Siblings, and sequences that had to make way, are not new work that waits for company."""
    steps = batches(3, None)
    several = request("several", 6, n=2, max_tokens=8)
    steps.add(several, request("b", 6, max_tokens=2))
    steps.finish(most_steps=60)
    assert steps.tokens("several", 1) == answer(several, 8)


def test_a_sequence_preempted_from_a_static_batch_does_not_wait_for_the_next_one_to_fill() -> None:
    steps = batches(2, None, blocks=8, max_model_len=32)
    steps.add(request("old", 15, max_tokens=10), request("young", 15, arrival=1.0, max_tokens=10))
    steps.finish(most_steps=60)
    assert steps.scheduler.num_preemptions
    assert len(steps.tokens("young")) == 10


def test_sequences_that_were_cancelled_while_they_waited_do_not_fill_a_batch() -> None:
    steps = batches(6, None)
    steps.add(request("several", 5, n=4))
    steps.scheduler.cancel("several", 0)
    assert steps.step() == {}, "three wait for a batch of six"
    steps.add(*(request(name, 3, arrival=1.0) for name in "abc"))
    steps.finish()


def test_a_batch_starts_only_when_it_is_full_though_classes_are_mixed() -> None:
    """Four wait for a batch of four: either all four start, or each class goes on waiting for its own batch."""
    steps = batches(4, None)
    steps.add(*(request(f"online {number}", 3) for number in range(2)))
    steps.add(*(request(f"batch {number}", 3, kind=BATCH) for number in range(2)))
    assert len(steps.step()) in (0, 4)


@example(arrival=7.0, waited=0.0, window=9.192949941860016)
@examples(300)
@given(
    arrival=st.floats(0, 1e6),
    waited=st.floats(0, 0.2),
    window=st.floats(1e-3, 10.0),
)
def test_a_clock_that_jumps_by_seconds_until_start_reaches_the_start(
    arrival: float, waited: float, window: float
) -> None:
    """A simulated clock moves only by what is added: an amount too small to move it would stop time for ever."""
    steps = batches(4, window)
    steps.add(request("a", 3, arrival=arrival))
    steps.now = arrival + waited
    for _ in range(8):
        if steps.step():
            return
        wait = steps.scheduler.seconds_until_start(steps.now)
        assert wait is not None and wait > 0
        steps.now += wait
    raise AssertionError(f"at {steps.now!r} it still waits {wait!r} seconds")
