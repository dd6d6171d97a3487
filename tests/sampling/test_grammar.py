"""Answers keep to the form that was asked for, whatever is drawn, and nobody else's change."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish import LLM, SamplingParams
from archerfish.errors import InvalidParameter
from archerfish.request import Structured
from archerfish.sampling.grammar_sandbox import check_structured
from tests.lanes import examples

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
PERSON = Structured(json_schema=json.dumps(SCHEMA))


@pytest.fixture(scope="module")
def perch() -> Iterator[LLM]:
    with LLM(dtype="float32", threads=1, max_num_seqs=8) as llm:
        yield llm


def texts(llm: LLM, *params: SamplingParams) -> list[str]:
    outputs = llm.generate(["Once upon a time"] * len(params), list(params), progress=False)
    for output in outputs:
        assert output.outputs[0].finish_reason == "stop", output.outputs[0]
    return [output.outputs[0].text for output in outputs]


def bound(structured: Structured, **more: Any) -> SamplingParams:
    return SamplingParams(**{"structured": structured, "max_tokens": 200, "temperature": 1.0, "seed": 1, **more})


@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
def test_json_fits_its_schema(perch: LLM, temperature: float) -> None:
    for text in texts(perch, *(bound(PERSON, temperature=temperature, seed=seed) for seed in range(4))):
        value = json.loads(text)
        assert {"name", "age"} <= set(value) <= {"name", "age", "tags"}
        assert len(value["name"]) <= 10 and 0 <= value["age"] <= 120 and set(value.get("tags", [])) <= {"a", "b"}


def test_other_forms(perch: LLM) -> None:
    forms = (
        Structured(regex=r"\d{4}-\d\d"),
        Structured(choice=("red", "green", "blue")),
        Structured(grammar='start: "x" num "y"\nnum: /[0-9]{2,3}/'),
    )
    date, colour, odd = texts(perch, *(bound(form, temperature=1.5) for form in forms))
    assert re.fullmatch(r"\d{4}-\d\d", date) and colour in ("red", "green", "blue") and re.fullmatch(r"x\d{2,3}y", odd)
    [output] = perch.generate("A", bound(Structured(json_object=True), max_tokens=300), progress=False)
    assert output.outputs[0].text.startswith("{")


@examples(15)
@given(st.lists(st.sampled_from(["a", "[bc]", "d?", "(ef|g)", r"\d+", "h{2,3}"]), min_size=1, max_size=4))
def test_any_small_expression_is_matched(perch: LLM, parts: list[str]) -> None:
    expression = "".join(parts)
    [output] = perch.generate("A", bound(Structured(regex=expression), max_tokens=60), progress=False)
    if output.outputs[0].finish_reason == "stop":
        assert re.fullmatch(expression, output.outputs[0].text)


def test_in_company_alone_and_preempted_give_the_same_tokens(perch: LLM) -> None:
    letters = bound(Structured(regex="[a-z ]{300,400}"), max_tokens=90)
    params = [bound(PERSON, max_tokens=100), SamplingParams(max_tokens=90, seed=2, ignore_eos=True), letters]
    prompts = ["Once upon a time", "The sun", "A fox"]

    def tokens(llm: LLM, **more: Any) -> list[list[int]]:
        outputs = llm.generate(prompts, params, progress=False, **more)
        return [output.outputs[0].token_ids for output in outputs]

    together = tokens(perch)
    alone = [
        perch.generate(prompt, one, progress=False)[0].outputs[0].token_ids
        for prompt, one in zip(prompts, params, strict=True)
    ]
    assert together == alone
    small = 7 * 16 * 6 * 2 * 2 * 64 * 4  # Blocks for one of them at a time, hardly more.
    settings_ = {"dtype": "float32", "threads": 1, "max_num_seqs": 3, "max_model_len": 112, "check_invariants": True}
    with LLM(kv_cache_memory_bytes=small, speculative_config={"method": "off"}, **settings_) as tight:
        assert tokens(tight) == together
        assert tight.assembly.engine.scheduler.num_preemptions > 0


def test_several_answers_each_keep_to_it(perch: LLM) -> None:
    [output] = perch.generate("A", bound(PERSON, n=3), progress=False)
    assert len({json.loads(answer.text)["name"] for answer in output.outputs}) > 1


def test_what_cannot_be_fails_alone_with_a_reason(perch: LLM) -> None:
    never = bound(Structured(choice=("no",)), min_tokens=50)
    outputs = perch.generate(["A", "B"], [never, SamplingParams(max_tokens=4)], progress=False)
    assert outputs[0].outputs[0].finish_reason == "error" and "response format" in str(outputs[0].outputs[0].error)
    assert outputs[1].outputs[0].finish_reason in ("length", "stop")


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (Structured(json_schema='{"type": 7}'), "json_schema"),
        (Structured(json_schema="{"), "json_schema"),
        (Structured(regex="(("), "regex"),
        (Structured(grammar="start: nothing"), "grammar"),
    ],
)
def test_a_bad_form_is_refused_and_named(perch: LLM, bad: Structured, named: str) -> None:
    with pytest.raises(InvalidParameter, match=named):
        check_structured(bad)
    with pytest.raises(InvalidParameter, match=named):
        perch.generate("A", SamplingParams(structured=bad))


def test_exactly_one_form() -> None:
    for many in ({}, {"regex": "a", "json_object": True}, {"choice": ("",)}, {"regex": 7}):
        with pytest.raises(InvalidParameter):
            Structured(**many)  # type: ignore[arg-type]
