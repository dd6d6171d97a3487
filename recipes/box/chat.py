"""The format of conversations: special tokens, and the template that writes the same text when serving."""

import json
from collections.abc import Sequence
from typing import Any

END_OF_TEXT = "<|endoftext|>"
END = "<|end|>"
SYSTEM = "<|system|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
TOOL_CALL = "<|tool_call|>"
TOOL_RESULT = "<|tool_result|>"
SPECIAL_TOKENS = [END_OF_TEXT, END, SYSTEM, USER, ASSISTANT, TOOL_CALL, TOOL_RESULT]
"""Special tokens in the order of their ids."""

MOST_RESULT_CHARACTERS = 600  # A tool's answer can be longer than the whole context.

# Writes the same text as `write_conversation` below: a test compares the two.
TEMPLATE = (
    "{%- if tools %}<|system|>Tools:"
    "{%- for tool in tools %}{%- set f = tool.function if tool.function is defined else tool %}"
    " {{ f.name }}({{ f.parameters.properties | join(', ') if f.parameters is defined else '' }})"
    "{%- if not loop.last %},{% endif %}{%- endfor %}<|end|>{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'system' %}<|system|>{{ message.content }}<|end|>"
    "{%- elif message.role == 'user' %}<|user|>{{ message.content }}<|end|>"
    "{%- elif message.role == 'tool' %}<|tool_result|>{{ message.content }}<|end|>"
    "{%- elif message.role == 'assistant' %}<|assistant|>"
    "{%- if message.tool_calls %}{%- for call in message.tool_calls %}"
    "{%- set f = call.function if call.function is defined else call %}<|tool_call|>"
    '{"name": {{ f.name | tojson }}, "arguments": '
    "{{ f.arguments if f.arguments is string else f.arguments | tojson }}}{%- endfor %}"
    "{%- else %}{{ message.content }}{%- endif %}<|end|>"
    "{%- else %}{{ raise_exception('there is no role ' ~ message.role) }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}<|assistant|>{%- endif %}"
)


def write_turn(message: dict[str, Any]) -> str:
    """Return one message as the model sees it."""
    role = message["role"]
    if role == "tool":
        return f"{TOOL_RESULT}{write_result(message['content'])}{END}"
    if role == "assistant":
        call = message.get("tool_call")
        body = f"{TOOL_CALL}{write_call(call)}" if call else message["content"]
        return f"{ASSISTANT}{body}{END}"
    return f"{SYSTEM if role == 'system' else USER}{message['content']}{END}"


def write_call(call: dict[str, Any]) -> str:
    """Return a call as the template writes it, key order included."""
    return json.dumps({"name": call["name"], "arguments": call["arguments"]}, ensure_ascii=False)


def write_result(content: Any) -> str:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return text[:MOST_RESULT_CHARACTERS]


def write_tools(signatures: dict[str, Sequence[str]]) -> str:
    """Return the functions that a conversation may call, with the names of their arguments."""
    listed = ", ".join(f"{name}({', '.join(arguments)})" for name, arguments in signatures.items())
    return f"{SYSTEM}Tools: {listed}{END}"


def write_conversation(messages: Sequence[dict[str, Any]], signatures: dict[str, Sequence[str]] | None = None) -> str:
    tools = write_tools(signatures) if signatures else ""
    return tools + "".join(write_turn(message) for message in messages)
