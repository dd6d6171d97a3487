"""Converts messages for chat templates, which want the arguments of calls as objects."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return copies of the messages with the arguments of calls as objects.

    OpenAI's API has arguments as a text, but many templates write an object as JSON and would quote a text once more.
    A text that is not the JSON of an object stays as it is; an empty one, which some clients send, is no arguments.
    """
    return [_with_objects(message) for message in messages]


def _with_objects(message: Mapping[str, Any]) -> dict[str, Any]:
    copy = dict(message)
    calls = copy.get("tool_calls")
    if isinstance(calls, (list, tuple)):
        copy["tool_calls"] = [_with_object(call) for call in calls]
    return copy


def _with_object(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    copy = dict(function)
    arguments = copy.get("arguments")
    if isinstance(arguments, str):
        copy["arguments"] = _as_object(arguments)
    return {**call, "function": copy}


def _as_object(arguments: str) -> dict[str, Any] | str:
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
        # Not everything that can be read can be written: infinite numbers, half of a surrogate pair.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
