"""Any mix of requests: every answer is what it would be alone, no request starves, and nothing is lost."""

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from archerfish.request import RequestClass, SamplingParams, Structured
from tests.lanes import examples
from tests.scheduling.auditing import VOCABULARY
from tests.scheduling.workloads import Arrival, Cancel, Failure, Run, Shape, Workload

# -- any workload -----------------------------------------------------------------------------------------------------

shapes = st.builds(
    Shape,
    block_size=st.integers(1, 5),
    windows=st.lists(st.one_of(st.none(), st.integers(2, 9)), min_size=1, max_size=3).map(tuple),
    step_tokens=st.integers(1, 17),
    num_rows=st.integers(1, 5),
    max_model_len=st.integers(6, 30),
    spare_blocks=st.integers(0, 12),
    prefix_caching=st.booleans(),
    policy=st.sampled_from(["continuous", "continuous", "continuous", "dynamic", "static"]),
    most_drawn=st.sampled_from([1, 1, 3]),
    num_draft_tokens=st.sampled_from([0, 0, 1, 5]),
).map(lambda shape: shape if shape.most_drawn == 1 else replace(shape, num_draft_tokens=0))
OVERLAPS = [1, 2, 3]
"""Steps in flight."""
FORM = Structured(regex=".*")
"""Tokens here come from a script; what counts is that each draw needs the host."""


@st.composite
def workloads(draw: st.DrawFn, max_model_len: int) -> Workload:
    num_steps = draw(st.integers(1, 24))
    steps = st.integers(0, num_steps)
    # Prompts of one token value meet in the prefix tree as far as both go.
    bodies = st.tuples(st.integers(0, 1), st.integers(1, max_model_len - 1)).map(lambda body: (body[0],) * body[1])
    tails = st.lists(st.integers(0, 2), max_size=3).map(tuple)
    tenants = draw(st.sampled_from([[""], ["", "a"], ["a", "b", "c"]]))
    arrivals = []
    for number in range(draw(st.integers(1, 10))):
        max_tokens = draw(st.one_of(st.none(), st.integers(1, 12)))
        params = SamplingParams(
            n=draw(st.sampled_from([1, 1, 1, 2, 4])),
            max_tokens=max_tokens,
            min_tokens=draw(st.integers(0, min(4, max_tokens or 4))),
            stop_token_ids=draw(st.sampled_from([(), (), (5,), (3, 7)])),
            ignore_eos=draw(st.booleans()),
            seed=number,
            structured=draw(st.sampled_from([None, None, None, FORM])),
        )
        arrival = Arrival(
            step=draw(steps),
            prompt=(draw(bodies) + draw(tails))[: max_model_len - 1],
            params=params,
            request_class=draw(st.sampled_from(RequestClass)),
            priority=draw(st.integers(0, 2)),
            salt=draw(st.sampled_from(["", "", "other"])),
            tenant=draw(st.sampled_from(tenants)),
        )
        arrivals.append(arrival)
    cancels = st.builds(
        Cancel,
        step=st.integers(0, num_steps + 10),
        in_flight=st.booleans(),
        request=st.integers(0, len(arrivals)),
        index=st.sampled_from([None, None, 0, 1, 3]),
    )
    failures = st.builds(Failure, step=st.integers(0, num_steps + 10), chunk=st.integers(0, 4))
    return Workload(
        arrivals=arrivals,
        cancels=draw(st.lists(cancels, max_size=4)),
        failures=draw(st.lists(failures, max_size=1)),
        interrupts=draw(st.lists(st.integers(0, num_steps + 10), max_size=1)),
    )


@examples(250, suppress_health_check=[HealthCheck.too_slow])
@given(shape=shapes, data=st.data())
def test_any_workload_is_served_as_if_each_sequence_were_alone(shape: Shape, data: st.DataObject) -> None:
    workload = data.draw(workloads(shape.max_model_len))
    for max_in_flight in OVERLAPS if shape.most_drawn == 1 else [1]:
        Run(replace(shape, max_in_flight=max_in_flight), workload).finish()


# -- long runs, long enough that everything happens -------------------------------------------------------------------


def random_workload(rng: random.Random, shape: Shape, num_requests: int, load: float, num_tenants: int = 1) -> Workload:
    """Arrivals at `load` requests a step, half of them on one of a few long prefixes."""
    prefixes = [tuple(rng.choices(range(VOCABULARY), k=shape.max_model_len - 8)) for _ in range(3)]
    arrivals, cancels, failures = [], [], []
    for number in range(num_requests):
        step = int(number / load)
        body = rng.choice(prefixes)[: rng.randint(1, shape.max_model_len - 8)] if rng.random() < 0.5 else ()
        tail = rng.choices(range(VOCABULARY), k=rng.randint(1, 7))
        max_tokens = rng.choice([None, 1, 2, 5, 10, 20])
        params = SamplingParams(
            n=rng.choice([1, 1, 1, 1, 2, 3]),
            max_tokens=max_tokens,
            min_tokens=rng.choice([0, 0, 1, 4]) if max_tokens is None or max_tokens > 4 else 0,
            stop_token_ids=rng.choice([(), (5,), (7, 8)]),
            ignore_eos=rng.random() < 0.3,
            seed=number,
            # Few: while one of them runs, hardly a step is planned ahead.
            structured=FORM if number % 25 == 4 else None,
        )
        arrivals.append(
            Arrival(
                step=step,
                prompt=(*body, *tail),
                params=params,
                request_class=rng.choice([RequestClass.ONLINE, RequestClass.ONLINE, RequestClass.BATCH]),
                priority=rng.choice([0, 0, 0, 1]),
                salt=rng.choice(["", "", "", "other"]),
                tenant=f"tenant {number % num_tenants}",
            )
        )
        if rng.random() < 0.3:
            late = step + rng.randint(0, 12)
            index = rng.choice([None, None, 0, 1])
            cancels.append(Cancel(step=late, in_flight=rng.random() < 0.6, request=number, index=index))
        if rng.random() < 0.06:
            failures.append(Failure(step=step + rng.randint(0, 6), chunk=rng.randint(0, 5)))
    interrupts = [step for step in range(arrivals[-1].step) if rng.random() < 0.02]
    return Workload(arrivals=arrivals, cancels=cancels, failures=failures, interrupts=interrupts)


def shape_of(**changes: object) -> Shape:
    usual: dict[str, object] = {
        "block_size": 4,
        "windows": (None,),
        "step_tokens": 16,
        "num_rows": 6,
        "max_model_len": 40,
        "spare_blocks": 20,
        "prefix_caching": True,
    }
    return Shape(**{**usual, **changes})  # type: ignore[arg-type]


LONG_RUNS = {
    "plain": shape_of(),
    "without caching": shape_of(prefix_caching=False),
    "room for one": shape_of(spare_blocks=0),
    "room for one, without caching": shape_of(spare_blocks=0, prefix_caching=False),
    "small odd steps": shape_of(step_tokens=7, num_rows=7, block_size=3),
    "one token a step": shape_of(step_tokens=1, num_rows=3, spare_blocks=0),
    "fewer tokens than rows": shape_of(step_tokens=3, num_rows=8, spare_blocks=8),
    "a window": shape_of(windows=(6,), spare_blocks=14),
    "a window smaller than a block": shape_of(windows=(2, None), block_size=5, spare_blocks=2, prefix_caching=False),
    "windows and full layers": shape_of(windows=(None, 5, 5), spare_blocks=12),
    "windows without caching": shape_of(windows=(9, None), spare_blocks=4, prefix_caching=False),
    "blocks of one token": shape_of(block_size=1, spare_blocks=40),
    "large blocks": shape_of(block_size=16, spare_blocks=3, num_rows=4),
    "dynamic batches": shape_of(policy="dynamic", spare_blocks=1),
    "static batches": shape_of(policy="static", spare_blocks=1),
    "several tokens at once": shape_of(most_drawn=3, spare_blocks=6),
    "several tokens at once, with windows": shape_of(most_drawn=3, windows=(None, 5), block_size=2, spare_blocks=14),
    "several tokens at once, few of them fit": shape_of(most_drawn=3, step_tokens=5, block_size=3, spare_blocks=4),
    "drafts": shape_of(num_draft_tokens=3),
    "drafts, and hardly room for them": shape_of(num_draft_tokens=5, spare_blocks=5),
    "drafts, with windows": shape_of(num_draft_tokens=4, windows=(None, 5), block_size=2, spare_blocks=30),
    "drafts, without caching": shape_of(step_tokens=24, num_draft_tokens=2, prefix_caching=False, block_size=3),
}
SEVERAL_TENANTS = {"plain": 3, "room for one": 2, "windows without caching": 5, "dynamic batches": 3}
QUICK = (
    "room for one, without caching",
    "small odd steps",
    "windows and full layers",
    "static batches",
    "several tokens at once",
    "drafts, with windows",
)
OVERLAPPED = [name for name, shape in LONG_RUNS.items() if shape.most_drawn == 1]


def long_run(name: str, num_requests: int, num_tenants: int = 1, max_in_flight: int = 1) -> Run:
    shape = LONG_RUNS[name]
    load = 0.15 if shape.step_tokens < 4 or shape.policy != "continuous" else 0.6
    workload = random_workload(random.Random(name), shape, num_requests, load, num_tenants)
    run = Run(replace(shape, max_in_flight=max_in_flight), workload)
    run.finish()
    return run


def check_that_it_was_hard(run: Run) -> None:
    """Or it proves little."""
    shape = run.shape
    expected = ["cancelled", "cancelled in flight", "interrupted", "stop", "length", "error"]
    if shape.step_tokens > 1:
        expected += ["preemptions", "resumed"]
    if shape.prefix_caching:
        expected.append("prefix hits")
    if shape.most_drawn > 1:
        expected.append("several tokens at once")
    if shape.num_draft_tokens:
        expected.append("drafted")
    if shape.policy == "continuous":
        expected += ["shared prompts"] if shape.prefix_caching else ["forks", "copies"]
    if shape.max_in_flight > 1:
        expected += ["planned ahead", "collected first", "dropped", "drawn by a grammar"]
    rare = {event: run.happened[event] for event in expected if run.happened[event] < 5}
    assert not rare, rare


@pytest.mark.parametrize(
    ("name", "num_tenants"),
    [
        pytest.param(name, count, marks=() if name in QUICK or count == 3 else pytest.mark.full)
        for name, count in [*((name, 1) for name in LONG_RUNS), *SEVERAL_TENANTS.items()]
    ],
)
def test_a_long_run_ends_with_every_answer_right_and_every_block_free(name: str, num_tenants: int) -> None:
    check_that_it_was_hard(long_run(name, 600, num_tenants))


@pytest.mark.each_choice
@pytest.mark.parametrize("max_in_flight", [2, 3])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in OVERLAPPED]
)
def test_a_long_run_whose_steps_overlap_ends_so_too(name: str, max_in_flight: int) -> None:
    check_that_it_was_hard(long_run(name, 300, max_in_flight=max_in_flight))
