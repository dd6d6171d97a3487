"""The functions of a request: checks of `tools` and `tool_choice`, and which function a call means by its name."""

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from archerfish.errors import InvalidParameter

Mode = Literal["none", "auto", "required", "function"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CHOICES = (
    'it must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}, '
    "with the name of a function in tools"
)


class ToolChoicePolicy(NamedTuple):
    """The functions that an answer may or must call."""

    mode: Mode
    """`function` means one call of the one function that was named."""
    functions: tuple[str, ...]
    """Names that may be called; none with mode none."""


def is_function_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_tools(tools: object, tool_choice: object = None) -> ToolChoicePolicy:
    """Check `tools` and `tool_choice`. Raise InvalidParameter for the first field that is wrong."""
    if tools is None:
        if tool_choice not in (None, "none"):
            raise InvalidParameter("tool_choice", tool_choice, "there are no tools to choose from; give tools, too")
        return ToolChoicePolicy("none", ())
    if not isinstance(tools, (list, tuple)):
        raise InvalidParameter("tools", tools, "it must be a list of functions")
    if not tools:
        raise InvalidParameter("tools", tools, "give at least one function, or leave it out")
    names: dict[str, int] = {}
    for index, tool in enumerate(tools):
        name = _check_tool(f"tools[{index}]", tool)
        if name in names:
            raise InvalidParameter(
                f"tools[{index}].function.name", name, f"tools[{names[name]}] has the same name; rename one"
            )
        names[name] = index
    return _check_choice(tool_choice, tuple(names))


def _check_tool(field: str, tool: object) -> str:
    """The function's name."""
    tool = _check_object(field, tool, ("type", "function"), 'it must be {"type": "function", "function": {...}}')
    if tool.get("type") != "function":
        raise InvalidParameter(f"{field}.type", tool.get("type"), 'only "function" is known')
    field = f"{field}.function"
    function = _check_object(
        field,
        tool.get("function"),
        ("name", "description", "parameters", "strict"),
        "it must be an object with name, description and parameters",
    )
    name = function.get("name")
    if not isinstance(name, str) or not is_function_name(name):
        allowed = "it must have 1 to 64 characters out of letters, digits, _ and -"
        raise InvalidParameter(f"{field}.name", name, allowed)
    if not isinstance(function.get("description"), (str, type(None))):
        raise InvalidParameter(f"{field}.description", function["description"], "it must be a string")
    if not isinstance(function.get("strict"), (bool, type(None))):
        raise InvalidParameter(f"{field}.strict", function["strict"], "it must be true or false")
    if function.get("parameters") is not None:
        _check_parameters(f"{field}.parameters", function["parameters"])
    return name


def _check_parameters(field: str, schema: object) -> None:
    allowed = 'it must be the JSON schema of an object, as {"type": "object", "properties": {...}}'
    if not isinstance(schema, Mapping):
        raise InvalidParameter(field, schema, allowed)
    if schema.get("type", "object") != "object":
        raise InvalidParameter(f"{field}.type", schema["type"], 'it must be "object": arguments have names')
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise InvalidParameter(f"{field}.properties", properties, "it must map names to JSON schemas")
    for name, value in properties.items():
        if not isinstance(value, (Mapping, bool)):
            raise InvalidParameter(
                f"{field}.properties.{name}", value, 'it must be a JSON schema, as {"type": "string"}'
            )
    required = schema.get("required", [])
    if not isinstance(required, (list, tuple)) or not all(isinstance(name, str) for name in required):
        raise InvalidParameter(f"{field}.required", required, "it must be a list of names out of properties")


def _check_choice(choice: object, names: tuple[str, ...]) -> ToolChoicePolicy:
    if choice is None or choice == "auto":
        return ToolChoicePolicy("auto", names)
    if choice == "none":
        return ToolChoicePolicy("none", ())
    if choice == "required":
        return ToolChoicePolicy("required", names)
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        return _check_allowed_tools(choice, names)
    return ToolChoicePolicy("function", (_check_named("tool_choice", choice, names),))


def _check_allowed_tools(choice: Mapping[str, Any], names: tuple[str, ...]) -> ToolChoicePolicy:
    """{"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}: some of the functions only."""
    _check_object("tool_choice", choice, ("type", "allowed_tools"), _CHOICES)
    field = "tool_choice.allowed_tools"
    allowed = _check_object(
        field, choice.get("allowed_tools"), ("mode", "tools"), "it must be an object with mode and tools"
    )
    mode = allowed.get("mode")
    if mode not in ("auto", "required"):
        raise InvalidParameter(f"{field}.mode", mode, 'it must be "auto" or "required"')
    tools = allowed.get("tools")
    if not isinstance(tools, (list, tuple)) or not tools:
        raise InvalidParameter(f"{field}.tools", tools, "it must be a list of at least one function in tools")
    chosen = {_check_named(f"{field}.tools[{index}]", tool, names) for index, tool in enumerate(tools)}
    return ToolChoicePolicy("auto" if mode == "auto" else "required", tuple(name for name in names if name in chosen))


def _check_named(field: str, choice: object, names: tuple[str, ...]) -> str:
    """{"type": "function", "function": {"name": ...}}"""
    choice = _check_object(field, choice, ("type", "function"), _CHOICES)
    if choice.get("type") != "function":
        raise InvalidParameter(f"{field}.type", choice.get("type"), _CHOICES)
    function = _check_object(f"{field}.function", choice.get("function"), ("name",), "it must be an object with a name")
    name = function.get("name")
    if not isinstance(name, str) or name not in names:
        raise InvalidParameter(f"{field}.function.name", name, f"it must be in tools, which has {', '.join(names)}")
    return name


def _check_object(field: str, value: object, known: tuple[str, ...], allowed: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidParameter(field, value, allowed)
    for key, entry in value.items():
        if key not in known:
            raise InvalidParameter(f"{field}.{key}", entry, f"there is no such field; known are {', '.join(known)}")
    return value


class FunctionNames:
    """The functions that may be called. Names are forgiven their case, underscores and hyphens where one is meant."""

    def __init__(self, known: Collection[str] | None) -> None:
        """Without `known`, whatever could be the name of a function is one."""
        self.known = known
        plain = [_plain(name) for name in known or ()]
        self._by_plain = {
            short: name for short, name in zip(plain, known or (), strict=True) if plain.count(short) == 1
        }

    def find(self, written: str) -> str | None:
        """The function that is meant."""
        if not is_function_name(written):
            return None
        if self.known is None or written in self.known:
            return written
        return self._by_plain.get(_plain(written))

    def has_one_that_begins(self, written: str) -> bool:
        """Whether this is known to be the beginning of a function's name."""
        return any(_plain(name).startswith(_plain(written)) for name in self.known or ())

    def error(self, written: str) -> str:
        """Why no function is meant."""
        if self.known is None:
            return f"{written!r} cannot be the name of a function"
        return f"there is no function {written!r}; there are {', '.join(self.known)}"


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()
