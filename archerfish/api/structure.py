"""`response_format`, as the engine takes it."""

import json

from archerfish.api.bodies.common import (
    ChoiceFormat,
    GrammarFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    RegexFormat,
    ResponseFormat,
)
from archerfish.request import Structured


def structured(wanted: ResponseFormat | None) -> Structured | None:
    """What the answer must look like; None if it is free."""
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
    return None
