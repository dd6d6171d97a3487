"""What a request says of tools is refused by the name of the field that is wrong."""

from typing import Any

import pytest

from archerfish.api.tools import ToolChoicePolicy, check_tools
from archerfish.errors import InvalidParameter


def function(name: object = "get_weather", **more: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


TOOLS = [
    function(
        "get_weather", description="...", parameters={"type": "object", "properties": {"city": {"type": "string"}}}
    ),
    function("now", strict=True, parameters=None),
    function("-_9", parameters={"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}),
]
NAMES = ("get_weather", "now", "-_9")


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: object, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


@pytest.mark.parametrize(
    ("tool_choice", "expected"),
    [
        (None, ToolChoicePolicy("auto", NAMES)),
        ("auto", ToolChoicePolicy("auto", NAMES)),
        ("none", ToolChoicePolicy("none", ())),
        ("required", ToolChoicePolicy("required", NAMES)),
        (named("now"), ToolChoicePolicy("function", ("now",))),
        (allowed("auto", "-_9", "get_weather"), ToolChoicePolicy("auto", ("get_weather", "-_9"))),
        (allowed("required", "now"), ToolChoicePolicy("required", ("now",))),
    ],
)
def test_choice(tool_choice: object, expected: ToolChoicePolicy) -> None:
    assert check_tools(TOOLS, tool_choice) == expected


@pytest.mark.parametrize("tool_choice", [None, "none"])
def test_no_tools(tool_choice: object) -> None:
    assert check_tools(None, tool_choice) == ToolChoicePolicy("none", ())


@pytest.mark.parametrize(
    ("tools", "field", "fix"),
    [
        ({}, "tools", "list"),
        ([], "tools", "leave it out"),
        (["get_weather"], "tools[0]", '"type": "function"'),
        ([*TOOLS, {"function": {"name": "f"}}], "tools[3].type", "function"),
        ([{"type": "web_search"}], "tools[0].type", '"function"'),
        ([{"type": "function"}], "tools[0].function", "object with name"),
        ([{**function(), "cache": 1}], "tools[0].cache", "known are type, function"),
        ([function(color="red")], "tools[0].function.color", "known are name, description, parameters, strict"),
        ([function("")], "tools[0].function.name", "1 to 64"),
        ([function("x" * 65)], "tools[0].function.name", "1 to 64"),
        ([function("get weather")], "tools[0].function.name", "letters, digits"),
        ([function("now\n")], "tools[0].function.name", "letters, digits"),
        ([function(None)], "tools[0].function.name", "letters, digits"),
        ([*TOOLS, function("now")], "tools[3].function.name", "tools[1] has the same name"),
        ([function(description=3)], "tools[0].function.description", "string"),
        ([function(strict="yes")], "tools[0].function.strict", "true or false"),
        ([function(parameters=[])], "tools[0].function.parameters", '{"type": "object"'),
        ([function(parameters={"type": "string"})], "tools[0].function.parameters.type", '"object"'),
        ([function(parameters={"properties": ["a"]})], "tools[0].function.parameters.properties", "map names"),
        (
            [function(parameters={"properties": {"a": "string"}})],
            "tools[0].function.parameters.properties.a",
            "JSON schema",
        ),
        ([function(parameters={"required": "a"})], "tools[0].function.parameters.required", "list of names"),
    ],
)
def test_tools_are_refused(tools: object, field: str, fix: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        check_tools(tools)
    assert caught.value.name == field
    assert fix in str(caught.value)


@pytest.mark.parametrize(
    ("tools", "tool_choice", "field", "fix"),
    [
        (None, "auto", "tool_choice", "give tools"),
        (None, named("now"), "tool_choice", "give tools"),
        (TOOLS, "any", "tool_choice", '"required"'),
        (TOOLS, 3, "tool_choice", '"required"'),
        (TOOLS, {"type": "custom"}, "tool_choice.type", '"required"'),
        (TOOLS, {"type": "function", "name": "now"}, "tool_choice.name", "no such field"),
        (TOOLS, {"type": "function"}, "tool_choice.function", "name"),
        (TOOLS, named("later"), "tool_choice.function.name", "get_weather, now"),
        (TOOLS, {"type": "function", "function": {"name": ["now"]}}, "tool_choice.function.name", "get_weather, now"),
        (TOOLS, {"type": "allowed_tools"}, "tool_choice.allowed_tools", "mode and tools"),
        (TOOLS, allowed("none", "now"), "tool_choice.allowed_tools.mode", '"required"'),
        (TOOLS, allowed("auto"), "tool_choice.allowed_tools.tools", "at least one"),
        (
            TOOLS,
            allowed("auto", "now", "later"),
            "tool_choice.allowed_tools.tools[1].function.name",
            "get_weather, now",
        ),
    ],
)
def test_choices_are_refused(tools: object, tool_choice: object, field: str, fix: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        check_tools(tools, tool_choice)
    assert caught.value.name == field
    assert fix in str(caught.value)
