"""Lines in flight: never more than allowed, shared evenly, a trial with nothing else; how fast failures may come."""

from archerfish.jobs.capacity import Capacity, CapacityShare, FailurePace


def nothing() -> None:
    pass


def start_all(share: CapacityShare) -> int:
    """Start as many lines as it may."""
    count = 0
    while share.may_start():
        share.started(1)
        count += 1
    return count


def test_one_batch_has_all_of_it() -> None:
    capacity = Capacity(8, 1000)
    share = capacity.join(nothing)
    assert start_all(share) == 8
    share.ended(1)
    assert start_all(share) == 1


def test_a_batch_that_comes_later_gets_its_half_as_lines_end() -> None:
    capacity = Capacity(8, 1000)
    first, second = capacity.join(nothing), capacity.join(nothing)
    second.rest(True)
    assert start_all(first) == 8
    second.rest(False)
    for started in range(1, 9):
        first.ended(1)
        assert not first.may_start() or first.num_in_flight < 4
        assert start_all(second) == (1 if started <= 4 else 0)
        assert first.num_in_flight + second.num_in_flight <= 8
    assert (start_all(first), second.num_in_flight) == (4, 4)


def test_what_rests_leaves_its_share_to_others() -> None:
    capacity = Capacity(8, 1000)
    slow, fast = capacity.join(nothing), capacity.join(nothing)
    slow.started(1)
    slow.rest(True)
    assert start_all(fast) == 7
    slow.rest(False)
    assert not fast.may_start()


def test_each_of_many_may_start_one() -> None:
    capacity = Capacity(4, 1000)
    shares = [capacity.join(nothing) for _ in range(9)]
    assert [start_all(share) for share in shares] == [1, 1, 1, 1, 0, 0, 0, 0, 0]
    shares[0].ended(1)
    assert start_all(shares[8]) == 1


def test_a_trial_waits_for_the_others_and_the_others_for_it() -> None:
    capacity = Capacity(8, 1000)
    suspect, other = capacity.join(nothing), capacity.join(nothing)
    other.started(1)
    with capacity.trial(suspect):
        assert not suspect.may_start() and not other.may_start()
        other.ended(1)
        assert start_all(suspect) == 8
        assert not other.may_start()
        for _ in range(8):
            suspect.ended(1)
        assert not other.may_start(), "the trial has not ended"
    assert start_all(other) == 4


def test_trials_come_one_after_another_and_a_resting_one_holds_up_none() -> None:
    capacity = Capacity(8, 1000)
    first, second, third = (capacity.join(nothing) for _ in range(3))
    with capacity.trial(first), capacity.trial(second):
        assert first.may_start() and not second.may_start()
        first.rest(True)
        assert second.may_start() and not third.may_start()
        second.rest(True)
        assert third.may_start()
        third.started(1)
        first.rest(False)
        assert not first.may_start(), "the third has a line in flight"
        third.ended(1)
        assert first.may_start()


def test_a_trial_that_rests_with_lines_in_flight_is_still_one() -> None:
    capacity = Capacity(8, 1000)
    first, second = capacity.join(nothing), capacity.join(nothing)
    with capacity.trial(first):
        first.started(1)
        first.rest(True)
        assert not second.may_start()


def test_all_are_notified_of_changes() -> None:
    changes: list[int] = []
    capacity = Capacity(8, 1000)
    first = capacity.join(lambda: changes.append(1))
    second = capacity.join(lambda: changes.append(2))
    second.started(1)
    changes.clear()
    second.ended(1)
    assert changes == [1, 2]
    capacity.leave(second)
    assert changes == [1, 2, 1]
    first.rest(True)
    assert changes == [1, 2, 1, 1]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_failures_come_no_faster_than_allowed() -> None:
    clock = Clock()
    pace = FailurePace(2, 61.0, 1.0, clock)
    failures = []
    for _ in range(20):
        failures.append(clock.now)
        clock.now += pace.failed()
    for first, third in zip(failures, failures[2:], strict=False):
        assert third - first >= 61.0
    assert failures[-1] - failures[0] < 20 * 31.0


def test_one_failure_that_many_batches_hear_of_is_one() -> None:
    clock = Clock()
    pace = FailurePace(2, 61.0, 1.0, clock)
    assert [pace.failed() for _ in range(5)] == [1.0] * 5
    clock.now += 1.0
    assert [pace.failed() for _ in range(5)] == [60.0] * 5
    clock.now += 60.0
    assert pace.failed() == 1.0, "the first is long ago"
