"""Lines of inputs: what they say is what any JSON parser reads, and no body is ever built to find it."""

import io
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.jobs.input_lines import InputDamaged, InputLine, InputReader, read_lines
from archerfish.jobs.records import BatchError, LineReply, LineResult, answered
from archerfish.jobs.validate import validate
from tests.jobs.working import CHAT, jsonl, line

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)
HALVES = st.text(st.characters(categories=["Cs", "Ll", "So"]) | st.sampled_from('\\"u\n'), min_size=1)
STYLES = st.fixed_dictionaries(
    {"ensure_ascii": st.booleans(), "separators": st.sampled_from([(", ", ": "), (",", ":"), (" ,\t", " : ")])}
)


def parsed(text: bytes) -> Any:
    return json.loads(text.decode("utf-8", "surrogatepass"))


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=512), VALUES, STYLES, st.permutations(["method", "url", "body"])),
        unique_by=lambda one: one[0],
    )
)
def test_lines_say_what_json_says(records: list[tuple[str, Any, dict[str, Any], list[str]]]) -> None:
    texts = []
    for custom_id, body, style, names in records:
        values = {"method": "POST", "url": CHAT, "body": body}
        record = {**{name: values[name] for name in names[1:]}, "custom_id": custom_id, names[0]: values[names[0]]}
        texts.append(json.dumps(record, **style))
    stream = io.BytesIO("\n".join(texts).encode("utf-8"))
    expected = [json.loads(text) for text in texts]
    found = list(read_lines(stream))
    assert [(one.custom_id, one.url, parsed(one.body)) for one in found] == [
        (record["custom_id"], record["url"], record["body"]) for record in expected
    ]
    reader = InputReader(stream)
    spans = list(reader.spans())
    assert [(span.number, span.custom_id) for span in spans] == [(one.number, one.custom_id) for one in found]
    for span, one in zip(reversed(spans), reversed(found), strict=True):
        assert reader.body(span) == one.body
        assert span.short_body in (one.body, None)
    if records:
        assert validate(stream, CHAT) == (len(records), [])


@given(HALVES.filter(lambda text: len(text) <= 512), HALVES)
def test_halves_of_characters_are_errors_of_their_line_alone(custom_id: str, text: str) -> None:
    """The body keeps them in bytes that no endpoint takes; a name goes back as it came."""
    stream = io.BytesIO(jsonl(line(custom_id, body={text: [text]})))
    assert validate(stream, CHAT) == (1, [])
    [found] = read_lines(stream)
    assert (found.custom_id, parsed(found.body)) == (custom_id, {text: [text]})


def test_of_fields_that_are_there_twice_the_last_counts() -> None:
    text = b'{"body":{"a":1},"method":"GET","url":"x","method":"POST","custom_id":7,"body":{"a":2,"a":3},'
    text += b'"url":"' + CHAT.encode() + b'","custom_id":"a"}'
    assert list(read_lines(io.BytesIO(text))) == [InputLine(1, "a", CHAT, b'{"a":2,"a":3}')]
    record = json.loads(text)
    assert (record["method"], record["custom_id"], record["url"]) == ("POST", "a", CHAT)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b'{"custom_id": [' + b"[]," * 1_000_000 + b"[]]}", "missing_required_parameter"),
        (b'{"x": [' + b"[]," * 1_000_000 + b"[]]}", "unknown_parameter"),
        (b"[" + b"[]," * 1_000_000 + b"[]]", "invalid_json_line"),
        (b'{"' + b"k" * 3_000_000 + b'": 1}', "unknown_parameter"),
        (jsonl(line("a" * 3_000_000)), "invalid_custom_id"),
        (jsonl({**line("a"), "custom_id": {"a": [[]] * 1_000_000}}), "invalid_custom_id"),
        (jsonl({**line("a"), "method": [[]] * 1_000_000}), "invalid_method"),
        (jsonl({**line("a"), "url": [[]] * 1_000_000}), "invalid_url"),
        (jsonl({**line("a"), "url": "x" * 3_000_000}), "mismatched_url"),
        (jsonl(line("a", body=[[]] * 1_000_000)), None),
    ],
)
def test_nothing_is_built_of_what_a_line_holds(text: bytes, code: str | None) -> None:
    stream = io.BytesIO(text)
    tracemalloc.start()
    try:
        errors = validate(stream, CHAT).errors
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [error.code for error in errors] == ([] if code is None else [code])
    assert most < 4 * len(text) + 100_000
    assert all(len(error.message) + len(error.param or "") < 1000 for error in errors)


def test_a_body_that_another_request_has_taken_the_place_of_is_damage() -> None:
    stream = io.BytesIO(jsonl(line("a"), line("b")))
    reader = InputReader(stream)
    first, second = reader.spans()
    stream.seek(0)
    stream.write(jsonl(line("x")))
    stream.truncate()
    with pytest.raises(InputDamaged, match="line 1: the custom_id was 'a' when it was checked and is now 'x'"):
        reader.body(first)
    with pytest.raises(InputDamaged, match="line 2"):
        reader.body(second)


def test_bodies_are_read_between_lines() -> None:
    stream = io.BytesIO(b"\xef\xbb\xbf" + jsonl(*(line(str(number), body={"n": number}) for number in range(9)), b"\n"))
    reader = InputReader(stream)
    assert [parsed(reader.body(span)) for span in reader.spans()] == [{"n": number} for number in range(9)]


@given(VALUES, STYLES)
def test_written_replies_are_recorded_as_they_are(body: Any, style: dict[str, Any]) -> None:
    content = json.dumps(body, **style, indent=1).encode("utf-8")
    record = answered(1, "ü", LineReply(200, content, "req_1"), "batch_req_1")
    assert record.text.isascii() and "\n" not in record.text
    assert json.loads(record.text) == json.loads(answered(1, "ü", LineResult(200, body, "req_1"), "batch_req_1").text)


@pytest.mark.parametrize("content", [b"", b"{", b"{} {}", b'"\xff"', b"NaN"])
def test_a_reply_that_is_no_json_is_never_recorded(content: bytes) -> None:
    with pytest.raises(ValueError):
        answered(1, "a", LineReply(200, content, "req_1"))


def test_a_reader_stops_where_the_file_is_torn() -> None:
    found = read_lines(io.BytesIO(jsonl(line("a")) + b'{"custom_id": "b"'))
    assert next(found).custom_id == "a"
    with pytest.raises(InputDamaged) as damage:
        next(found)
    assert isinstance(damage.value.error, BatchError) and damage.value.error.line == 2
