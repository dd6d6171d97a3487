"""What the quick lane chooses of a grid, and that both lanes together run everything."""

from itertools import product

import pytest

from tests.lanes import each_choice, examples, full, is_property, select


def chosen_of(**values: object) -> list[tuple[object, ...]]:
    grid = list(product(*values.values()))  # type: ignore[call-overload]
    chosen = each_choice([dict(zip(values, case, strict=True)) for case in grid])
    return [case for case, taken in zip(grid, chosen, strict=True) if taken]


def test_every_value_occurs_in_as_few_cases_as_the_longest_parameter_has_values() -> None:
    assert chosen_of(a=[1, 2], b="xyz", c=[True, False]) == [(1, "x", True), (1, "z", True), (2, "y", False)]
    assert chosen_of(a=[1, 2, 3]) == [(1,), (2,), (3,)]
    assert len(chosen_of(a=range(2), b=range(5), c=range(5), d=range(3))) == 5


def test_values_that_only_come_together_are_all_chosen() -> None:
    cases = [{"a": a, "b": b} for a, b in [(1, "x"), (2, "x"), (1, "y"), (2, "y"), (2, "z")]]
    assert each_choice(cases) == [True, False, False, True, True]


@pytest.mark.each_choice
@pytest.mark.parametrize("number", [1, 2, *full(3)])
@pytest.mark.parametrize("letter", "ab")
def test_lanes_together_run_every_test(request: pytest.FixtureRequest, number: int, letter: str) -> None:
    items = request.session.items
    quick, rest, everything = (select(items, lane) for lane in ("quick", "full", "all"))
    assert all(everything)
    for item, now, later in zip(items, quick, rest, strict=True):
        assert now + later == 1 + (now and is_property(item))
    if request.config.getoption("lane") == "all":
        assert quick[items.index(request.node)] == ((letter, number) in {("a", 1), ("b", 2)})


def test_properties_have_fewer_examples_in_the_quick_lane(request: pytest.FixtureRequest) -> None:
    quick = request.config.getoption("lane") == "quick"
    assert examples(300).max_examples == (60 if quick else 300)
    assert examples(20).max_examples == (10 if quick else 20)
    assert examples(5).max_examples == 5
    assert examples(300).derandomize
