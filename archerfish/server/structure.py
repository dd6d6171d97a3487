"""`response_format`, as the engine takes it."""

import json

from archerfish.request import Structured
from archerfish.server.bodies.common import (
    ChoiceFormat,
    GrammarFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    RegexFormat,
    ResponseFormat,
)


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
