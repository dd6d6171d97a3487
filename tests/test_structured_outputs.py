"""Forms of answers under vLLM's names, and everything that a schema may be given as."""

import json

import pytest
from pydantic import BaseModel

from archerfish.errors import InvalidParameter
from archerfish.structured_outputs import GuidedDecodingParams, Structured, StructuredOutputsParams


class Car(BaseModel):
    brand: str
    year: int


SCHEMA = Car.model_json_schema()


@pytest.mark.parametrize("given", [SCHEMA, json.dumps(SCHEMA), Car], ids=["dictionary", "text", "pydantic"])
def test_a_schema_may_be_a_dictionary_a_text_or_a_pydantic_model(given):
    for structured in (StructuredOutputsParams(json=given).structured, Structured(json_schema=given)):
        assert json.loads(structured.json_schema) == SCHEMA


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"choice": ["a", "b"]}, {"choice": ("a", "b")}),
        ({"grammar": "start: A"}, {"grammar": "start: A"}),
        ({"json_object": True}, {"json_object": True}),
        ({"regex": "a", "disable_any_whitespace": True}, {"regex": "a"}),
        ({"structural_tag": {"triggers": []}}, {"structural_tag": '{"triggers": []}'}),
    ],
)
@pytest.mark.parametrize("kind", [StructuredOutputsParams, GuidedDecodingParams])
def test_each_form_of_vllm_is_one_of_ours(kind, given, wanted):
    assert kind(**given).structured == Structured(**wanted)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "structured"),
        ({"regex": "a", "choice": ["b"]}, "structured"),
        ({"json_object": False}, "structured"),
        ({"json": 5}, "json"),
        ({"json": {"a": object()}}, "json"),
        ({"json": [1]}, "json"),
        ({"choice": "ab"}, "choice"),
        ({"choice": [1]}, "choice"),
        ({"regex": 5}, "regex"),
        ({"regex": "a", "whitespace_pattern": " "}, "whitespace_pattern"),
        ({"regex": "a", "disable_additional_properties": True}, "disable_additional_properties"),
        ({"regex": "a", "disable_any_whitespace": "yes"}, "disable_any_whitespace"),
        ({"json": "{", "disable_additional_properties": True}, "json"),
        ({"regex": "a" * 300_000}, "regex"),
        ({"structural_tag": 5}, "structural_tag"),
    ],
)
def test_what_is_no_form_is_refused_and_named(given, named):
    with pytest.raises(InvalidParameter) as caught:
        StructuredOutputsParams(**given)
    assert caught.value.name == named


def test_other_compilers_of_forms_are_refused():
    assert GuidedDecodingParams(regex="a", backend="auto").structured == Structured(regex="a")
    with pytest.raises(InvalidParameter, match="llguidance"):
        GuidedDecodingParams(regex="a", backend="outlines")


def test_objects_are_closed_where_that_is_asked_for_and_nowhere_else():
    schema = {
        "type": "object",
        # A property may be called like a keyword.
        "properties": {"properties": {"type": "object", "properties": {"a": {}}}, "open": {"type": "object"}},
        "$defs": {"b": {"properties": {"c": {}}, "additionalProperties": True}},
        "default": {"properties": {}},
        "anyOf": [{"properties": {"d": {}}}],
    }
    closed = json.loads(StructuredOutputsParams(json=schema, disable_additional_properties=True).structured.json_schema)
    assert closed == {
        "type": "object",
        "properties": {
            "properties": {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
            "open": {"type": "object"},
        },
        "$defs": {"b": {"properties": {"c": {}}, "additionalProperties": True}},
        "default": {"properties": {}},
        "anyOf": [{"properties": {"d": {}}, "additionalProperties": False}],
        "additionalProperties": False,
    }
