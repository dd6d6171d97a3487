"""Structural tags: free text, in which what begins like a structure must go on like one."""

import json
from typing import Any

import pytest

from archerfish.box import models_in_box
from archerfish.errors import InvalidParameter
from archerfish.request import Structured
from archerfish.sampling.grammar_compiler import as_lark, compile_grammar, load_vocabulary
from archerfish.sampling.grammar_sandbox import GrammarSandbox
from archerfish.tokenizer import Tokenizer

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TAG = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=one>", "schema": SCHEMA, "end": "</f>"},
        {"begin": "<f=two>", "schema": {"enum": [1, 2]}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(models_in_box()["perch"])


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ("No structure at all.", True),
        ('First <f=one>{"a": 5}</f> and then <f=two>2</f> more text.', True),
        ('<f=one>{"a": "five"}</f>', False),
        ("<f=two>3</f>", False),
        ("<f=three>1</f>", False),
        ("<f=two>2 and no end", False),
        ("<g> is not a trigger", True),
    ],
)
def test_what_begins_like_a_structure_goes_on_like_one(tokenizer: Tokenizer, text: str, is_allowed: bool) -> None:
    vocabulary = load_vocabulary(tokenizer.to_json(), tokenizer.vocab_size, [tokenizer.eos_token_id or 0])
    matcher = compile_grammar(Structured(structural_tag=json.dumps(TAG)), vocabulary)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert (matcher.try_consume_tokens(token_ids) == len(token_ids)) == is_allowed


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({}, "structures"),
        ([], "structures"),
        ({"triggers": [], "structures": []}, "at least one structure"),
        ({"triggers": ["<g"], "structures": TAG["structures"]}, "no trigger is the start of '<f=one>'"),
        ({"triggers": [""], "structures": TAG["structures"]}, "no trigger is the start of '<f=one>'"),
        ({"triggers": ["<f"], "structures": [{"begin": "<f>"}]}, "begin, schema and end"),
        ({"triggers": ["<f"], "structures": [{"begin": "<f>", "schema": {"type": "x"}, "end": ""}]}, "x"),
        ({"triggers": 5, "structures": 5}, "structures"),
        ({"format": {"type": "triggered_tags"}}, "structures"),
    ],
)
def test_what_is_no_structural_tag_is_refused_before_anything_is_written(
    tokenizer: Tokenizer, value: Any, says: str
) -> None:
    with pytest.raises(InvalidParameter, match=says) as caught:
        GrammarSandbox(tokenizer, tokenizer.vocab_size).check(Structured(structural_tag=json.dumps(value)))
    assert caught.value.name == "structural_tag"


def test_what_is_not_json_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidParameter):
        GrammarSandbox(tokenizer, tokenizer.vocab_size).check(Structured(structural_tag="{"))


@pytest.mark.parametrize(("text", "is_allowed"), [("So: a <f=two>2</f>", True), ("So: <f=two>3</f>", False)])
def test_it_may_be_a_part_of_a_larger_grammar(tokenizer: Tokenizer, text: str, is_allowed: bool) -> None:
    """Behind reasoning, or as an alternative to calls."""
    part = as_lark(Structured(structural_tag=json.dumps(TAG)))
    grammar = f'%llguidance {{}}\nstart: "So: " answer\nanswer: %lark {{\n{part}\n}}\n'
    vocabulary = load_vocabulary(tokenizer.to_json(), tokenizer.vocab_size, [tokenizer.eos_token_id or 0])
    matcher = compile_grammar(Structured(grammar=grammar), vocabulary)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert (matcher.try_consume_tokens(token_ids) == len(token_ids)) == is_allowed


def test_a_schema_in_lark_cannot_be_a_part_of_a_larger_grammar() -> None:
    structures = [{"begin": "<f>", "schema": 'start: "a"', "end": ""}]
    tag = Structured(structural_tag=json.dumps({"triggers": ["<f"], "structures": structures}))
    with pytest.raises(ValueError, match="each schema of a structural tag must be a JSON schema"):
        as_lark(tag)
