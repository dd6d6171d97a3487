"""What clients are answered instead of what they asked for."""

from archerfish.api.errors import error_reply
from archerfish.errors import InvalidParameter
from archerfish.request import Structured
from archerfish.sampling.grammar_sandbox import check_structured


def test_a_mistake_in_a_pattern_is_said_in_one_line_with_its_position() -> None:
    try:
        check_structured(Structured(regex="ab(c"))
    except InvalidParameter as error:
        assert str(error).count("\n") == 2, "Python's users see the pattern with a mark below it"
        reply = error_reply(error)
    assert (reply.status, reply.param) == (400, "regex")
    assert reply.message == "regex = '...' is not valid: unclosed group at character 3"
