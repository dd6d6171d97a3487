"""Inputs: errors are reported by line, with a code, and never by a crash."""

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.jobs.input_lines import InputDamaged, read_lines
from archerfish.jobs.records import BatchError
from archerfish.jobs.validate import InputLimits, validate
from tests.jobs.working import CHAT, jsonl, line, lines


def errors(content: bytes, **options: Any) -> list[BatchError]:
    return validate(io.BytesIO(content), options.pop("endpoint", CHAT), **options).errors


def test_a_good_input() -> None:
    assert validate(io.BytesIO(lines(3)), CHAT) == (3, [])


def test_blank_lines_marks_and_line_ends_do_no_harm() -> None:
    content = b"\xef\xbb\xbf" + jsonl(line("a")).replace(b"\n", b"\r\n") + b"\n  \n" + jsonl(line("b")).rstrip(b"\n")
    assert validate(io.BytesIO(content), CHAT) == (2, [])
    assert [found.number for found in read_lines(io.BytesIO(content))] == [1, 4]


@pytest.mark.parametrize("content", [b"", b"\n", b"  \n\n"])
def test_an_empty_input(content: bytes) -> None:
    [error] = errors(content)
    assert (error.code, error.line) == ("empty_file", None)


@pytest.mark.parametrize(
    ("content", "code", "says", "param"),
    [
        (b"{", "invalid_json_line", "not valid JSON", None),
        (b"[]", "invalid_json_line", "must be a JSON object", None),
        (b"\xff", "invalid_utf8", "byte 1 ", None),
        (json.dumps(line("a")).encode()[:-2] + b"\xe4}}", "invalid_utf8", "is not UTF-8", None),
        (b"9" * 5000, "invalid_json_line", "must be a JSON object", None),
        (b"[" * 100_000, "invalid_json_line", "must be a JSON object", None),
        (b'{"body":' * 100_000, "invalid_json_line", "too deeply", None),
        (json.dumps(line("a", body={"t": float("nan")})).encode(), "invalid_json_line", "invalid character", None),
        (jsonl({"custom_id": "a"}), "missing_required_parameter", "method is missing", "method"),
        (jsonl(line("a", extra=1)), "unknown_parameter", "'extra'", "extra"),
        (jsonl({**line("a"), "custom_id": 7}), "invalid_custom_id", "must be a string", "custom_id"),
        (jsonl(line("")), "invalid_custom_id", "1 to 512", "custom_id"),
        (jsonl(line("x" * 513)), "invalid_custom_id", "1 to 512", "custom_id"),
        (jsonl(line("a", method="GET")), "invalid_method", "'GET'", "method"),
        (jsonl(line("a", url=None)), "invalid_url", "null", "url"),
        (jsonl(line("a", url="/v1/completions")), "mismatched_url", "'/v1/chat/completions'", "url"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named(content: bytes, code: str, says: str, param: str | None) -> None:
    [error] = errors(lines(2) + content.rstrip(b"\n") + b"\n" + jsonl(line("last")))
    assert (error.code, error.line, error.param) == (code, 3, param)
    assert says in error.message


def test_of_a_double_id_both_lines_are_named() -> None:
    found = errors(jsonl(line("a"), line("b"), line("a"), line("a")))
    assert [(error.code, error.line) for error in found] == [("duplicate_custom_id", 3), ("duplicate_custom_id", 4)]
    assert "line 3" in found[0].message and "line 1" in found[0].message


def test_too_many_lines_are_not_read_to_the_end() -> None:
    [error] = errors(lines(3) + b"not read", limits=InputLimits(max_lines=2))
    assert error.code == "too_many_tasks" and "more than 2 requests" in error.message


def test_a_line_that_is_too_long_is_skipped_unread() -> None:
    good = json.dumps(line("a")).encode()
    limits = InputLimits(max_line_bytes=len(good))
    exact = good + b"\n" + good.replace(b'"a"', b'"b"')
    assert errors(exact, limits=limits) == []
    for more in (1, 2, 3, 5_000_000):
        too_long = good.replace(b'"a"', b'"c"') + b" " * more
        [error] = errors(exact + b"\n" + too_long + b"\n" + good.replace(b'"a"', b'"d"'), limits=limits)
        assert (error.code, error.line) == ("line_too_long", 3), more


def test_many_errors_are_counted() -> None:
    found = errors(b"{\n" * 30, limits=InputLimits(max_errors=5))
    assert [error.line for error in found] == [1, 2, 3, 4, 5, None]
    assert (found[-1].code, found[-1].message) == ("more_errors", "and 25 more")


@pytest.mark.parametrize("body", [{}, {"unknown": 1}, {"stream": True}, [1], None, "text", 0])
def test_bodies_are_judged_when_they_are_answered(body: object) -> None:
    content = jsonl(line("a", body=body))
    assert errors(content) == errors(content, endpoint=None) == []
    [found] = read_lines(io.BytesIO(content))
    assert json.loads(found.body) == body


def test_without_an_endpoint_any_will_do() -> None:
    content = jsonl(line("a"), line("b", url="/v1/embeddings"), line("c", url="/v1/audio"))
    [error] = errors(content, endpoint=None)
    assert (error.code, error.line) == ("invalid_url", 3)


@given(
    st.lists(st.one_of(st.binary(max_size=40), st.just(jsonl(line("a")).strip()), st.just(b'{"custom_id": "\\ud800"}')))
)
def test_no_input_breaks_it(pieces: list[bytes]) -> None:
    content = b"\n".join(pieces)
    verdict = validate(io.BytesIO(content), CHAT, limits=InputLimits(max_line_bytes=200, max_errors=3))
    json.dumps(verdict)
    if not verdict.errors:
        assert len(list(read_lines(io.BytesIO(content)))) == verdict.num_lines


def test_damage_after_the_check_is_noticed() -> None:
    with pytest.raises(InputDamaged, match="line 2"):
        list(read_lines(io.BytesIO(lines(1) + b"torn")))
