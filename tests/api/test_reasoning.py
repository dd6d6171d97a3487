"""A name or a chat template gives a format, and reasoning is separated from the answer however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.api.answers import AnswerReader, Content, Delta, ParsedAnswer, Reasoning, joined
from archerfish.api.reasoning import FORMATS, ReasoningReader, choose_format, find_format
from archerfish.api.tool_use import CallingReader
from archerfish.api.tools import FORMATS as TOOL_FORMATS
from archerfish.errors import ConfigError

THINK = FORMATS["think"]


@pytest.mark.parametrize(("name", "found"), [("qwen3", "think"), ("step3", "deepseek_r1"), ("mistral", "mistral")])
def test_names_of_vllm_are_taken(name: str, found: str) -> None:
    assert find_format(name) is FORMATS[found]


def test_none_is_no_format() -> None:
    assert find_format("none") is None


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no reasoning parser 'o1': choose one of think, .*qwen3.*, or none"):
        find_format("o1")


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (None, None),
        ("{{ messages }}", None),
        ("{{ content.split('</think>')[-1] }}", "think"),
        ("[THINK]{{ x }}[/THINK]", "mistral"),
        ("<seed:think></seed:think>", "seed_oss"),
    ],
)
def test_a_template_shows_the_tags(template: str | None, found: str | None) -> None:
    assert choose_format(template) is (None if found is None else FORMATS[found])


def read(pieces: list[str], *, is_open: bool = False, inner: AnswerReader | None = None) -> ParsedAnswer:
    reader = ReasoningReader(THINK, inner or AnswerReader(), is_open=is_open)
    return joined([*(delta for piece in pieces for delta in reader.feed(piece)), *reader.finish()])


@pytest.mark.parametrize("is_open", [False, True])
@given(st.lists(st.sampled_from(["<think>", "</think>", "<thi", "</", "think>", "a", " ", "\n", "b c"])), st.data())
def test_how_the_text_is_cut_makes_no_difference(is_open: bool, parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read([text], is_open=is_open)
    assert read(pieces, is_open=is_open) == whole
    assert read(list(text), is_open=is_open) == whole


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nLet me see.\n</think>\n\nFour.", "Let me see.", "Four."),
        ("\n<think></think>Four.", "", "Four."),
        ("<think>Let me see", "Let me see", ""),
        (" Four. <think>x</think>", "", " Four. <think>x</think>"),
        ("<thin", "", "<thin"),
        ("</think>a", "", "</think>a"),
        ("<think>a</think>b</think> <think>c", "a", "b</think> <think>c"),
        ("", "", ""),
    ],
)
def test_reasoning_that_the_answer_opens(text: str, reasoning: str, content: str) -> None:
    assert read([text]) == ParsedAnswer(content, [], reasoning)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("\nLet me see.\n</think>\n\nFour.", "Let me see.", "Four."),
        ("<think>Let me see.</think>Four.", "Let me see.", "Four."),
        ("Let me see. </thin", "Let me see. </thin", ""),
        ("</think>Four.", "", "Four."),
    ],
)
def test_reasoning_that_the_prompt_opens(text: str, reasoning: str, content: str) -> None:
    assert read([text], is_open=True) == ParsedAnswer(content, [], reasoning)


def test_words_are_given_out_as_they_come() -> None:
    reader = ReasoningReader(THINK, AnswerReader(), is_open=True)
    told: list[list[Delta]] = [reader.feed(piece) for piece in ("One ", "two", " </th", "ink> ", " Three", " ")]
    assert told == [[Reasoning("One")], [Reasoning(" two")], [], [], [Content("Three")], [Content(" ")]]


def test_calls_behind_reasoning_are_calls_and_those_within_are_none() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    answer = read(
        [f"<think>I could {call}</think>\n{call}"], inner=CallingReader(TOOL_FORMATS["hermes"], ("f",), parallel=True)
    )
    assert answer.reasoning == f"I could {call}" and answer.content == ""
    assert [(one.name, one.arguments) for one in answer.calls] == [("f", '{"a": 1}')]
