"""Answers of a given form, judged by others: a validator of JSON schemas, json, re."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from archerfish import LLM, SamplingParams
from archerfish.engine.outputs import CompletionOutput
from archerfish.errors import InvalidParameter
from archerfish.request import Structured
from archerfish.sampling.grammar_sandbox import GrammarSandbox
from tests.checkpoints import CONFIG, write_tokenizer

SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,8}$"},
            "born": {"type": "string", "format": "date"},
            "score": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 20},
            "tags": {"type": "array", "items": {"enum": ["a", "é", 'say "hi"', None, 3]}, "minItems": 1, "maxItems": 3},
        },
        "required": ["name", "born", "tags"],
        "additionalProperties": False,
    },
    {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer", "multipleOf": 5, "maximum": 100, "minimum": 0},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
                },
                "required": ["value"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    },
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"const": {"k": [1]}}], "items": False, "minItems": 2},
    {"anyOf": [{"type": "string", "minLength": 3, "maxLength": 5}, {"type": "integer"}, {"type": "null"}]},
]


@pytest.fixture(scope="module")
def perch() -> Iterator[LLM]:
    with LLM(dtype="float32", threads=1, max_num_seqs=8, check_invariants=True) as llm:
        yield llm


def form(structured: Structured, **more: Any) -> SamplingParams:
    return SamplingParams(**{"structured": structured, "max_tokens": 300, "temperature": 1.0, "seed": 1, **more})


def answers(llm: LLM, *params: SamplingParams, prompt: str = "Once upon a time") -> list[CompletionOutput]:
    outputs = llm.generate([prompt] * len(params), list(params), progress=False)
    return [answer for output in outputs for answer in output.outputs]


@pytest.mark.parametrize("schema", SCHEMAS, ids=["record", "tree", "tuple", "any"])
def test_a_validator_accepts_every_complete_answer(perch: LLM, schema: dict[str, Any]) -> None:
    structured = Structured(json_schema=json.dumps(schema))
    params = [form(structured, temperature=heat, seed=seed) for heat in (0.0, 0.7, 1.5) for seed in range(4)]
    found = answers(perch, *params)
    complete = [answer for answer in found if answer.finish_reason == "stop"]
    assert len(complete) >= len(found) - 2  # At high temperatures one may run out of tokens.
    for answer in complete:
        jsonschema_rs.validate(schema, json.loads(answer.text))


def test_any_object_is_one(perch: LLM) -> None:
    found = answers(perch, *(form(Structured(json_object=True), seed=seed, max_tokens=400) for seed in range(6)))
    complete = [answer.text for answer in found if answer.finish_reason == "stop"]
    assert complete and all(isinstance(json.loads(text), dict) for text in complete)


def test_thousands_of_choices_and_odd_ones(perch: LLM) -> None:
    many = tuple(f"choice number {i}" for i in range(3000))
    odd = ("a", "ab", "abc", 'q"q', "x\ny", "é", "🐟", "a\\b", "/", " ")
    for choice in (many, odd):
        for answer in answers(perch, *(form(Structured(choice=choice), temperature=2.0, seed=i) for i in range(8))):
            assert answer.text in choice and answer.finish_reason == "stop"


def test_grammars_of_lark_and_of_gbnf(perch: LLM) -> None:
    lark = 'start: sum\nsum: product ("+" product)*\nproduct: NUMBER ("*" NUMBER)*\nNUMBER: /[1-9][0-9]?/'
    gbnf = 'root ::= product ("+" product)*\nproduct ::= number ("*" number)*\nnumber ::= [1-9] [0-9]?'
    for grammar in (lark, gbnf):
        for answer in answers(perch, *(form(Structured(grammar=grammar), seed=i) for i in range(4))):
            if answer.finish_reason == "stop":
                assert re.fullmatch(r"[1-9]\d?([+*][1-9]\d?)*", answer.text)


def test_a_chat_ends_its_turn(perch: LLM) -> None:
    params = form(Structured(choice=("yes", "no")), temperature=0.0)
    [output] = perch.chat([{"role": "user", "content": "Is water wet?"}], params, progress=False)
    answer = output.outputs[0]
    assert answer.text in ("yes", "no") and answer.finish_reason == "stop"
    assert answer.token_ids[-1] in perch.assembly.engine.scheduler.limits.eos_token_ids


def test_either_end_token_ends_it(perch: LLM) -> None:
    for end in (0, 1):
        [answer] = answers(perch, form(Structured(choice=("yes",)), logit_bias={end: 100.0}))
        assert answer.text == "yes" and answer.token_ids[-1] == end and answer.finish_reason == "stop"


def test_the_end_can_be_ignored_but_nothing_else_follows(perch: LLM) -> None:
    [answer] = answers(perch, form(Structured(regex="[a-z]{3}"), ignore_eos=True, max_tokens=20))
    assert re.fullmatch("[a-z]{3}", answer.text)
    assert answer.finish_reason == "length" and len(answer.token_ids) == 20


def test_least_length_holds_within_the_form(perch: LLM) -> None:
    for answer in answers(perch, *(form(Structured(regex="[a-z ]*"), min_tokens=30, seed=i) for i in range(4))):
        assert len(answer.token_ids) > 30 and re.fullmatch("[a-z ]*", answer.text)


def test_probabilities_are_the_models_own(perch: LLM) -> None:
    free = answers(perch, SamplingParams(max_tokens=1, logprobs=3, temperature=0.0))[0]
    [bound] = answers(perch, form(Structured(regex="[0-9]{3}"), logprobs=3, temperature=0.0))
    assert free.logprobs is not None and bound.logprobs is not None
    likeliest = free.logprobs[0]
    assert {token: likeliest[token].logprob for token in likeliest} == pytest.approx(
        {token: bound.logprobs[0][token].logprob for token in likeliest}
    )
    assert bound.logprobs[0][bound.token_ids[0]].rank > 1


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No form is tried: a trial foresees those that break soon, and not those that break late."""
    monkeypatch.setattr(GrammarSandbox, "check", lambda _self, _form: None)


@pytest.mark.usefixtures("untried")
def test_a_form_that_cannot_be_followed_to_its_end_fails_and_is_never_taken_for_complete(perch: LLM) -> None:
    """These break while they are written."""
    options = {"properties": {f"k{i}": {"$ref": "#/$defs/n"} for i in range(30)}, "type": "object"}
    forms = [
        Structured(json_schema=json.dumps({"$defs": {"n": {"anyOf": [options] * 30}}, "$ref": "#/$defs/n"})),
        Structured(regex="((a{1000}){1000}){1000}"),
    ]
    *broken, other = answers(perch, *map(form, forms), SamplingParams(max_tokens=4, ignore_eos=True))
    for answer in broken:
        assert answer.finish_reason == "error" and "cannot be followed" in str(answer.error)
    assert other.finish_reason == "length"


@pytest.mark.usefixtures("untried")
def test_broken_rows_are_as_good_as_new_for_the_next(perch: LLM) -> None:
    bad = form(Structured(regex="((a{1000}){1000}){1000}"))
    for _ in range(2):
        assert {answer.finish_reason for answer in answers(perch, *[bad] * 8)} == {"error"}
        assert {answer.text for answer in answers(perch, *[form(Structured(choice=("yes",)))] * 8)} == {"yes"}
        assert {answer.error for answer in answers(perch, *[SamplingParams(max_tokens=3)] * 8)} == {None}


def write_model(directory: Path, **changed: Any) -> str:
    write_tokenizer(directory)
    (directory / "config.json").write_text(json.dumps({**CONFIG, **changed}))
    return str(directory)


@pytest.mark.parametrize("vocab_size", [290, 300, 333])
def test_model_and_tokenizer_need_not_know_equally_many_tokens(tmp_path: Path, vocab_size: int) -> None:
    with LLM(write_model(tmp_path, vocab_size=vocab_size), load_format="dummy", threads=1, max_num_seqs=2) as llm:
        for answer in answers(
            llm, *(form(Structured(regex="[a-z]{3,5}"), seed=i, max_tokens=200) for i in range(4)), prompt="T"
        ):
            assert re.fullmatch("[a-z]{3,5}", answer.text) and answer.finish_reason == "stop"


def test_a_model_without_an_end_token_fails_alone(tmp_path: Path) -> None:
    model = write_model(tmp_path, eos_token_id=None)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with LLM(model, load_format="dummy", threads=1, max_num_seqs=2) as llm:
        bound, free = answers(
            llm, form(Structured(regex="a"), max_tokens=200), SamplingParams(max_tokens=3), prompt="T"
        )
    assert bound.finish_reason == "error" and "no end token" in str(bound.error)
    assert free.finish_reason == "length"


def test_without_a_tokenizer_it_is_refused(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"load_format": "dummy", "skip_tokenizer_init": True, "threads": 1, "max_num_seqs": 2}
    with LLM(write_model(tmp_path), **settings) as llm:
        with pytest.raises(InvalidParameter, match=r"structured.*tokenizer"):
            llm.generate([5, 6], form(Structured(regex="a"), max_tokens=200), progress=False)
        assert llm.generate([5, 6], SamplingParams(max_tokens=2), progress=False)[0].finished
