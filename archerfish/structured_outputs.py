"""Grammars of answers as plain data: the engine's own class, and vLLM's."""

import json as json_library
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from archerfish.checks import as_tuple, check_bool
from archerfish.errors import InvalidParameter

_MAX_LENGTH = 2**18  # Rules that name one another can nest as deep as the text is long, and compilers descend.
_TEXTS = ("json_schema", "regex", "grammar", "structural_tag")
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords of a JSON schema whose value has a schema for each name."""
_VALUES = ("const", "enum", "default", "examples")
"""Keywords whose value is no schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Structured:
    """What an answer must look like. Exactly one of these is given."""

    json_schema: str | None = None
    """A JSON schema: as JSON, as a dictionary, or as a pydantic model."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    choice: tuple[str, ...] = ()
    """One of these texts."""
    grammar: str | None = None
    """A context-free grammar, as Lark or llama.cpp (GBNF) write them."""
    structural_tag: str | None = None
    """Free text in which each of some beginnings must be followed by JSON of a schema and by an end: a JSON object
    {"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f"]}."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "json_schema", _as_json("json_schema", self.json_schema))
        object.__setattr__(self, "structural_tag", _as_json("structural_tag", self.structural_tag))
        given = [f.name for f in fields(self) if getattr(self, f.name)]
        if len(given) != 1:
            raise InvalidParameter("structured", given, "give exactly one kind of response format")
        check_bool("json_object", self.json_object)
        for name in _TEXTS:
            if not isinstance(getattr(self, name), (str, type(None))):
                raise InvalidParameter(name, getattr(self, name), "it must be a string")
        object.__setattr__(self, "choice", as_tuple("choice", self.choice))
        if not all(isinstance(text, str) and text for text in self.choice):
            raise InvalidParameter("choice", self.choice, "it must be a list of non-empty strings")
        length = sum(map(len, (*(getattr(self, name) or "" for name in _TEXTS), *self.choice)))
        if length > _MAX_LENGTH:
            allowed = f"it must have at most {_MAX_LENGTH} characters"
            raise InvalidParameter(self.given, f"{length} characters", allowed)

    @property
    def given(self) -> str:
        """The name of the one field that is."""
        return next(f.name for f in fields(self) if getattr(self, f.name))


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """The same under the names of vLLM: SamplingParams(structured_outputs=StructuredOutputsParams(json=schema))."""

    json: Any = None
    """A JSON schema: as JSON, as a dictionary, or as a pydantic model."""
    regex: str | None = None
    choice: list[str] | None = None
    """One of these texts."""
    grammar: str | None = None
    """A context-free grammar, as Lark or llama.cpp (GBNF) write them."""
    json_object: bool | None = None
    """Any JSON object."""
    disable_any_whitespace: bool = False
    """Nothing to choose: JSON is always written on one line, with at most a space after a comma and a colon."""
    disable_additional_properties: bool = False
    """Objects of the schema have the properties that it names, and no others."""
    whitespace_pattern: str | None = None
    """Not supported: JSON is written on one line."""
    structural_tag: Any = None
    """Free text with JSON of some schemas behind some beginnings; see Structured."""

    def __post_init__(self) -> None:
        if self.whitespace_pattern is not None:
            allowed = "JSON is always written on one line; leave it out, or write the whole form as a grammar"
            raise InvalidParameter("whitespace_pattern", self.whitespace_pattern, allowed)
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            check_bool(name, getattr(self, name))
        _ = self.structured  # Raises what is wrong with it.

    @classmethod
    def read(cls, name: str, given: object) -> "StructuredOutputsParams":
        """An instance of this, or of its older form, or a dictionary of its fields."""
        if isinstance(given, StructuredOutputsParams):
            return given
        if not isinstance(given, Mapping):
            raise InvalidParameter(name, given, f"it must be {cls.__name__}, or a dictionary of its fields")
        known = [field.name for field in fields(cls)]
        for key, value in given.items():
            if key not in known:
                raise InvalidParameter(f"{name}.{key}", value, f"there is no such field; known are {', '.join(known)}")
        return cls(**given)

    @property
    def structured(self) -> Structured:
        """The same in Archerfish's own words."""
        schema = _as_json("json", self.json)
        if self.disable_additional_properties:
            if schema is None:
                allowed = "it belongs to json; leave it out"
                raise InvalidParameter("disable_additional_properties", True, allowed)
            schema = _without_additional_properties(schema)
        return Structured(
            json_schema=schema,
            regex=self.regex,
            choice=as_tuple("choice", self.choice),
            grammar=self.grammar,
            json_object=False if self.json_object is None else self.json_object,
            structural_tag=_as_json("structural_tag", self.structural_tag),
        )


@dataclass(frozen=True, slots=True)
class GuidedDecodingParams(StructuredOutputsParams):
    """What StructuredOutputsParams were called before: SamplingParams(guided_decoding=GuidedDecodingParams(...))."""

    backend: str | None = None
    """auto or guidance: llguidance is what compiles every form."""

    def __post_init__(self) -> None:
        StructuredOutputsParams.__post_init__(self)
        if self.backend not in (None, "auto", "guidance"):
            allowed = "llguidance compiles every form; leave it out, or give auto or guidance"
            raise InvalidParameter("backend", self.backend, allowed)


def _as_json(name: str, value: object) -> str | None:
    """JSON text of a dictionary or of a pydantic model; a text as it is. Anything else is refused."""
    schema_of = getattr(value, "model_json_schema", None)
    if callable(schema_of):
        value = schema_of()
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise InvalidParameter(name, value, "it must be JSON: a text, a dictionary, or a pydantic model")
    try:
        return json_library.dumps(dict(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParameter(name, "...", f"it cannot be written as JSON: {error}") from error


def _without_additional_properties(schema: str) -> str:
    try:
        value = json_library.loads(schema)
        _close_objects(value)
        return json_library.dumps(value)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter("json", "...", f"it is not valid JSON: {error}") from error


def _close_objects(schema: object) -> None:
    """In place: every schema that names properties allows no others, unless it says so itself."""
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in _SCHEMAS_BY_NAME and isinstance(value, dict):
            nested = list(value.values())
        elif key not in _VALUES:
            nested = value if isinstance(value, list) else [value]
        else:
            continue
        for one in nested:
            _close_objects(one)
    if isinstance(schema.get("properties"), dict):
        schema.setdefault("additionalProperties", False)
