"""What is wrong with a form is said with where it is: in a line for programs, with a mark below the text for people."""

import pytest

from archerfish.request import Structured
from archerfish.sampling.grammar_compiler import check_grammar


def problem(**form: str) -> list[str]:
    """The lines of the message about a form that cannot be."""
    with pytest.raises(ValueError) as caught:
        check_grammar(Structured(**form))  # type: ignore[arg-type]
    return str(caught.value).split("\n")


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"regex": "[a-z"}, ["unclosed character class at character 1", "    [a-z", "    ^"]),
        ({"regex": "ab(c"}, ["unclosed group at character 3", "    ab(c", "      ^"]),
        (
            {"json_schema": '{"type": "string", "pattern": "a{3,1}"}'},
            [
                "invalid repetition count range, the start must be <= the end at character 2",
                "    a{3,1}",
                "     ^",
            ],
        ),
        ({"grammar": "start: foo"}, ['unknown name: "foo" at line 1, column 8', "    start: foo", "           ^"]),
        ({"grammar": "start: /[a-/"}, ["unclosed character class at character 1", "    [a-", "    ^"]),
        ({"json_schema": '{"type": "strin"}'}, ["Invalid type: strin"]),
    ],
    ids=str,
)
def test_the_first_line_says_what_and_where_and_the_others_show_it(form: dict[str, str], message: list[str]) -> None:
    assert problem(**form) == message


def test_the_line_of_a_grammar_is_the_one_that_is_wrong() -> None:
    first, text, mark = problem(grammar='start: "a" b\nb: "c" (\n')
    assert first.endswith("at line 2, column 9") and "|" not in first
    assert text == '    b: "c" (' and mark == " " * 12 + "^"


def test_of_a_long_pattern_only_the_part_around_the_mark_is_shown() -> None:
    first, text, mark = problem(regex="x" * 3000 + "(b" + "y" * 3000)
    assert first == "unclosed group at character 3001"
    assert len(text) < 120 and text[len(mark) - 1] == "("
