"""Calls and words are told apart, however the answer is cut into pieces."""

import itertools
import json
import re
import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.api.answers import CallArguments, CallStart, Content, Delta, InvalidCall, ParsedAnswer, joined
from archerfish.api.tools import FORMATS, ToolCallReader, read_answer
from tests.api.tools.texts import EMPTY, TRICKY, WEATHER, announced, content_and_calls, every_format, read, told, write
from tests.lanes import examples


@every_format
@pytest.mark.parametrize("arguments", [WEATHER, TRICKY, EMPTY, '{ "a" :\n\t1e-3 , "b":null}'])
def test_one_call(name: str, arguments: str) -> None:
    text = write(FORMATS[name], ("get_weather", arguments))
    assert content_and_calls(name, text) == ("", [("get_weather", arguments)])


@every_format
def test_several_calls(name: str) -> None:
    text = write(FORMATS[name], ("get_weather", WEATHER), ("run-code", TRICKY), ("now", EMPTY))
    assert content_and_calls(name, text) == ("", [("get_weather", WEATHER), ("run-code", TRICKY), ("now", EMPTY)])


@every_format
def test_words_before_calls_and_the_end_of_the_turn_behind(name: str) -> None:
    tool_format = FORMATS[name]
    calls = write(tool_format, ("get_weather", WEATHER), ("now", EMPTY))
    # Without a marker, a call can only stand at the beginning.
    opened = calls if tool_format.start in calls else tool_format.start + calls
    text = f"Let me see.\n\n{opened}\n{tool_format.closers[-1]}\n"
    assert content_and_calls(name, text) == ("Let me see.", [("get_weather", WEATHER), ("now", EMPTY)])


@every_format
@pytest.mark.parametrize(
    "text", ["", " ", "Hello.\n", "\n\nHello 好", 'a {"name": "f", "arguments": {}} b', "[1, 2]", "{}"]
)
def test_answers_without_calls_come_whole(name: str, text: str) -> None:
    assert content_and_calls(name, text) == (text, [])


@every_format
def test_marker_look_alikes_come_whole(name: str) -> None:
    start = FORMATS[name].start
    text = f"{start[:-1]} {start[:3]}{start[:-2]} \n {start} {start}{start[1:]} \n{start[:-1]}"
    assert content_and_calls(name, text) == (text, [])


@every_format
def test_space_is_kept_where_no_call_is(name: str) -> None:
    text = f" \n a \n {FORMATS[name].start[:4]} \n b \n "
    assert content_and_calls(name, text) == (text, [])


NO_DELETE = "there is no function 'delete_all'; there are get_weather, now"


@every_format
def test_an_announced_call_of_an_unknown_function_is_no_content(name: str) -> None:
    text = announced(name, ("delete_all", WEATHER))
    content, calls, [invalid] = told(name, f"Let me see. {text}")
    assert (content, calls) == ("Let me see.", [])
    assert (invalid.name, invalid.arguments, invalid.error) == ("delete_all", WEATHER, NO_DELETE)
    assert WEATHER in invalid.text and invalid.text in text and FORMATS[name].start not in invalid.text
    assert content_and_calls(name, text) == ("", [("delete_all", WEATHER)])
    content, calls, [invalid] = told(name, announced(name, ("now", EMPTY), ("delete_all", EMPTY)))
    assert (content, calls) == ("", [("now", EMPTY)])
    assert (invalid.name, invalid.arguments, invalid.error) == ("delete_all", EMPTY, NO_DELETE)


@every_format
def test_a_call_of_an_unknown_function_that_breaks_off_is_no_content(name: str) -> None:
    text = announced(name, ("delete_all", WEATHER))
    content, calls, [invalid] = told(name, text[: text.index("Bergen")])
    assert (content, calls) == ("", [])
    assert (invalid.name, invalid.arguments, invalid.error) == ("delete_all", "", NO_DELETE)


def test_an_unannounced_call_of_an_unknown_function_is_content() -> None:
    """It may be an answer in JSON."""
    text = write(FORMATS["llama3"], ("delete_all", WEATHER))
    assert content_and_calls("llama3", text, ("get_weather",)) == (text, [])


@every_format
@pytest.mark.parametrize("written", ["GetWeather", "getWeather", "get-weather", "GET_WEATHER", "get_weather"])
def test_a_name_may_differ_in_case_and_hyphens(name: str, written: str) -> None:
    text = write(FORMATS[name], (written, WEATHER))
    assert content_and_calls(name, text, ("get_weather", "now")) == ("", [("get_weather", WEATHER)])


@every_format
def test_a_name_that_could_be_two_functions_is_neither(name: str) -> None:
    known = ("getweather", "get_weather")
    text = announced(name, ("GetWeather", WEATHER))
    assert content_and_calls(name, text, known) == ("", [])
    assert content_and_calls(name, announced(name, ("getweather", EMPTY)), known) == ("", [("getweather", EMPTY)])


@every_format
def test_arguments_that_break_off_are_left_as_they_are(name: str) -> None:
    call = write(FORMATS[name], ("run", TRICKY))
    begin = call.index(TRICKY)
    for cut in range(begin + 2, begin + len(TRICKY) + 1):
        text = call[:cut]
        whole = read(name, [text])
        assert whole == ("", [("id0", "run", text[begin:])])
        assert read(name, text) == whole


@every_format
def test_brackets_that_do_not_match_are_followed_in_announced_calls_alone(name: str) -> None:
    text = announced(name, ("run", '{"a": [1}'), ("run", "{}"))
    assert content_and_calls(name, text) == ("", [("run", '{"a": [1}'), ("run", "{}")])
    if FORMATS[name].may_be_bare:
        content, calls = content_and_calls(name, write(FORMATS[name], ("run", '{"a": [1}')))
        assert calls == [("run", '{"a": [1')] and content.startswith("}")


def test_nearly_json_is_given_as_it_was_written() -> None:
    text = write(FORMATS["hermes"], ("run", '{"a": True, "b": None,}'))
    assert content_and_calls("hermes", text) == ("", [("run", '{"a": True, "b": None,}')])


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}\n</tool_call>', ""),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}', ""),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', ""),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}, oops}</tool_call>', ""),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}, }</tool_call>', ""),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call> bye', " bye"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}} bye', " bye"),
    ],
)
def test_a_call_that_is_not_closed_as_it_should_be(text: str, content: str) -> None:
    assert content_and_calls("hermes", text) == (content, [("f", '{"a": 1}')])


def test_words_between_and_behind_calls() -> None:
    call = write(FORMATS["hermes"], ("f", EMPTY))
    text = f"First\n{call}\n\n then \n{call}\n and.\n"
    assert content_and_calls("hermes", text) == ("First\n\n then\n and.\n", [("f", EMPTY), ("f", EMPTY)])


def test_arguments_may_come_before_the_name_and_be_quoted_or_left_out() -> None:
    quoted = json.dumps(TRICKY)
    forms = [
        (f'{{"arguments": {TRICKY}, "name": "f"}}', TRICKY),
        (f'{{"id": "x1", "type": "function", "name": "f", "parameters": {TRICKY}, "more": [{{}}, "}}"]}}', TRICKY),
        (f'{{"name": "f", "arguments": {quoted}}}', TRICKY),
        ('{"name": "f", "arguments": null}', EMPTY),
        ('{ "name" : "f" }', EMPTY),
        (r'{"na\u006de": "\u0066", "arguments": {}}', EMPTY),
    ]
    for written, arguments in forms:
        for name in ("hermes", "perch", "mistral", "llama3"):
            text = FORMATS[name].start + written
            assert content_and_calls(name, text) == ("", [("f", arguments)]), text


def test_no_arguments_are_given_out_before_the_name_is_known() -> None:
    reader = ToolCallReader(FORMATS["perch"], known=("f",))
    assert reader.feed('<|tool_call|>{"arguments": {"a": 1}, "name": "g"') == []
    text = '{"arguments": {"a": 1}, "name": "g"}'
    assert reader.feed("}") == [InvalidCall("g", '{"a": 1}', "there is no function 'g'; there are f", text)]
    reader = ToolCallReader(FORMATS["perch"], known=("f",), new_id=lambda: "id")
    assert reader.feed('<|tool_call|>{"arguments": {"a": 1}, "name": "f"') == []
    assert reader.feed("}") == [CallStart(0, "id", "f"), CallArguments(0, '{"a": 1}')]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
        '<|python_tag|>{"name": "f", "parameters": {"a": 1}};{"name": "g", "parameters": {}}<|eom_id|>',
        '[{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}]',
        ' \n{"name": "f", "parameters": {"a": 1}}\n{"name": "g", "parameters": {}}<|eot_id|>',
        '{"type": "function", "name": "f", "parameters": {"a": 1}}, {"name": "g", "arguments": {}}',
        '{"name": "f", "parameters": {"a": 1}} <|python_tag|> {"name": "g", "parameters": {}}',
    ],
)
def test_llama_separates_calls_in_many_ways(text: str) -> None:
    assert content_and_calls("llama3", text) == ("", [("f", '{"a": 1}'), ("g", "{}")])


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada", "age": 36}',
        '{"name": "Ada"}',
        '{"name": "get_weather"}',
        '[{"name": "Ada"}, {"name": "Grace"}]',
        '["name"]',
        '{"name": {"first": "Ada"}, "parameters": {}}',
        '<|python_tag|>print("hello")',
        '; {"name": "f", "parameters": {}}',
    ],
)
def test_llama_may_answer_in_json(text: str) -> None:
    assert content_and_calls("llama3", text) == (text, [])


def test_an_answer_in_json_is_given_out_as_soon_as_it_is_no_call() -> None:
    reader = ToolCallReader(FORMATS["llama3"])
    assert reader.feed('{"items": [') == [Content('{"items": [')]


@pytest.mark.parametrize("name", ["mistral", "mistral-args"])
@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]</s>',
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "123456789"}, {"name": "g", "arguments": {}}]',
        '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}</s>',
        '[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}',
        '[TOOL_CALLS]f{"a": 1}\n[TOOL_CALLS] g {}',
        '[TOOL_CALLS] {"name": "f", "arguments": {"a": 1}} [TOOL_CALLS] {"name": "g", "arguments": {}}',
    ],
)
def test_mistral_has_old_and_new_forms(name: str, text: str) -> None:
    assert content_and_calls(name, text) == ("", [("f", '{"a": 1}'), ("g", "{}")])


def test_deltas_come_as_soon_as_they_are_certain() -> None:
    reader = ToolCallReader(FORMATS["hermes"], new_id=lambda: "id")
    fed: list[tuple[str, list[Delta]]] = [
        ("Hi", [Content("Hi")]),
        (" ", []),
        ("you ", [Content(" you")]),
        ("<tool", []),
        ("_call>\n{", []),
        ('"name": "f', []),
        ('", "arguments": {', []),
        ('"ci', [CallStart(0, "id", "f"), CallArguments(0, '{"ci')]),
        ("ty", [CallArguments(0, "ty")]),
        ('": "Ber\\', [CallArguments(0, '": "Ber\\')]),
        ('"gen"}}\n</tool_call', [CallArguments(0, '"gen"}')]),
        (">\n", []),
        ("Bye", [Content("\nBye")]),
    ]
    for text, deltas in fed:
        assert reader.feed(text) == deltas
    assert reader.finish() == []
    assert reader.num_calls == 1


def test_ids_are_new_and_as_templates_take_them() -> None:
    for name, length in (("hermes", None), ("mistral", 9), ("mistral-args", 9)):
        text = write(FORMATS[name], *[("f", EMPTY)] * 20)
        ids = [call.id for call in read_answer(text, FORMATS[name]).calls]
        assert len(set(ids)) == 20
        assert all(call_id.isalnum() and len(call_id) == length for call_id in ids if length)
        assert all(call_id.startswith("call_") for call_id in ids if not length)


def test_whole_answer() -> None:
    answer = read_answer("Hm. " + write(FORMATS["perch"], ("f", WEATHER)), FORMATS["perch"], new_id=lambda: "id")
    assert answer.content == "Hm."
    assert answer.calls == [("id", "f", WEATHER)]


def test_no_marker_is_the_beginning_of_another() -> None:
    for tool_format in FORMATS.values():
        for one, other in itertools.permutations(tool_format.markers, 2):
            assert not other.startswith(one)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
call_lists = st.lists(
    st.tuples(
        st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True),
        st.builds(
            lambda value, ascii_only, indent: json.dumps(value, ensure_ascii=ascii_only, indent=indent),
            st.dictionaries(st.text(max_size=6), json_values, max_size=3),
            st.booleans(),
            st.sampled_from([None, 0, 2]),
        ),
    ),
    min_size=1,
    max_size=3,
)


def cut(text: str, places: list[float]) -> list[str]:
    ends = sorted(round(place * len(text)) for place in places)
    return [text[begin:end] for begin, end in itertools.pairwise([0, *ends, len(text)])]


places = st.lists(st.floats(0, 1), max_size=12)


@examples(300)
@given(name=st.sampled_from(list(FORMATS)), calls=call_lists, places=places)
def test_any_calls_are_read_exactly(name: str, calls: list[tuple[str, str]], places: list[float]) -> None:
    text = write(FORMATS[name], *calls)
    content, found = read(name, cut(text, places))
    assert content == ""
    assert [(function, arguments) for _, function, arguments in found] == calls


fragments = st.sampled_from(
    [marker for tool_format in FORMATS.values() for marker in tool_format.markers]
    + [
        '{"name": "f", ',
        '"arguments": ',
        '{"a": "',
        "{}",
        "}",
        '"',
        "\\",
        "[",
        "]",
        ", ",
        "; ",
        "\n",
        " ",
        "f",
        "(",
        ")",
        "'",
        '{"nom": ',
        "å",
        "<",
    ]
    + [write(tool_format, ("f", WEATHER)) for tool_format in FORMATS.values()]
)


@examples(1000)
@given(
    name=st.sampled_from(list(FORMATS)),
    parts=st.lists(fragments, max_size=12),
    places=places,
    known=st.sampled_from([None, ("f", "g"), ("fly",)]),
)
def test_how_an_answer_is_cut_makes_no_difference(
    name: str, parts: list[str], places: list[float], known: tuple[str, ...] | None
) -> None:
    text = "".join(parts)

    def answer(pieces: Iterable[str]) -> ParsedAnswer:
        reader = ToolCallReader(FORMATS[name], known=known, new_id=lambda: "id")
        return joined([*(delta for piece in pieces for delta in reader.feed(piece)), *reader.finish()])

    whole = answer([text])
    assert answer(cut(text, places)) == whole
    assert answer(text) == whole
    if not whole.calls and FORMATS[name].start not in text:
        assert whole.content == text


@examples(500)
@given(name=st.sampled_from(list(FORMATS)), parts=st.lists(fragments, max_size=12))
def test_only_what_writes_a_call_is_left_out(name: str, parts: list[str]) -> None:
    """What is given out is part of the text, in its order."""
    text = "".join(parts)
    reader = ToolCallReader(FORMATS[name])
    at = 0
    for delta in reader.feed(text) + reader.finish():
        given_out = delta.name if isinstance(delta, CallStart) else delta.text
        # An object without arguments has them written for it.
        if given_out == "{}" and given_out not in text[at:]:
            continue
        at = text.index(given_out, at) + (0 if isinstance(delta, CallStart) else len(given_out))


@examples(1000)
@given(name=st.sampled_from(list(FORMATS)), parts=st.lists(fragments, max_size=12))
def test_nothing_is_lost_but_markers_brackets_and_space(name: str, parts: list[str]) -> None:
    """Where there is no call, the content and the invalid calls are the whole text but for what is around calls."""
    text = "".join(parts)
    reader = ToolCallReader(FORMATS[name])
    deltas = reader.feed(text) + reader.finish()
    if reader.num_calls:
        return
    given_out = [delta.text for delta in deltas if isinstance(delta, (Content, InvalidCall))]
    assert len(given_out) == len(deltas)
    if not reader.num_invalid_calls:
        assert "".join(given_out) == text
        return
    around = [*map(re.escape, (FORMATS[name].start, *FORMATS[name].closers)), r"[ \n\[\]},;]"]
    gap = f"(?:{'|'.join(around)})*"
    assert re.fullmatch(gap + "".join(re.escape(one) + gap for one in given_out), text)


@every_format
def test_long_answers_are_read_in_time(name: str) -> None:
    tool_format = FORMATS[name]
    size = 30_000
    long = f'{{"text": "{"x" * size}"}}'
    for text in (
        tool_format.start[:-1] * (size // 10),
        tool_format.start * (size // 10),
        " " * size,
        "[{" * size,
        write(tool_format, ("f", long)),
        tool_format.start + '{"arguments": ' + long,
        tool_format.start + '{"a":' * (size // 5),
        tool_format.start + '{"name": "f", "arguments": {"a": {' + "'" * size,
        tool_format.start + "words " * (size // 5),
        (tool_format.start + " words ") * (size // 10),
        (tool_format.start + '{"a": 1}') * (size // 10),
        (tool_format.start + '{"arguments": {') * (size // 20),
        (tool_format.start + '{"a" "') * (size // 20),
        write(tool_format, *[("f", '{"a": [[[[]]]]}')] * (size // 50)),
        tool_format.start + '{"arguments": ' + "[" * size + "]" * size + ', "name": "f"}',
    ):
        begin = time.thread_time()  # Other processes do not lengthen it.
        content, calls = read(name, text)
        assert time.thread_time() - begin < 5
        assert calls or content == text or tool_format.start in text
