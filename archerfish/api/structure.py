"""Merges all fields of a body that can define a grammar into one."""

import json
from collections.abc import Mapping
from typing import Any

from archerfish.api.bodies.common import (
    ChoiceFormat,
    GenerationBody,
    GrammarFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    RegexFormat,
    ResponseFormat,
    StructuralTagFormat,
    StructuredOutputs,
)
from archerfish.errors import InvalidParameter
from archerfish.request import Structured
from archerfish.structured_outputs import StructuredOutputsParams

_OUTPUTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def structured(
    body: GenerationBody, wanted: ResponseFormat | None = None, *, field: str = "response_format"
) -> Structured | None:
    """Return the grammar of the answer; None if it is free. `wanted` is the value of the endpoint's own field."""
    given_grammars: dict[str, Structured] = {}
    if wanted is not None and (grammar := _of_format(wanted)) is not None:
        given_grammars[field] = grammar
    if body.structured_outputs is not None:
        given_grammars["structured_outputs"] = _of_outputs(body.structured_outputs)
    if body.guided_json is not None:
        given_grammars["guided_json"] = Structured(json_schema=_schema("guided_json", body.guided_json))
    if body.guided_regex is not None:
        given_grammars["guided_regex"] = Structured(regex=body.guided_regex)
    if body.guided_choice is not None:
        given_grammars["guided_choice"] = Structured(choice=tuple(body.guided_choice))
    if body.guided_grammar is not None:
        given_grammars["guided_grammar"] = Structured(grammar=body.guided_grammar)
    if len(given_grammars) > 1:
        first, second, *_ = given_grammars
        raise InvalidParameter(second, "...", f"{first} already says what the answer must be; give one of them")
    return next(iter(given_grammars.values()), None)


def _of_format(wanted: ResponseFormat) -> Structured | None:
    match wanted:
        case JsonSchemaFormat():
            return Structured(json_schema=json.dumps(wanted.json_schema.schema_))
        case JsonObjectFormat():
            return Structured(json_object=True)
        case RegexFormat():
            return Structured(regex=wanted.regex)
        case ChoiceFormat():
            return Structured(choice=tuple(wanted.choice))
        case GrammarFormat():
            return Structured(grammar=wanted.grammar)
        case StructuralTagFormat():
            return Structured(structural_tag=json.dumps(wanted.model_dump(by_alias=True)))
    return None


def _of_outputs(given: StructuredOutputs) -> Structured:
    values = given.model_dump(by_alias=True)
    names = [name for name in _OUTPUTS if values[name] not in (None, False)]
    if len(names) != 1:
        allowed = f"give exactly one of {', '.join(_OUTPUTS[:-1])} and {_OUTPUTS[-1]}"
        raise InvalidParameter("structured_outputs", ", ".join(names) or "{}", allowed)
    if given.json_ is not None:
        values["json"] = _schema("structured_outputs.json", given.json_)
    elif given.disable_additional_properties:
        raise InvalidParameter("structured_outputs.disable_additional_properties", True, "it belongs to json")
    return StructuredOutputsParams(**values).structured


def _schema(field: str, schema: Mapping[str, Any] | str) -> str:
    """A schema as text."""
    if not isinstance(schema, str):
        return json.dumps(schema)
    try:
        value = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter(field, "...", f"it is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidParameter(field, schema, 'it must be a JSON schema, as {"type": "object"}')
    return schema
