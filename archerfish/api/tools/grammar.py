"""Grammars of calls in a model's own format, for llguidance."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from archerfish.api.tools.formats import ToolFormat
from archerfish.api.tools.functions import ToolChoicePolicy

# Nearly all models write one space or none; freely placed space would let one write nothing else for ever.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}

_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}

_ONLY_NAMES_PROPERTIES = {"type", "properties", "required", "title", "description", "$defs", "definitions", "$schema"}
"""A schema with nothing else says all about its properties in one place."""


def grammar_for(
    tool_format: ToolFormat,
    tools: Sequence[Mapping[str, Any]],
    choice: ToolChoicePolicy,
    parallel: bool,
    token_ids: Mapping[str, int],
) -> str | None:
    """A grammar (llguidance's Lark) of an answer that is calls and nothing else; None where nothing may be called.

    `tools` and `choice` have passed `check_tools`. `token_ids` are the tokens that the tokenizer has for markers of the
    format, special or not; the others are written as text. A marker that is a token can only be asked for by its id:
    llguidance does not take such tokens for their text.

    Arguments match the function's schema. A function that is `strict` has every word of its schema enforced, and the
    grammar does not compile where that cannot be done; of others, words that llguidance does not know are left out.
    """
    if choice.mode == "none":
        return None
    functions = [tool["function"] for tool in tools if tool["function"]["name"] in choice.functions]
    assert functions, "a choice always has functions"

    def text(written: str) -> str:
        return _text(written, tool_format.markers, token_ids)

    opening = " | ".join(text(opening) for opening in tool_format.openings)
    # Naming one function asks for one call of it.
    more = f" ({text(tool_format.between)} call)*" if parallel and choice.mode != "function" else ""
    lines = [
        "%llguidance {}",
        f"start: ({opening}) call{more} {text(tool_format.ending)}",
        "call: " + " | ".join(f"function_{index}" for index in range(len(functions))),
    ]
    for index, function in enumerate(functions):
        before, _, after = tool_format.call.replace("$name", function["name"]).partition("$arguments")
        lines.append(f"function_{index}: {text(before)} arguments_{index} {text(after)}")
        lines.append(f"arguments_{index}: %json {json.dumps(_schema(function))}")
    return "\n".join(lines) + "\n"


def _text(written: str, markers: Sequence[str], token_ids: Mapping[str, int]) -> str:
    """A text in Lark: markers that are tokens by their ids, the rest in quotes."""
    tokens = [re.escape(marker) for marker in markers if marker in token_ids]
    parts = re.split(f"({'|'.join(tokens)})", written) if tokens else [written]
    # Split by a group, markers stand at every second place.
    words = [f"<[{token_ids[part]}]>" if at % 2 else json.dumps(part) for at, part in enumerate(parts) if part]
    return " ".join(words) or '""'


def _schema(function: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", **(function.get("parameters") or _NO_PARAMETERS)}
    properties = schema.get("properties", {})
    says_all = schema.keys() <= _ONLY_NAMES_PROPERTIES and properties.keys() >= set(schema.get("required", ()))
    if properties and says_all:
        # Allowed by the letter of JSON schema, but no function has arguments that it does not list.
        schema["additionalProperties"] = False
    return {**schema, "x-guidance": {**_LAYOUT, "lenient": not function.get("strict")}}
