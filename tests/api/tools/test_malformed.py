"""Calls that a marker announced and that cannot be read are reported, and never shown with their markup."""

import pytest

from archerfish.api.answers import Content, InvalidCall
from archerfish.api.tools import FORMATS, ToolCallReader
from tests.api.tools.texts import EMPTY, WEATHER, announced, content_and_calls, every_format, told, write

NO_OBJECT = "the arguments are not a JSON object"
OBJECTS = ("perch", "hermes", "mistral", "llama3")
"""Formats whose calls are objects with a name and arguments."""


@every_format
def test_a_call_that_is_cut_off_before_its_arguments(name: str) -> None:
    call = announced(name, ("get_weather", "{"))
    # Everything up to what follows the arguments' first bracket.
    end = call.index("{", call.index("get_weather"))
    begin = len(FORMATS[name].start)
    errors = []
    for cut in range(begin, end + 2):
        content, calls, [invalid] = told(name, "Well: " + call[:cut])
        assert (content, calls) == ("Well:", []), call[:cut]
        # The bracket of a list of calls is around them.
        assert invalid.text == call[begin:cut].strip().removeprefix("[").strip()
        assert invalid.name in ("", "get_weather") and invalid.arguments == ""
        errors += [invalid.error] if invalid.error not in errors else []
    parts = ("before its name", "before its arguments", "in its arguments")
    assert errors == [f"the call was cut off {part}" for part in parts]


@every_format
@pytest.mark.parametrize("arguments", ["[1]", "{'a': 1}", "3", "{a: 1}", '"no json"', r'"{\"a\": \"\ud800\"}"'])
def test_arguments_that_are_no_object(name: str, arguments: str) -> None:
    text = announced(name, ("get_weather", arguments))
    behind = f" {FORMATS[name].start}" + announced(name, ("now", EMPTY)).removeprefix(FORMATS[name].start)
    content, calls, [invalid] = told(name, f"Well: {text}{behind} ")
    assert (content, calls) == ("Well:", [("now", EMPTY)])
    assert (invalid.name, invalid.arguments, invalid.error) == ("get_weather", "", NO_OBJECT)
    assert arguments in invalid.text and invalid.text in text


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize(
    ("written", "error"),
    [
        ('{"function": "now", "args": {"a": "}"}}', "a call has no field 'function'; it has name and arguments"),
        ('{"name": "now", "args": {"a": "}"}}', "a call has no field 'args'; it has name and arguments"),
        ('{"name": 3}', "the call is not an object with a name and arguments"),
        ('{"name": {"first": "now"}, "arguments": {}}', "the call is not an object with a name and arguments"),
        ('{"arguments": {"a": 1}}', "the call has no name"),
        ('{"arguments": [1], "name": "now"}', NO_OBJECT),
        ('{"name": "now", "arguments": }', NO_OBJECT),
        ("{name: now}", "the call is not valid JSON"),
        ("{}", "the call is not an object with a name and arguments"),
        ('{"name": "Now!", "arguments": {}}', "there is no function 'Now!'; there are get_weather, now"),
    ],
)
def test_objects_that_are_no_calls(name: str, written: str, error: str) -> None:
    text = FORMATS[name].start + written
    for ending in ("", FORMATS[name].closers[0], " " + FORMATS[name].closers[-1]):
        content, calls, [invalid] = told(name, f"Well: {text}{ending}")
        assert (content, calls, invalid.text, invalid.error) == ("Well:", [], written, error)
    # Words behind it, and calls, are not lost.
    again = FORMATS[name].start + write(FORMATS[name], ("now", EMPTY)).removeprefix(FORMATS[name].start)
    content, calls, [invalid] = told(name, f"{text} Then words. {again}")
    assert (content, calls, invalid.text) == (" Then words.", [("now", EMPTY)], written)


@every_format
def test_a_marker_with_nothing_behind_it(name: str) -> None:
    start, closers = FORMATS[name].start, FORMATS[name].closers
    for text in (f"Well: {start}", f"Well: {start} {start}\n"):
        assert told(name, text) == ("Well:", [], [InvalidCall("", "", "the call was cut off before its name", "")])
    for text in (f"Well: {start}{closers[0]}", f"Well: {start}\n{closers[-1]}\n"):
        assert told(name, text) == ("Well:", [], [InvalidCall("", "", "the call is empty", "")])


@every_format
def test_a_marker_that_is_repeated_announces_one_call(name: str) -> None:
    text = FORMATS[name].start + "\n" + announced(name, ("now", EMPTY))
    assert told(name, text) == ("", [("now", EMPTY)], [])


@every_format
@pytest.mark.parametrize("behind", ["!", " is a marker.", " and `x` {}", ": {now}"])
def test_a_marker_among_words_is_content(name: str, behind: str) -> None:
    text = f"What is {FORMATS[name].start}{behind}"
    assert told(name, text) == (text, [], [])


@every_format
@pytest.mark.parametrize("written", ['get_weather(city="Oslo")', "get-weather", 'getWeather: "Oslo"', "get_wea"])
def test_a_call_in_another_language(name: str, written: str) -> None:
    content, calls, [invalid] = told(name, f"{FORMATS[name].start}{written}")
    assert (content, calls, invalid.text) == ("", [], written)
    assert invalid.error


def test_what_is_between_markers_is_a_call() -> None:
    """Hermes has a marker behind each call."""
    for written in ("fly(1) now", "```json\n{}\n```", "<function=f>\n</function>", '{"a": 1} {"b": 2', '{"a": "x}'):
        content, calls, invalid = told("hermes", f"Yes.\n<tool_call>\n{written}\n</tool_call>\nDone.")
        assert (content, calls) == ("Yes.\nDone.", [])
        assert " ".join(one.text for one in invalid) == written


@pytest.mark.parametrize("name", ["mistral", "mistral-args"])
@pytest.mark.parametrize(
    "written", ["get.weather[ARGS]{}", "get weather[CALL_ID]a[ARGS]{}", "[ARGS]{}", "now[ARGS][1]"]
)
def test_what_has_mistral_s_marker_for_arguments_is_a_call(name: str, written: str) -> None:
    content, calls, [invalid] = told(name, f"[TOOL_CALLS]{written} Words.")
    assert (content, calls, invalid.text) == (" Words.", [], written)


def test_a_malformed_call_in_a_list() -> None:
    begin = '[TOOL_CALLS] [{"name": "now", "arguments": {}}, '
    wrong = "the call is not an object with a name and arguments"
    for rest, text, error in (
        ('{"name": 3}]</s>', '{"name": 3}', wrong),
        ('{"name": 3}, {"name": "now"}]', '{"name": 3}', wrong),
        ("3]", "3", wrong),
        ('{"name": "n', '{"name": "n', "the call was cut off before its name"),
        ('{"name": "now", "argu', '{"name": "now", "argu', "the call was cut off before its arguments"),
    ):
        content, calls, [invalid] = told("mistral", begin + rest)
        assert (content, set(calls), invalid.text, invalid.error) == ("", {("now", EMPTY)}, text, error)
    for rest in ("]</s>", " ]", "", "\n"):
        assert told("mistral", begin + rest) == ("", [("now", EMPTY)], [])


def test_a_call_in_another_that_is_none() -> None:
    inner = write(FORMATS["hermes"], ("now", WEATHER))
    content, calls, [invalid] = told("hermes", f'<tool_call>{{"name": "{inner}')
    assert (content, calls, invalid.text) == ("", [("now", WEATHER)], '{"name": "')


def test_what_cannot_be_read_behind_the_arguments() -> None:
    text = '<tool_call>{"name": "now", "arguments": {"a": 1}, oops: 1}</tool_call>'
    invalid = InvalidCall("now", "", "what follows the arguments is not valid JSON", ", oops: 1}")
    assert told("hermes", text) == ("", [("now", '{"a": 1}')], [invalid])


@every_format
def test_arguments_that_turn_out_to_be_no_json_are_given_out_to_their_end(name: str) -> None:
    arguments = '{"a": 1, \'b\': \'2\', "c": {"d": ["]"}}'
    text = announced(name, ("now", arguments), ("now", EMPTY))
    assert told(name, text) == ("", [("now", arguments), ("now", EMPTY)], [])
    # Where the brackets never close, a marker ends them.
    start = FORMATS[name].start
    begin = announced(name, ("now", '{"a": {\'')).partition("'")[0] + "'b'"
    again = announced(name, ("now", EMPTY))
    assert told(name, begin + (again if again.startswith(start) else start + again)) == (
        "",
        [("now", "{\"a\": {'b'"), ("now", EMPTY)],
        [],
    )


@every_format
@pytest.mark.parametrize("function", ["", "get weather", "get.weather", "x" * 65, "{}"])
def test_what_no_function_can_be_called(name: str, function: str) -> None:
    text = announced(name, (function, WEATHER))
    content, calls = content_and_calls(name, text)
    assert (content, calls) == ("", [])
    content, calls, invalid = told(name, text)
    assert (content, calls) == ("", []) and invalid
    if not FORMATS[name].start.startswith(text[:1]):
        assert content_and_calls(name, text) == (text, [])


def test_without_a_marker_it_is_content() -> None:
    """It may be an answer in JSON."""
    for text in ('{"function": "now"}', '{"name": "now", "parameters": [1]}', '{"name": "now", "para', "[]", "{"):
        assert told("llama3", text) == (text, [], [])


def test_invalid_calls_come_as_soon_as_they_end() -> None:
    reader = ToolCallReader(FORMATS["perch"], known=("now",))
    assert reader.feed('<|tool_call|>{"nom": "now"') == []
    error = "a call has no field 'nom'; it has name and arguments"
    assert reader.feed(f', "arguments": {WEATHER}') == []
    text = f'{{"nom": "now", "arguments": {WEATHER}}}'
    assert reader.feed("} and") == [InvalidCall("", "", error, text), Content(" and")]
    assert (reader.num_calls, reader.num_invalid_calls) == (0, 1)
