"""Grammars of whole answers: forms, calls and reasoning take right tokens in the right order, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from archerfish.api.bodies.chat import ChatBody
from archerfish.api.chat import ChatCall
from archerfish.api.model import ServedModel, usual_tool_format
from archerfish.api.reasoning import FORMATS
from archerfish.box import models_in_box
from archerfish.engine.input_processor import InputProcessor
from archerfish.request import Structured
from archerfish.sampling.grammar_compiler import as_lark, compile_grammar, load_vocabulary
from archerfish.tokenizer import Tokenizer
from tests.api.thinking import DEEPSEEK, thinking_model

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
FORMS: dict[str, tuple[Structured, str, str]] = {
    "regex": (Structured(regex='a/b\\/c[/"]\n+\\d'), 'a/b/c"\n\n4', "a/b/c/4"),
    "choice": (Structured(choice=("red", 'gr"een')), 'gr"een', "green"),
    "json_schema": (Structured(json_schema='{"type": "integer"}'), "12", '"a"'),
    "json_object": (Structured(json_object=True), '{"a": 1}', "[1]"),
    "lark": (Structured(grammar='start: word "."\nword: /[a-z]+/'), "abc.", "abc"),
    "gbnf": (Structured(grammar='root ::= "a" b\nb ::= [0-9]+'), "a1", "b1"),
}


@pytest.fixture(scope="module")
def perch() -> ServedModel:
    tokenizer = Tokenizer.load(Path(models_in_box()["perch"]))
    processor = InputProcessor(tokenizer, tokenizer.vocab_size, 1024, lambda: 0.0)
    return ServedModel(("perch",), processor, {}, usual_tool_format("llama", tokenizer))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return thinking_model(tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return thinking_model(tmp_path_factory.mktemp("deepseek"), DEEPSEEK)


def constraint_of(model: ServedModel, **fields: Any) -> Structured | None:
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": "Hi"}], **fields})
    return ChatCall(model, body).inputs.params.structured


def takes(model: ServedModel, structured: Structured | None, text: str) -> bool:
    """Whether an answer may be this text and end there."""
    assert structured is not None
    tokenizer = model.processor.tokenizer
    assert tokenizer is not None
    matcher = compile_grammar(structured, load_vocabulary(tokenizer.to_json(), tokenizer.vocab_size, [1]))
    for token in tokenizer.encode(text, add_special_tokens=False):
        matcher.consume_token(token)
        if matcher.is_error():
            return False
    return matcher.is_accepting()


@pytest.mark.parametrize(("form", "good", "bad"), FORMS.values(), ids=FORMS)
def test_a_form_within_a_grammar_takes_the_same_texts(
    perch: ServedModel, form: Structured, good: str, bad: str
) -> None:
    for one in (form, Structured(grammar=as_lark(form))):
        assert takes(perch, one, good) and not takes(perch, one, bad)


def test_without_tools_and_reasoning_a_form_stays_as_it_is(perch: ServedModel) -> None:
    assert constraint_of(perch, structured_outputs={"regex": "a+"}) == Structured(regex="a+")
    assert constraint_of(perch) is None


@pytest.mark.parametrize(("form", "good", "bad"), FORMS.values(), ids=FORMS)
def test_a_form_holds_behind_reasoning_alone(
    qwen: ServedModel, deepseek: ServedModel, form: Structured, good: str, bad: str
) -> None:
    names = {"json_schema": "json"}
    value: Any = getattr(form, form.given)
    value = list(value) if form.given == "choice" else value
    fields = {"structured_outputs": {names.get(form.given, form.given): value}}
    wanted = constraint_of(qwen, **fields)
    assert takes(qwen, wanted, good) and not takes(qwen, wanted, bad)
    assert takes(qwen, wanted, f"<think>Well, {bad}: ?</think>\n\n{good}")
    assert not takes(qwen, wanted, f"<think>Well.</think>{bad}")
    assert not takes(qwen, wanted, f"<think>{good}")
    wanted = constraint_of(deepseek, **fields)
    assert takes(deepseek, wanted, f"Well, {bad}: ?</think>\n\n{good}")
    assert not takes(deepseek, wanted, f"Well.</think>{bad}") and not takes(deepseek, wanted, good)


def test_without_thinking_the_form_begins_at_once(qwen: ServedModel) -> None:
    fields = {"guided_regex": "a+", "chat_template_kwargs": {"enable_thinking": False}}
    assert constraint_of(qwen, **fields) == Structured(regex="a+")


def test_a_tag_that_is_several_tokens(perch: ServedModel) -> None:
    """Where a tokenizer does not know a tag, its text is looked for."""
    model = ServedModel(("perch",), perch.processor, {}, None, FORMATS["deepseek_r1"])
    wanted = constraint_of(model, guided_regex="a+")
    assert takes(model, wanted, "Let me <th see</think> aaa") and not takes(model, wanted, "Let me see</think>b")


def test_reasoning_ends_within_its_budget(qwen: ServedModel, deepseek: ServedModel) -> None:
    wanted = constraint_of(qwen, thinking_token_budget=3)
    for text in ("Hello there, you.", "<think></think>Hello.", "<think> a b c</think> Any words at all </think>"):
        assert takes(qwen, wanted, text), text
    assert not takes(qwen, wanted, "<think> a b c d</think>Hello.")
    wanted = constraint_of(deepseek, thinking_token_budget=3, guided_regex="[0-9]")
    assert takes(deepseek, wanted, " a b c</think>4") and not takes(deepseek, wanted, " a b c d</think>4")


def tools(**more: object) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {**WEATHER, **more}}]}


def test_tools_leave_an_answer_free(perch: ServedModel) -> None:
    assert constraint_of(perch, **tools()) is None


def test_strict_tools_hold_wherever_a_call_begins(perch: ServedModel) -> None:
    call = '<|tool_call|>{"name": "get_weather", "arguments": {"city": "Rome"}}'
    wanted = constraint_of(perch, **tools(strict=True))
    for text in ("", "Hello, {you}!", call, f"I will look. {call}{call}", f"{call} Done."):
        assert takes(perch, wanted, text), text
    for text in (call.replace("get_weather", "GetWeather"), call.replace('"Rome"', "7"), "Oh <|tool_call|>you"):
        assert not takes(perch, wanted, text), text
    single = constraint_of(perch, **tools(strict=True), parallel_tool_calls=False)
    assert takes(perch, single, f"Well. {call} Yes.") and not takes(perch, single, call + call)


def test_with_tools_an_answer_is_a_call_or_has_the_form(perch: ServedModel) -> None:
    call = '<|tool_call|>{"name": "get_weather", "arguments": {"city": "Rome"}}'
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    wanted = constraint_of(perch, **tools(), response_format=schema)
    assert takes(perch, wanted, '{"a": 1}') and takes(perch, wanted, call)
    assert not takes(perch, wanted, "Hello") and not takes(perch, wanted, f'{{"a": 1}}{call}')
    required = constraint_of(perch, **tools(), response_format=schema, tool_choice="required")
    assert takes(perch, required, call) and not takes(perch, required, '{"a": 1}')
