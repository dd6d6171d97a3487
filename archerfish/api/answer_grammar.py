"""What an answer must match: the body's response format, calls and the reasoning before both, as one grammar."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

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
from archerfish.api.reasoning import TagIds
from archerfish.api.tool_use import ToolUse
from archerfish.errors import InvalidParameter
from archerfish.request import Structured
from archerfish.sampling.grammar_compiler import as_lark
from archerfish.structured_outputs import StructuredOutputsParams

_OUTPUTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

_SPACE = r"/[ \t\r\n]{0,8}/"
"""Between reasoning and what follows it."""


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


class ReasoningPrefix(NamedTuple):
    """The reasoning that an answer may begin with."""

    start_tag: str
    end_tag: str
    tags: TagIds
    is_open: bool
    """Whether the answer begins within it."""
    max_tokens: int | None = None


def constraint(tools: ToolUse, structured: Structured | None, thought: ReasoningPrefix | None) -> Structured | None:
    """Return the grammar of a whole answer; None if it is free."""
    grammar: str | None = None
    if tools.is_required:
        grammar = tools.calls
    elif tools.calls is not None and tools.marker is not None:
        words = _among_words(tools.calls, tools.marker, parallel=tools.parallel)
        grammar = words if structured is None else _either(_lark(structured), tools.calls)
    elif thought is None:
        return structured
    elif structured is not None:
        grammar = _lark(structured)
    if thought is not None and (grammar is not None or thought.max_tokens is not None):
        grammar = _behind_thought(thought, grammar)
    return None if grammar is None else Structured(grammar=grammar)


def _lark(structured: Structured) -> str:
    try:
        return as_lark(structured)
    except ValueError as error:
        raise InvalidParameter(structured.given, "...", str(error)) from error


def _either(first: str, second: str) -> str:
    """One of two grammars."""
    return _grammar("first | second", [_nested("first", first), _nested("second", second)])


def _among_words(calls: str, marker: int, *, parallel: bool) -> str:
    """Any tokens, but calls as the grammar has them wherever the marker comes, which each begins with."""
    repeated = "*" if parallel else "?"
    words = f"words: <[^{marker}]>*"
    return _grammar(f"words (calls words){repeated}", [words, _nested("calls", calls)])


def _behind_thought(thought: ReasoningPrefix, grammar: str | None) -> str:
    """Reasoning, which is free, and then what the grammar says; None says nothing."""
    start, end = thought.tags.start, thought.tags.end
    rules = []
    if end is None:
        # All text up to the tag, and the tag.
        rules.append(f'thought[suffix="{thought.end_tag}"]: /(?s:.*)/')
    elif thought.max_tokens is None:
        rules += ["thought: inner end", f"inner: <[^{end}]>*", f"end: <[{end}]>"]
    else:
        rules += ["thought: inner end", f"inner[max_tokens={thought.max_tokens}]: /(?s:.*)/", f"end: <[{end}]>"]
    if grammar is None:
        assert start is not None, "a limit needs tags that are tokens"
        rules.append(f"rest: <[^{start}]>*")
    else:
        rules += ["rest: space answer", f"space: {_SPACE}", _nested("answer", grammar)]
    opening = f'"{thought.start_tag}"' if start is None else f"<[{start}]>"
    if thought.is_open:
        # Some models write the tag although they need not.
        return _grammar("thought rest", rules)
    alone = "rest" if grammar is None else "answer"
    return _grammar(f"{alone} | {opening} thought rest", rules)


def _grammar(start: str, rules: Iterable[str]) -> str:
    return "\n".join(["%llguidance {}", f"start: {start}", *rules]) + "\n"


def _nested(name: str, grammar: str) -> str:
    return f"{name}: %lark {{\n{grammar}\n}}"
