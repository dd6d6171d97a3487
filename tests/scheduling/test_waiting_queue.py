"""The waiting line is sorted by class, priority and arrival, whatever the order of joining and leaving."""

from hypothesis import given
from hypothesis import strategies as st

from archerfish.request import Request, RequestClass
from archerfish.scheduling.sequence import Sequence, SequenceFacts
from archerfish.scheduling.waiting_queue import WaitingQueue
from tests.scheduling.steps import BATCH, ONLINE, request


def sequence(one: Request, number: int = 0, index: int = 0) -> Sequence:
    return Sequence(one, number, index, 0, SequenceFacts(4, 64, ()))


entries = st.lists(
    st.tuples(st.sampled_from(RequestClass), st.integers(0, 2), st.integers(0, 3), st.integers(0, 2)),
    max_size=12,
    unique=True,
)


@given(entries=entries, data=st.data())
def test_the_first_of_a_class_is_the_smallest_in_order(
    entries: list[tuple[RequestClass, int, int, int]], data: st.DataObject
) -> None:
    queue = WaitingQueue()
    waiting = []
    for place, (kind, priority, arrival, index) in enumerate(entries):
        one = sequence(request("a", 3, kind=kind, priority=priority, arrival=arrival), place, index)
        queue.add(one)
        waiting.append(one)
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(waiting))
            queue.remove(gone)
            waiting.remove(gone)
    assert len(queue) == len(waiting)
    assert list(queue) == sorted(waiting, key=lambda one: one.order)
    for kind in RequestClass:
        own = [one for one in waiting if one.request.request_class is kind]
        assert next(queue.turns(kind), None) is min(own, key=lambda one: one.order, default=None)


def test_priority_goes_before_arrival_and_arrival_before_the_order_of_being_added() -> None:
    queue = WaitingQueue()
    expected = [
        sequence(request("a", 3, priority=-1, arrival=9.0), 8),
        sequence(request("a", 3, arrival=1.0), 2, 0),
        sequence(request("a", 3, arrival=1.0), 2, 1),
        sequence(request("a", 3, arrival=1.0), 10, 0),
        sequence(request("a", 3, arrival=2.0), 1),
        sequence(request("a", 3, priority=1, arrival=0.0), 0),
        sequence(request("a", 3, kind=BATCH, priority=-9, arrival=0.0), 0),
    ]
    for one in reversed(expected):
        queue.add(one)
    assert list(queue) == expected
    assert next(queue.turns(ONLINE)) is expected[0] and next(queue.turns(BATCH)) is expected[-1]
